"""Supervised fine-tuning of a small new model on a task's demonstrations; the default model. RL is in controller/."""
