"""What a configuration is put together from, each layer on top of the one before. What the keys mean is in config/.

Defaults, a recipe's figures for a model of full size, what suits the model, the recipe itself, the user's file, the
user's words and flags. What suits the model yields also where it would have no effect, or contradicts what stands above
it: a recipe without KL does not trip over the KL estimator that suits a model, nor a batch of two problems over its
four mini-batches. What the user or the recipe says is never left out.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, is_dataclass
from functools import reduce
from typing import Any

from tinyzero_sdk.errors import SettingsError
from tinyzero_sdk.settings import build, flatten, get, merge
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.config.recipes import Recipe, find_recipe
from tinyzero_trainer.config.unused import idle


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


def put_together(said: Mapping[str, Any], preset: Mapping[str, Any] | None = None) -> Layers:
    """The layers below what the user said, and that.

    Args:
        said: by the user.
        preset: what suits the model; None = what was recorded with it.

    Raises:
        SettingsError: there is no such recipe, or it sets what no configuration has.
    """
    name = text(said, "run.recipe")
    recipe = None if name is None else find_recipe(name)
    figures, meant = (recipe.full_size, recipe.settings) if recipe else ({}, {})
    upper = merge(meant, said)
    preset = suiting(upper) if preset is None else preset
    lower = merge(figures, preset)
    kept, dropped = without_contradictions(*without_idle(lower, upper), upper)
    of_preset, covered = dict(flatten(preset)), dropped.keys() | dict(flatten(upper)).keys()
    return Layers(
        values=merge(kept, upper),
        recipe=recipe,
        suited=_suited(of_preset, covered, dict(flatten(with_defaults(figures)))),
        left_out=_left_out(of_preset, dropped, without_idle(lower, {})[1]),
    )


def _suited(preset: Mapping[str, Any], covered: Collection[str], otherwise: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in preset.items() if key not in covered and not _equal(value, otherwise.get(key))}


def _left_out(preset: Mapping[str, Any], dropped: Mapping[str, str], always: Collection[str]) -> dict[str, str]:
    return {key: reason for key, reason in dropped.items() if key in preset and key not in always}


def suiting(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Settings that suit the model and the task of `values`, as a warm start recorded them; empty if none did."""
    from tinyzero_trainer.config.model_defaults import directory_of, preset

    model = directory_of(text(values, "model.path"))
    entries = values.get("tasks")
    if not isinstance(entries, Mapping) or not entries:
        return preset(text(values, "run.task") or "", model)
    suited: dict[str, Any] = {}
    for name, entry in entries.items():
        task = entry.get("task", name) if isinstance(entry, Mapping) else name
        settings = dict(preset(task if isinstance(task, str) else name, model))
        options = settings.pop("task", {})
        suited = merge(suited, settings | {"tasks": {name: {"options": options}}})
    return suited


def without_idle(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """`lower` without the settings that have no effect under `upper`, and these with the reasons.

    Example:
        >>> without_idle({"eval": {"during_size": 64}}, {"eval": {"every": 0}})
        ({'eval': {}}, {'eval.num_problems_during': 'eval.every=0 evaluates before and after training only'})
    """
    kept, dropped = dict(lower), dict[str, str]()
    fixed, defaults = dict(flatten(upper)).keys(), dict(flatten(with_defaults({})))
    while True:
        without_effect = idle_settings(merge(kept, upper))
        found = {
            key: without_effect[key]
            for key, value in flatten(kept)
            if key in without_effect and key not in fixed and not _equal(value, defaults.get(key))
        }
        if not found:
            return kept, dropped
        dropped |= found
        kept = reduce(_without, found, kept)  # one less may make another one idle


def without_contradictions(
    lower: Mapping[str, Any], dropped: Mapping[str, str], upper: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, str]]:
    """`lower` without the setting, if it is a single one, that makes an impossible configuration of it and `upper`.

    Args:
        lower: what yields.
        dropped: what has yielded already, with the reasons.
        upper: what does not.

    Returns:
        What is left of `lower`, and all that has yielded.

    Example:
        >>> kept = {"optimizer": {"mini_batches": 4, "beta2": 0.99}}
        >>> without_contradictions(kept, {}, {"data": {"prompts_per_step": 2}})[0]
        {'optimizer': {'beta2': 0.99}}
    """
    reason = _refusal(merge(lower, upper))
    fixed = dict(flatten(upper)).keys()
    for key, _ in () if reason is None else flatten(lower):
        if key in fixed:
            continue
        kept, idle_then = without_idle(_without(lower, key), upper)
        if _refusal(merge(kept, upper)) is None:
            return kept, {**dropped, key: str(reason).partition("; ")[0], **idle_then}
    return dict(lower), dict(dropped)


def _refusal(values: Mapping[str, Any]) -> str | None:
    """Why there is no such configuration; None = there is."""
    try:
        build(TrainConfig, values)
    except SettingsError as error:
        return str(error)
    return None


def idle_settings(values: Mapping[str, Any]) -> dict[str, str]:
    """The settings that have no effect, going by `values` on top of the defaults, with the reasons."""
    try:
        return dict(idle(with_defaults(values)))
    except (TypeError, AttributeError, KeyError):
        return {}  # something is of a wrong type, which `build` will say


def with_defaults(values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The groups of the configuration with all their settings; what holds a table of its own is left out."""
    groups = {name: vars(group) for name, group in vars(TrainConfig()).items() if is_dataclass(group)}
    return {
        name: {**group, **said} if isinstance(said := values.get(name, {}), Mapping) else dict(group)
        for name, group in groups.items()
    }


def text(values: Mapping[str, Any], key: str) -> str | None:
    """The text that a full name stands for; None for anything else, which is for `build` to refuse."""
    value = get(values, key)
    return value if isinstance(value, str) else None


def _without(values: Mapping[str, Any], key: str) -> dict[str, Any]:
    name, _, rest = key.partition(".")
    if not rest:
        return {other: value for other, value in values.items() if other != name}
    return {**values, name: _without(values[name], rest)}


def _equal(value: Any, default: Any) -> bool:
    return bool(value == (list(default) if isinstance(default, tuple) else default))  # TOML has lists, no tuples
