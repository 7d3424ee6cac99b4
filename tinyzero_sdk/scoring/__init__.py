"""Scoring: the pool of worker processes, files of outputs, summaries and comparisons. No model runs here."""
