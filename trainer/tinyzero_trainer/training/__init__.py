"""Policy and critic with their updates: micro-batches, forward passes, losses and optimizers.

Advantages and loss functions are in `algorithms`, sharding in `distributed`; the steps of a run are in `controller`.
"""
