"""Settings by their full names: what each says of itself in its field, whether it has an effect, how one is changed.

    patience: Annotated[PositiveInt, RESUMABLE, UsedIf("group.switch", "group.switch=0 …")] = 20

The annotations of a group hold for all of its settings. A setting without effect under the others is refused where the
user or a recipe gives it, and dropped where it is a default. What is impossible, rather than without effect, is
rejected where the configuration is built.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_type_hints

from tinyzero_sdk import settings
from tinyzero_sdk.errors import SettingsError
from tinyzero_sdk.settings import build, flatten, format_value, unflatten
from tinyzero_trainer.config.foreign_keys import foreign_answer

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

C = TypeVar("C", bound="DataclassInstance")

RESUMABLE = object()
"""--resume may change it: it affects speed, memory and records, not what is learned, or cures what ends a run."""


@dataclass(frozen=True, slots=True)
class UsedIf:
    """The setting has no effect unless a condition holds of the configuration."""

    condition: str | Callable[[Any], object]
    """The full name of a setting, which must be on and have an effect itself, or of a property; or a function of the
    configuration."""

    reason: str
    """Why there is no effect otherwise, with settings in braces."""

    values: tuple[object, ...] = ()
    """Values of the named setting that count as on; () = all that are truthy."""

    def holds(self, config: Any, key: str) -> bool:
        """Whether the condition holds, which is the same for every setting `key`."""
        if callable(self.condition):
            return bool(self.condition(config))
        value = attrgetter(self.condition)(config)
        return value in self.values if self.values else bool(value)


@dataclass(frozen=True, slots=True)
class ReadBy:
    """The setting has an effect only if the chosen kind (of algorithm, engine, executor) lists it or its group."""

    kind: str
    """Where the configuration has the kind's record, such as `algorithm.estimator`."""

    reason: str
    """Why the other kinds do not read it, with settings in braces."""

    named_by: str = ""
    """The setting that names the kind, if it may be a user's own function: that declares what it reads."""

    def holds(self, config: Any, key: str) -> bool:
        """Whether the chosen kind lists the setting `key`."""
        return not {key, key.partition(".")[0]}.isdisjoint(attrgetter(self.kind)(config).settings)

    def why(self, config: Any, key: str) -> str:
        """Why the chosen kind does not read the setting `key`."""
        if not self.named_by or ":" not in (name := attrgetter(self.named_by)(config)):
            return self.reason.format_map(vars(config))
        declared = f"@{type(attrgetter(self.kind)(config)).__name__}(settings={{{key!r}}})"
        return f"{self.named_by}={name!r} does not say that it reads it; if it does, declare it with {declared}"


@dataclass(frozen=True, slots=True)
class NoneIs:
    """`none` is typed for this value: for pydantic."""

    value: str

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        from pydantic import BeforeValidator

        validator = BeforeValidator(lambda value: self.value if value is None else value)
        return validator.__get_pydantic_core_schema__(source, handler)


SMALLER = object()
"""Stands for the next smaller number, which depends on the model and the batch."""


@dataclass(frozen=True, slots=True)
class Option:
    """A value of a setting that trades speed for memory."""

    value: object
    cost: str = ""
    """What it costs in exchange for memory; empty = nothing."""

    rank: int = 0
    """Options of all settings are proposed in ascending rank: what costs least comes first."""


@dataclass(frozen=True, slots=True)
class TradesMemory:
    """The setting trades speed for GPU memory, and changes nothing else. Plans, `auto` and advice read it."""

    options: tuple[Option, ...] = ()
    """From the one that takes most memory to the one that takes least."""

    unresolved: object = None
    """The value that `auto` stands for where nothing is known to choose by."""

    chosen_by: Literal["plan", "engine", "ranks"] = "plan"
    """Who chooses a value for `auto`: the plan, the rollout engine, or the ranks by the memory that is left."""

    def option_index(self, value: object) -> int:
        """The index of a value among the options; -1 = it takes more memory than all of them."""
        values = [option.value for option in self.options]
        value = self.unresolved if value == "auto" else value
        return values.index(value) if value in values else -1

    def cost(self, value: object) -> str:
        """What a value costs; that of the last option where numbers are meant."""
        return self.options[self.option_index(value)].cost if self.options else ""


# Shared by settings of several groups.
SINGLE_UPDATE = "a single update per batch has nothing to clip; set optimizer.num_mini_batches or update_epochs above 1"
ON_RAY = ReadBy("run.kind", "run.executor={run.executor!r} has no such setting; give --gpus N (0 = on the CPU)")


