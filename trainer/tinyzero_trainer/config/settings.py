"""Single settings of a `TrainConfig`, read and changed by their full names."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tinyzero_sdk.settings import unflatten
from tinyzero_trainer.config.train_config import TrainConfig
from tinyzero_trainer.config.unused import unused_settings

Settings = Mapping[str, Any]
"""Values by the full names of settings, such as `optimizer.learning_rate`."""


def setting(config: TrainConfig, key: str) -> Any:
    """A setting's value."""
    group, _, name = key.partition(".")
    return getattr(getattr(config, group), name)


def replaced(config: TrainConfig, settings: Settings) -> TrainConfig:
    """A configuration with some settings replaced; raises a ValueError if they contradict one another."""
    groups = {name: replace(getattr(config, name), **values) for name, values in unflatten(settings).items()}
    return replace(config, **groups)


def with_settings(config: TrainConfig, settings: Settings) -> TrainConfig:
    """A configuration with some settings changed.

    Raises:
        ValueError: they contradict one another, or one has no effect.
    """
    changed = replaced(config, settings)
    for key, value, reason in unused_settings(changed):
        if key in settings:
            raise ValueError(f"{key}={value!r} has no effect: {reason}")
    return changed
