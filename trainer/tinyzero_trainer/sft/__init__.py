"""Supervised fine-tuning on examples of tasks or of files, and the default model that it makes. RL: controller/."""