@cache
def metadata(cls: type) -> dict[str, tuple[Any, ...]]:
    """The annotations of each setting of a configuration, by its full name; those of its group come first."""
    groups, hints = get_type_hints(cls), get_type_hints(cls, include_extras=True)
    result: dict[str, tuple[Any, ...]] = {}
    for name, group in groups.items():
        if is_dataclass(group):
            own = get_type_hints(group, include_extras=True)
            for field in fields(group):
                of_group, of_field = (getattr(hint, "__metadata__", ()) for hint in (hints[name], own[field.name]))
                result[f"{name}.{field.name}"] = (*of_group, *of_field)
    return result


def check_keys(cls: type, values: Mapping[str, Any], file: Path | None = None) -> None:
    """Reject keys, read from a `file`, that a configuration `cls` does not have.

    The name of another trainer is answered with the key here.
    """
    keys = {key: value for key, value in flatten(values) if key != "run.task" and not key.startswith("task.")}
    try:
        settings.check_keys(cls, unflatten(keys), in_help=True)
    except SettingsError as error:
        message = foreign_answer(cls, keys) or str(error)
        raise SettingsError(message if file is None else f"{file}: {message}") from error


def resumable(cls: type) -> frozenset[str]:
    """The settings of a configuration that --resume may change."""
    return frozenset(key for key, entries in metadata(cls).items() if RESUMABLE in entries)


def memory_settings(cls: type) -> dict[str, TradesMemory]:
    """The settings of a configuration that trade speed for memory, by their full names."""
    return {
        key: entry for key, entries in metadata(cls).items() for entry in entries if isinstance(entry, TradesMemory)
    }


def default_settings(cls: type[Any]) -> dict[str, dict[str, Any]]:
    """The defaults of a kind of configuration, by group; tables are left out."""
    groups = {name: group for name, group in get_type_hints(cls).items() if is_dataclass(group)}
    return {name: vars(group()) for name, group in groups.items()}  # type: ignore[operator]


def why_unused(config: Any, key: str) -> str | None:
    """Why a setting has no effect, perhaps since one that it needs has none; None if it has an effect."""
    cls: type = type(config)
    for entry in metadata(cls).get(key, ()):
        if isinstance(entry, UsedIf | ReadBy):
            switch = entry.condition if isinstance(entry, UsedIf) else None
            if isinstance(switch, str) and (reason := why_unused(config, switch)):
                return reason
            if not entry.holds(config, key):
                return entry.why(config, key) if isinstance(entry, ReadBy) else entry.reason.format_map(vars(config))
    return None


def unused_settings(config: Any) -> Iterator[tuple[str, Any, str]]:
    """(full name, value, reason) of each setting that has no effect and yet differs from its default."""
    cls: type = type(config)
    defaults, workers = default_settings(cls), getattr(config, "workers_config", config)
    for key in metadata(cls):
        group, name = key.split(".")
        values = getattr(config, group)
        owner = workers if type(values) is type(getattr(workers, group, None)) else config
        value = getattr(values, name)
        if value != defaults[group][name] and (reason := why_unused(owner, key)):
            yield key, value, reason


def refuse_unused(config: Any, keys: Collection[str]) -> None:
    """Raise a SettingsError if one of the settings `keys` has no effect."""
    for key, value, reason in unused_settings(config):
        if key in keys:
            raise SettingsError(f"{key}={format_value(value)} has no effect: {reason}")


def drop_unused(values: Mapping[str, Any], requested: Mapping[str, Any], cls: type[Any]) -> dict[str, Any]:
    """The values of a configuration without those that have no effect, except what the user gave.

    Example:
        >>> from tinyzero_trainer.config import TrainConfig
        >>> drop_unused({"eval": {"num_problems_during": 64, "every": 0}}, {"eval": {"every": 0}}, TrainConfig)
        {'eval': {'every': 0}}
    """
    kept, requested_keys = dict(values), dict(flatten(requested)).keys()
    # A setting may have an effect only by another that has none.
    while unused := {key for key, _, _ in unused_settings(build(cls, kept))} - requested_keys:
        kept = {
            group: {name: value for name, value in own.items() if f"{group}.{name}" not in unused}
            for group, own in kept.items()
        }
    return kept


Settings = Mapping[str, Any]
"""Values by the full names of settings, such as `optimizer.learning_rate`."""


def setting(config: Any, key: str) -> Any:
    return attrgetter(key)(config)


def replaced(config: C, values: Settings) -> C:
    """A configuration with some settings replaced; raises a ValueError if they contradict one another."""
    groups = {name: replace(getattr(config, name), **group) for name, group in unflatten(values).items()}
    return replace(config, **groups)


def with_settings(config: C, values: Settings) -> C:
    """A configuration with some settings changed; a ValueError if they contradict one another or have no effect."""
    changed = replaced(config, values)
    for key, value, reason in unused_settings(changed):
        if key in values:
            raise ValueError(f"{key}={value!r} has no effect: {reason}")
    return changed
