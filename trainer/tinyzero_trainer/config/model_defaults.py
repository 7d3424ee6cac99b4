"""The tiny model that comes with the trainer, and the settings that suit it. No torch in here.

A model directory may hold `tinyzero.toml`, written by a warm start: the task it was warm-started on, and the
settings under which it learns; after a warm start on several tasks a table `warmed_on` for each, with its options.
They stand below the user's own.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tinyzero_sdk.settings import merge, read_toml
from tinyzero_trainer.config.renamed_keys import with_new_names
from tinyzero_trainer.config.tasks import identity

BUILT_IN_MODEL = Path(__file__).parent.parent / "tiny_model"
TINY_MODEL = "the tiny model that comes with the trainer"
"""What it is called where a model's name is shown."""

TINY_NAME = "tiny"
"""`model.path` of it, where that must be said: on a GPU none means a model of one's own (sft/default_model.py)."""

PRESET_FILE = "tinyzero.toml"


def model_defaults_for(task: str, model: Path | None = None) -> Mapping[str, Any]:
    """Settings for training a model on a task, the task's own only if it was warm-started on that.

    Args:
        task: a name or a file.
        model: its directory; none = the tiny model.
    """
    content = _read(model)
    settings = {key: value for key, value in content["settings"].items() if key != "task"}
    options = _warmed_on(content).get(identity(task))
    return settings if options is None else {"task": options, **settings}


def recorded_defaults(model: str | None, task: str | None, tasks: Any) -> dict[str, Any]:
    """Settings recorded with a model for the tasks of a run, in whose entries their options are put.

    Args:
        model: `model.path`.
        task: `run.task`.
        tasks: the table `tasks`, not yet checked.
    """
    directory = directory_of(model)
    if not isinstance(tasks, Mapping) or not tasks:
        return dict(model_defaults_for(task or "", directory))
    recorded: dict[str, Any] = {}
    for name, entry in tasks.items():
        named = entry.get("task", name) if isinstance(entry, Mapping) else name
        settings = dict(model_defaults_for(named if isinstance(named, str) else name, directory))
        options = settings.pop("task", {})
        recorded = merge(recorded, settings | {"tasks": {name: {"options": options}}})
    return recorded


def other_task(task: str, model: Path | None = None) -> str | None:
    """What a model (none = the tiny one) was warm-started on, if that is anything but `task`."""
    warmed_on = _warmed_on(_read(model))
    return " and ".join(warmed_on) if warmed_on and identity(task) not in warmed_on else None


def directory_of(path: str | None) -> Path | None:
    """The directory, or the name on the Hub, that a `model.path` stands for; None = the tiny model."""
    return None if path in (None, TINY_NAME) else Path(path)


def recorded_content(options: Mapping[str, Mapping[str, Any]], settings: Mapping[str, Any]) -> dict[str, Any]:
    """What a warm start writes.

    Args:
        options: of each task it was made for, by its name or file.
        settings: what training on from the model should start with.
    """
    if len(options) == 1:
        ((task, own),) = options.items()
        return {"task": identity(task), "settings": {"task": dict(own), **settings}}
    tables = [{"task": identity(task), "options": dict(own)} for task, own in options.items()]
    return {"warmed_on": tables, "settings": dict(settings)}


def _warmed_on(content: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The options of each task that a warm start was made for, by its identity."""
    several = {entry["task"]: entry["options"] for entry in content.get("warmed_on", ())}
    return several or ({content["task"]: content["settings"].get("task", {})} if content.get("task") else {})


def _read(model: Path | None) -> dict[str, Any]:
    path = (model or BUILT_IN_MODEL) / PRESET_FILE
    content = read_toml(path) if path.exists() else {"settings": {}}
    return {**content, "settings": with_new_names(content["settings"])}
