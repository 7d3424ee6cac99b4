"""The training loop: batches, steps, held-out evaluation, the run's state. The update itself is in training/."""
