"""Helpers that know nothing of reinforcement learning or of the configuration; the lowest layer."""
