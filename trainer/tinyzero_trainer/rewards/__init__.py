"""Scoring completions in processes of the SDK. What a task pays for is in the task itself."""
