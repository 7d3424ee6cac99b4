"""Policy and critic with their updates: micro-batches, forward passes, losses and optimizers.

Advantages and loss functions are in `algorithms`, sharding in `distributed`; the steps of a run are in `controller`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tinyzero_trainer.training.build import TrainedModels, build_trained_models
    from tinyzero_trainer.training.critic import Critic
    from tinyzero_trainer.training.logprobs import PolicyModel
    from tinyzero_trainer.training.policy import Policy

__all__ = ["Critic", "Policy", "PolicyModel", "TrainedModels", "build_trained_models"]


def __getattr__(name: str) -> Any:
    """All that needs torch is imported when it is first used, since predictions read sizes.py."""
    modules = {"Critic": "critic", "Policy": "policy", "PolicyModel": "logprobs"}
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{modules.get(name, 'build')}"), name)
