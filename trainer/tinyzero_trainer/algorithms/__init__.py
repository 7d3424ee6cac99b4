"""Advantages, policy losses, KL estimators, importance weights and schedules: pure functions. No model is run here."""
