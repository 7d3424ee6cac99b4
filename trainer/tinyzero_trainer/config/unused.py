"""Settings that have no effect under the others: refused where the user or a recipe gives them, dropped as defaults.

Each says in its own field what it needs (metadata.py). What is impossible, rather than without effect, is rejected
where the configuration is built.
"""

from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from typing import Any, get_type_hints

from tinyzero_sdk.settings import build, flatten
from tinyzero_trainer.config.metadata import metadata, reason_without_effect
from tinyzero_trainer.config.train_config import TrainConfig


def unused_settings(config: Any) -> Iterator[tuple[str, Any, str]]:
    """(full name, value, reason) of each setting that has no effect and yet differs from its default."""
    cls: type = type(config)
    defaults, workers = default_settings(cls), config.workers_config
    for key in metadata(cls):
        group, name = key.split(".")
        values = getattr(config, group)
        owner = workers if type(values) is type(getattr(workers, group, None)) else config
        value = getattr(values, name)
        if value != defaults[group][name] and (reason := reason_without_effect(owner, key)):
            yield key, value, reason


def drop_unused(
    values: Mapping[str, Any], requested: Mapping[str, Any], cls: type[Any] = TrainConfig
) -> dict[str, Any]:
    """The values of a configuration without those that have no effect, but for what is requested.

    Example:
        >>> drop_unused({"eval": {"num_problems_during": 64, "every": 0}}, {"eval": {"every": 0}})
        {'eval': {'every': 0}}
    """
    unused = {key for key, _, _ in unused_settings(build(cls, values))}
    unused -= dict(flatten(requested)).keys()
    return {
        group: {name: value for name, value in settings.items() if f"{group}.{name}" not in unused}
        for group, settings in values.items()
    }


def default_settings(cls: type[Any] = TrainConfig) -> dict[str, dict[str, Any]]:
    """The defaults of a kind of configuration, by group; tables are left out."""
    groups = {name: group for name, group in get_type_hints(cls).items() if is_dataclass(group)}
    return {name: vars(group()) for name, group in groups.items()}  # type: ignore[operator]
