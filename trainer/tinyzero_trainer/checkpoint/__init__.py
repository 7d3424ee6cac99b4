"""Run directories, and checkpoints that are whole or absent; what goes into a checkpoint is up to the caller."""
