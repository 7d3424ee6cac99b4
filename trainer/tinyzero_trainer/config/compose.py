"""From flags, `key=value` words and TOML files to the configuration of a new run.

What the keys mean is in config/, and what stands below the user's own settings in compose.py. The configuration of a
run that goes on is in resume.py, that of an evaluation in controller/eval_config.py.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tinyzero_sdk.errors import SettingsError
from tinyzero_sdk.settings import (
    TABLE,
    build,
    check_keys,
    describe,
    flatten,
    format_value,
    get,
    merge,
    parse_overrides,
    read_toml,
    unflatten,
)
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.config.layers import Layers, idle_settings, put_together, text, with_defaults


def gather(cls: type, flags: Mapping[str, Any], words: Sequence[str], file: Path | None = None) -> dict[str, Any]:
    """What the user said, as a nested mapping: the file, and on top of it the words and flags.

    Args:
        cls: the configuration's dataclass.
        flags: by the key they stand for, e.g. `{"run.task": "countdown"}`; None = not given.
        words: `key=value` words.
        file: a TOML file, or None.

    Raises:
        SettingsError: a key is unknown, or given twice, or a file cannot be read.
    """
    said = parse_overrides(words)
    given, flagged = dict(flatten(said)), dict[str, Any]()
    for key, value in flags.items():
        if value is None:
            continue
        if key in given:
            raise SettingsError(f"{key} is given twice, as a flag and as {key}={given[key]}; give it once")
        flagged = merge(flagged, unflatten({key: value}))
    said = merge(flagged, said)  # the order of --task is that of the tasks
    check_keys(cls, said, in_help=True)
    _refuse_none(cls, said)
    if file is None:
        return said
    content = read_toml(file)
    if (made_with := get(content, "run.recipe")) and get(said, "run.recipe") not in (None, made_with):
        raise SettingsError(
            f"{file} is of the recipe {made_with}, and a file's settings stand above a recipe's; take the recipe "
            f"{get(said, 'run.recipe')} without it, or leave that out"
        )
    try:
        check_keys(cls, content, in_help=True)
    except SettingsError as error:
        raise SettingsError(f"{file}: {error}") from error
    return merge(content, said)


def _refuse_none(cls: type, said: Mapping[str, Any]) -> None:
    """TOML has no null, so that none cannot be kept in a table of its own."""
    tables = {field.key for field in describe(cls) if field.type == TABLE}
    for key, value in flatten(said):
        if value is None and key not in tables and key.partition(".")[0] in tables:
            raise SettingsError(f"{key}=none cannot be kept in config.toml; leave it out for the task's own default")


def make_config(values: Mapping[str, Any]) -> TrainConfig:
    """A configuration from a nested mapping, on top of its recipe and what suits the model.

    Raises:
        SettingsError: an unknown key, a wrong type, an impossible combination, no task, or a model that is not there.

    Example:
        >>> make_config({"run": {"task": "countdown"}, "model": {"path": "gpt2"}}).model.path
        'gpt2'
    """
    return resolve(values)[0]


def resolve(values: Mapping[str, Any], preset: Mapping[str, Any] | None = None) -> tuple[TrainConfig, Layers]:
    """As `make_config`, and the layers that the configuration is of.

    Args:
        values: a nested mapping.
        preset: what suits a model that is yet to be made; None = what was recorded with the model.

    Raises:
        SettingsError: as `make_config`.
    """
    if not get(values, "run.task") and not values.get("tasks"):
        raise SettingsError("no task is named; give --task, or run.task in the file")
    refuse_missing_directory(text(values, "model.path"))
    layers = put_together(values, preset)
    return build_layers(layers, values), layers


def build_layers(layers: Layers, said: Mapping[str, Any]) -> TrainConfig:
    """The configuration of some layers.

    Raises:
        SettingsError: as `build`; if a setting of the recipe has no effect under what was said, that is told.
    """
    if layers.recipe is not None:
        said_keys, idle = dict(flatten(said)).keys(), idle_settings(layers.values)
        defaults = dict(flatten(with_defaults({})))
        for key, value in flatten(layers.recipe.settings):
            if key in idle and key not in said_keys and value != defaults.get(key):
                raise SettingsError(
                    f"{key}={format_value(value)} of the recipe {layers.recipe.name} has no effect: {idle[key]}; "
                    f"give {key}={format_value(defaults.get(key))} too, or do without the recipe"
                )
    return build(TrainConfig, layers.values)


def refuse_missing_directory(model: str | None) -> None:
    """A name on the Hub has at most one slash, inside; what is written otherwise must be a directory here.

    Raises:
        SettingsError: it is not.
    """
    if model is None or not (model.startswith((".", "/", "~")) or model.count("/") > 1):
        return
    if not Path(model).is_dir():
        raise SettingsError(f"there is no directory {model}; give a model's directory, or its name on the Hub")
