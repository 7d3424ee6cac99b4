"""Policy and critic with their updates: micro-batches, forward passes, losses and optimizers.

Advantages and loss functions are in `algorithms`, sharding in `distributed`; the steps of a run are in `controller`.
"""

from tinyzero_trainer.training.build import TrainedModels, build_trained_models
from tinyzero_trainer.training.critic import Critic
from tinyzero_trainer.training.logprobs import PolicyModel
from tinyzero_trainer.training.policy import Policy

__all__ = ["Critic", "Policy", "PolicyModel", "TrainedModels", "build_trained_models"]
