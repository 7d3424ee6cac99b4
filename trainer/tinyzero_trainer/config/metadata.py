"""Annotations of settings: whether --resume may change a setting, what it needs to have an effect, and what it costs to
save memory with it.

    patience: Annotated[PositiveInt, RESUMABLE, Needs("group.switch", "group.switch=0 …")] = 20

The annotations of a group hold for all of its settings.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from operator import attrgetter
from typing import Any, Literal, get_type_hints


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

    def holds(self, config: Any, key: str) -> bool:
        """Whether the chosen kind lists the setting `key`."""
        return not {key, key.partition(".")[0]}.isdisjoint(attrgetter(self.kind)(config).settings)


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

    def place(self, value: object) -> int:
        """The index of a value among the options; -1 = it takes more memory than all of them."""
        values = [option.value for option in self.options]
        value = self.unresolved if value == "auto" else value
        return values.index(value) if value in values else -1

    def cost(self, value: object) -> str:
        """What a value costs; that of the last option where numbers are meant."""
        return self.options[self.place(value)].cost if self.options else ""


# Shared by settings of several groups.
NOT_MOVED = "with one update a batch nothing has moved yet; set optimizer.num_mini_batches or update_epochs above 1"
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


def resumable(cls: type) -> frozenset[str]:
    """The settings of a configuration that --resume may change."""
    return frozenset(key for key, entries in metadata(cls).items() if RESUMABLE in entries)


def memory_settings(cls: type) -> dict[str, TradesMemory]:
    """The settings of a configuration that trade speed for memory, by their full names."""
    return {
        key: entry for key, entries in metadata(cls).items() for entry in entries if isinstance(entry, TradesMemory)
    }


def reason_without_effect(config: Any, key: str) -> str | None:
    """Why a setting has no effect, perhaps since one that it needs has none; None if it has an effect."""
    cls: type = type(config)
    for entry in metadata(cls).get(key, ()):
        if isinstance(entry, Needs | ReadBy):
            switch = entry.condition if isinstance(entry, Needs) else None
            if isinstance(switch, str) and (reason := reason_without_effect(config, switch)):
                return reason
            if not entry.holds(config, key):
                return entry.reason.format_map(vars(config))
    return None
