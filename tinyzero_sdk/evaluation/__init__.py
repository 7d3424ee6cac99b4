"""Evaluation of models: sample completions of held-out problems and score them. No model is loaded here."""
