"""Reinforcement learning of language models on verifiable tasks. Importing this package imports no torch.

`train(config, resume=False)` runs what `tinyzero train` runs, and `fine_tune` what `tinyzero sft` runs; see `api.py`.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tinyzero_trainer.api import fine_tune as fine_tune
    from tinyzero_trainer.api import train as train
    from tinyzero_trainer.config import SftConfig as SftConfig
    from tinyzero_trainer.config import TrainConfig as TrainConfig
    from tinyzero_trainer.controller.ending import TrainResult as TrainResult

_PLACES = {
    "train": "api",
    "fine_tune": "api",
    "TrainConfig": "config",
    "SftConfig": "config",
    "TrainResult": "controller.ending",
}
__all__ = ["SftConfig", "TrainConfig", "TrainResult", "fine_tune", "train"]


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
