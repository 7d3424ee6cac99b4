"""Reinforcement learning of language models on verifiable tasks. Importing this package imports no torch.

`train(config, resume=False)` runs what `tinyzero train` runs; see `controller/loop.py`.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tinyzero_trainer.config import TrainConfig as TrainConfig
    from tinyzero_trainer.controller.loop import TrainResult as TrainResult
    from tinyzero_trainer.controller.loop import train as train

__all__ = ["TrainConfig", "TrainResult", "train"]


def __getattr__(name: str) -> Any:
    if name == "TrainConfig":
        from tinyzero_trainer.config import TrainConfig

        return TrainConfig
    if name in ("train", "TrainResult"):
        from tinyzero_trainer.controller import loop

        return getattr(loop, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
