"""Predicted memory and time of a step, as pure functions of a model's spec and a configuration. Chooses no settings."""
