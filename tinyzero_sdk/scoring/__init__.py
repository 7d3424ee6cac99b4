"""Scoring many completions: the pool of worker processes, files of outputs, summaries and comparisons.

One completion is scored by its task: tasks/score_guard.py. No model runs here.
"""
