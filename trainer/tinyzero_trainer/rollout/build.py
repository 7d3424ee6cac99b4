"""Builds the rollout engine of a run, and checks before that it can do what the run asks of it.

The record of an engine (kinds.py) names a module with two functions:

- `refuse(config, device, architecture)` raises a TinyZeroError for settings that are impossible on this device, and,
  unless `architecture` is None, for a model that the engine cannot run, or not with these settings.
- `build(config, language_model, report, source, number)` returns the engine: see `build_engine`.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import Any

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from tinyzero_sdk.errors import TinyZeroError
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.distributed.fsdp import device_of
from tinyzero_trainer.models.loading import LanguageModel
from tinyzero_trainer.rollout.engine import RolloutEngine
from tinyzero_trainer.rollout.weight_source import WeightSource, named_weights

Architecture = Callable[[], tuple[PreTrainedConfig, type[PreTrainedModel]]]
"""Reads a model's configuration and class of transformers."""


def require_engine(config: TrainConfig, device: torch.device, architecture: Architecture | None) -> None:
    """Check, before a model is loaded, that the engine is installed, and supports the model and the settings.

    Args:
        architecture: the model's; None = engine and model are on other machines, so that only settings are checked.

    Raises:
        TinyZeroError: a package is missing, or the engine does not run the model, or not with these settings.
    """
    if architecture is not None:
        config.rollout.kind.require_installed()
    for setting in config.rollout.in_fp8 if device.type == "cpu" else ():
        raise TinyZeroError(f"{setting} has no effect on the CPU; leave it out")
    with suppress(OSError, ValueError):  # loading the model says what is wrong with its files
        _functions(config).refuse(config, device, architecture)


def build_engine(
    config: TrainConfig,
    language_model: LanguageModel,
    report: Callable[[str], None] = lambda _: None,
    *,
    source: WeightSource | None = None,
    number: int = 0,
) -> RolloutEngine:
    """The engine that `rollout.engine` names, with the model's current weights.

    Args:
        language_model: the policy's.
        report: receives messages for the user.
        source: yields the policy's weights; None = `named_weights`.
        number: index of the engine in the run.

    Raises:
        TinyZeroError: the engine cannot do what is asked of it, or does not start.
    """
    model = language_model.model
    require_engine(config, device_of(model), lambda: (model.config, type(model)))
    source = source or partial(named_weights, model)
    engine: RolloutEngine = _functions(config).build(config, language_model, report, source, number)
    return engine


def _functions(config: TrainConfig) -> Any:
    return import_module(config.rollout.kind.build)
