"""Settings that have no effect under the others: refused where the user or a recipe gives them, dropped as defaults.

Each says in its own field what it needs (metadata.py). What is impossible, rather than without effect, is rejected
where the configuration is built.
"""

from collections.abc import Iterator, Mapping
from typing import Any, get_type_hints

from tinyzero_sdk.settings import build, flatten
from tinyzero_trainer.config.metadata import metadata, reason_without_effect
from tinyzero_trainer.config.train_config import TrainConfig


def unused_settings(config: TrainConfig) -> Iterator[tuple[str, Any, str]]:
    """(full name, value, reason) of each setting that has no effect and yet differs from its default."""
    defaults = default_settings()
    for key in metadata(TrainConfig):
        group, name = key.split(".")
        value = getattr(getattr(config, group), name)
        if value != defaults[group][name] and (reason := reason_without_effect(config, key)):
            yield key, value, reason


def drop_unused(
    values: Mapping[str, Any], requested: Mapping[str, Any], cls: type[Any] = TrainConfig
) -> dict[str, Any]:
    """The values of a configuration without those that have no effect, but for what is requested.

    Example:
        >>> drop_unused({"eval": {"num_problems_during": 64, "every": 0}}, {"eval": {"every": 0}})
        {'eval': {'every': 0}}
    """
    unused = {key for key, _, _ in unused_settings(build(cls, values).workers_config)}
    unused -= dict(flatten(requested)).keys()
    return {
        group: {name: value for name, value in settings.items() if f"{group}.{name}" not in unused}
        for group, settings in values.items()
    }


def default_settings() -> dict[str, dict[str, Any]]:
    """The trainer's defaults, by group; the table of tasks is left out."""
    return {name: vars(group()) for name, group in get_type_hints(TrainConfig).items() if name != "tasks"}
