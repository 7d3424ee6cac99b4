"""What a setting says of itself in its field: whether --resume may change it, and what it needs to have an effect.

    patience: Annotated[PositiveInt, RESUMABLE, Needs("group.switch", "group.switch=0 …")] = 20

Said of a group, it holds for all of the group's settings.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from operator import attrgetter
from typing import Any, get_type_hints


@dataclass(frozen=True, slots=True)
class Resumable:
    """--resume may change the setting: it affects speed, memory and records, not what is learned."""


RESUMABLE = Resumable()


@dataclass(frozen=True, slots=True)
class Needs:
    """The setting has no effect unless a condition holds of the configuration."""

    condition: str | Callable[[Any], object]
    """The full name of a setting, which must be on and have an effect itself, or of a property; or a function of the
    configuration."""

    reason: str
    """Why there is no effect otherwise, with settings in braces."""

    values: tuple[object, ...] = ()
    """Values of the named setting that count as on; () = all that are true."""

    def holds(self, config: Any, key: str) -> bool:
        """Whether the condition holds for the setting `key`."""
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

    def holds(self, config: Any, key: str) -> bool:
        """Whether the chosen kind lists the setting `key`."""
        return not {key, key.partition(".")[0]}.isdisjoint(attrgetter(self.kind)(config).settings)


ON_RAY = ReadBy("run.kind", "run.executor={run.executor!r} has no such setting; give --gpus N (0 = on the CPU)")


@cache
def metadata(cls: type) -> dict[str, tuple[Any, ...]]:
    """What each setting of a configuration says of itself, by its full name; that of its group comes first."""
    groups, hints = get_type_hints(cls), get_type_hints(cls, include_extras=True)
    result: dict[str, tuple[Any, ...]] = {}
    for name, group in groups.items():
        if is_dataclass(group):
            own = get_type_hints(group, include_extras=True)
            for field in fields(group):
                said = (getattr(hint, "__metadata__", ()) for hint in (hints[name], own[field.name]))
                result[f"{name}.{field.name}"] = tuple(entry for entries in said for entry in entries)
    return result


def resumable(cls: type) -> frozenset[str]:
    """The settings of a configuration that --resume may change."""
    return frozenset(key for key, said in metadata(cls).items() if RESUMABLE in said)


def reason_without_effect(config: Any, key: str) -> str | None:
    """Why a setting of a configuration has no effect; None if it has one."""
    cls: type = type(config)
    for entry in metadata(cls).get(key, ()):
        if isinstance(entry, Needs | ReadBy):
            switch = entry.condition if isinstance(entry, Needs) else None
            if isinstance(switch, str) and (reason := reason_without_effect(config, switch)):
                return reason
            if not entry.holds(config, key):
                return entry.reason.format_map(vars(config))
    return None
