"""One configuration from all its sources: defaults <- recipe <- model defaults <- file <- overrides.

The configuration of a resumed run is in resume.py, that of an evaluation in controller/eval_config.py.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tinyzero_sdk.errors import SettingsError
from tinyzero_sdk.settings import build, flatten, format_value, get, merge, parse_overrides, read_toml, unflatten
from tinyzero_sdk.tasks.trust import require_trust, vouch
from tinyzero_trainer.config.model_defaults import is_path, recorded_defaults
from tinyzero_trainer.config.recipes import Recipe, find_recipe
from tinyzero_trainer.config.settings import check_keys, default_settings, drop_unused, refuse_unused, unused_settings
from tinyzero_trainer.config.tasks import with_task_table
from tinyzero_trainer.config.train_config import TrainConfig


@dataclass(frozen=True, slots=True)
class Composition:
    """A configuration and where its settings come from."""

    config: TrainConfig
    recipe: Mapping[str, Any]
    """Settings of the recipe that take effect, by full names."""

    model_defaults: Mapping[str, Any]
    """Settings recorded with the model that take effect and differ from the trainer's defaults, by full names."""


def gather(cls: type, flags: Mapping[str, Any], words: Sequence[str], file: Path | None = None) -> dict[str, Any]:
    """What the user typed for the dataclass `cls`: a TOML file, and on top of it flags and `key=value` words.

    Flags are by the key they stand for, e.g. `{"model.path": "gpt2"}`; None = not given.

    Raises:
        SettingsError: a key is unknown or given twice, or a file cannot be read.
    """
    typed = parse_overrides(words)
    for key, value in flatten(typed):
        if value is None and key.startswith(("task.", "tasks.", "eval.tasks.", "settings.")):  # TOML has no null
            raise SettingsError(f"{key}=none cannot be kept in config.toml; leave it out for the task's own default")
    flagged = {key: value for key, value in flags.items() if value is not None}
    for key, value in flatten(typed):
        if key in flagged:
            raise SettingsError(f"{key} is given twice, as a flag and as {key}={value}; give it once")
    typed = merge(unflatten(flagged), typed)  # the order of --task is that of the tasks
    check_keys(cls, typed)
    _check_homes(typed)
    vouch(typed)
    if file is None:
        return with_task_table(typed)
    content = read_toml(file)
    made_with, recipe = get(content, "run.recipe"), get(typed, "run.recipe")
    if made_with and recipe not in (None, made_with):
        raise SettingsError(
            f"{file} was made with the recipe {made_with}, and a file's settings override a recipe's; give the recipe "
            f"{recipe} without the file, or leave the recipe out"
        )
    check_keys(cls, content, file)
    _check_homes(content)
    require_trust(file, content)
    if not is_of_run(file):
        return with_task_table(merge(content, typed))
    content.get("run", {}).pop("output", None)
    values = with_task_table(merge(content, typed))  # to be repeated elsewhere, with what still has an effect
    return drop_unused(values, typed, cls) if cls is TrainConfig else values


def _check_homes(settings: Mapping[str, Any]) -> None:
    """Raise a SettingsError if a path begins with the home of a user that does not exist, as in `~nobody/model`."""
    for key in ("run.output", "model.path", "model.teacher"):
        if os.path.expanduser(path := text(settings, key) or "").startswith("~"):
            raise SettingsError(f"{key}={path}: {path.split('/')[0]} is no user's home; give the path without it")


def is_of_run(file: Path | None) -> bool:
    """Whether a configuration is one that a run has saved, with defaults that no user typed."""
    return file is not None and (file.parent / "checkpoints").is_dir()


def make_config(overrides: Mapping[str, Any]) -> TrainConfig:
    """The configuration of a new run, as `compose` builds it."""
    return compose(overrides).config


def compose(
    overrides: Mapping[str, Any], model_defaults: Mapping[str, Any] | None = None, *, needs_task: bool = True
) -> Composition:
    """The configuration of a new run.

    Args:
        overrides: what the user set, as a nested mapping.
        model_defaults: settings that suit a model yet to be made; None = those recorded with the model.
        needs_task: reject overrides that name no task.

    Raises:
        SettingsError: what `build` raises, a setting of the user or the recipe without effect, no task, or no model.
    """
    overrides = with_task_table(overrides)
    if not overrides.get("tasks") and (needs_task or overrides.get("task")):
        raise SettingsError("no task is named; give --task, or a table [tasks.NAME] in the file")
    check_models(overrides)
    name = text(overrides, "run.recipe")
    recipe = Recipe() if name is None else find_recipe(name)
    requested = merge(recipe.settings, overrides)
    if model_defaults is None:
        model_defaults = recorded_defaults(text(requested, "model.path"), requested.get("tasks"))
    # A recipe's values for models of full size yield to what suits this model.
    defaults = merge(recipe.full_size, model_defaults)
    values = drop_unused(merge(merge(requested, defaults), requested), requested, TrainConfig)  # in the order requested
    config = build(TrainConfig, values)

    layers = (overrides, recipe.settings, recipe.full_size, values, default_settings(TrainConfig))
    typed, of_recipe, full_size, used, by_default = (dict(flatten(layer)) for layer in layers)
    refuse_unused(config, typed)
    for key, value, reason in unused_settings(config):
        raise SettingsError(
            f"{key}={format_value(value)} of the recipe {name} has no effect: {reason}; "
            f"give {key}={format_value(by_default[key])} too, or leave the recipe out"
        )
    of_model = dict(flatten(model_defaults)).keys() - typed.keys() - of_recipe.keys()
    return Composition(
        config,
        recipe={key: value for key, value in {**full_size, **of_recipe}.items() if used.get(key) == value},
        model_defaults={
            key: value
            for key, value in used.items()
            if key in of_model and format_value(value) != format_value(by_default.get(key))
        },
    )


def check_models(settings: Mapping[str, Any]) -> None:
    """Raise a SettingsError if a model is named by the path of a directory that does not exist."""
    for model in filter(None, (text(settings, key) for key in ("model.path", "model.teacher"))):
        if is_path(model) and not Path(model).expanduser().is_dir():
            raise SettingsError(f"there is no directory {model}; give a model's directory, or its name on the Hub")


def text(values: Mapping[str, Any], key: str) -> str | None:
    """The text that a full name stands for; None for anything else, which `build` rejects."""
    value = get(values, key)
    return value if isinstance(value, str) else None
