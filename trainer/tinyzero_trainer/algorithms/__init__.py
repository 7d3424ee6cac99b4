"""Formulas of RL as pure functions: advantages, losses, KL, schedules. No model is run in here."""
