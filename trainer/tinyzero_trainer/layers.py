"""What a configuration is put together from, each layer on top of the one before. What the keys mean is in config.py.

Defaults, a recipe's figures for a model of full size, what suits the model, the recipe itself, the user's file, the
user's words and flags. What suits the model yields also where it would have no effect: a recipe without KL does not
trip over the KL estimator that suits a model. What the user or the recipe says is never left out.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from functools import reduce
from pathlib import Path
from typing import Any

from tinyzero_sdk.settings import merge
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.effects import idle_across, idle_in
from tinyzero_trainer.recipes import Recipe, find_recipe


@dataclass(frozen=True, slots=True)
class Layers:
    """A configuration's values, and where they are from."""

    values: dict[str, Any]
    """All that is set, as a nested mapping."""

    recipe: Recipe | None
    """The recipe named in `run.recipe`."""

    suited: dict[str, Any]
    """Of what suits the model, by full names: what holds, and is other than it would be without."""

    left_out: dict[str, str]
    """Of what suits the model: what has no effect any more because of what was said, with the reason."""


def put_together(said: Mapping[str, Any]) -> Layers:
    """The layers below what the user said, and that.

    Raises:
        SettingsError: there is no such recipe, or it sets what no configuration has.
    """
    name = get(said, "run.recipe")
    recipe = find_recipe(name) if isinstance(name, str) else None
    figures, meant = (recipe.full_size, recipe.settings) if recipe else ({}, {})
    upper = merge(meant, said)
    preset = suiting(upper)
    lower = merge(figures, preset)
    kept, dropped = without_idle(lower, upper)
    of_preset, of_upper, otherwise = dict(leaves(preset)), dict(leaves(upper)), with_defaults(figures)
    suited = {
        key: value
        for key, value in of_preset.items()
        if key not in dropped and key not in of_upper and not _equal(value, get(otherwise, key))
    }
    always = without_idle(lower, {})[1]
    left_out = {key: reason for key, reason in dropped.items() if key in of_preset and key not in always}
    return Layers(merge(kept, upper), recipe, suited, left_out)


def suiting(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Settings that suit the model and the task of `values`, as a warm start recorded them; empty if none did."""
    from tinyzero_trainer.presets import preset

    model = get(values, "model.path")
    where = () if model is None else (Path(model),)
    entries = values.get("tasks")
    if not isinstance(entries, Mapping) or not entries:
        return preset(get(values, "run.task") or "", *where)
    suited: dict[str, Any] = {}
    for name, entry in entries.items():
        task = entry.get("task", name) if isinstance(entry, Mapping) else name
        settings = dict(preset(task if isinstance(task, str) else name, *where))
        options = settings.pop("task", {})
        suited = merge(suited, settings | {"tasks": {name: {"options": options}}})
    return suited


def without_idle(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """`lower` without the settings that have no effect under `upper`, and these with the reasons.

    Example:
        >>> without_idle({"eval": {"during_size": 64}}, {"eval": {"every": 0}})
        ({'eval': {}}, {'eval.during_size': 'eval.every=0 evaluates before and after training only'})
    """
    kept, dropped = dict(lower), dict[str, str]()
    while True:
        fixed, defaults = dict(leaves(upper)), with_defaults({})
        idle = idle_settings(merge(kept, upper))
        found = {
            key: idle[key]
            for key, value in leaves(kept)
            if key in idle and key not in fixed and not _equal(value, get(defaults, key))
        }
        if not found:
            return kept, dropped
        dropped |= found
        kept = reduce(_without, found, kept)  # one less may make another one idle


def idle_settings(values: Mapping[str, Any]) -> dict[str, str]:
    """The settings that have no effect, going by `values` on top of the defaults, with the reasons."""
    groups = with_defaults(values)
    try:
        found = [pair for name, group in groups.items() for pair in idle_in(name, group)]
        return dict([*found, *idle_across(groups)])
    except (TypeError, AttributeError, KeyError):
        return {}  # something is of a wrong type, which `build` will say


def with_defaults(values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The groups of the configuration with all their settings; what holds a table of its own is left out."""
    groups = {name: vars(group) for name, group in vars(TrainConfig()).items() if is_dataclass(group)}
    return {
        name: {**group, **said} if isinstance(said := values.get(name, {}), Mapping) else dict(group)
        for name, group in groups.items()
    }


def leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(full name, value) of all that is set."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def get(values: Mapping[str, Any], key: str) -> Any:
    """The value of a full name; None where it is not set."""
    return dict(leaves(values)).get(key)


def nested(key: str, value: Any) -> dict[str, Any]:
    """A nested mapping with one value."""
    for part in reversed(key.split(".")):
        value = {part: value}
    return value


def _without(values: Mapping[str, Any], key: str) -> dict[str, Any]:
    name, _, rest = key.partition(".")
    if not rest:
        return {other: value for other, value in values.items() if other != name}
    return {**values, name: _without(values[name], rest)}


def _equal(value: Any, default: Any) -> bool:
    return bool(value == (list(default) if isinstance(default, tuple) else default))  # TOML has lists, no tuples
