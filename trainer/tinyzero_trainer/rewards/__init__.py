"""Scoring completions in processes of the SDK. What a task rewards is defined by the task itself."""
