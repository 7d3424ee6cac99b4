"""The tiny model that comes with the trainer, and the settings recorded with a model. No torch in here.

A model directory may hold `tinyzero.toml`, written by supervised fine-tuning: a table `warmed_on` for each task, with
its options, and the settings under which the model learns. They rank below the user's own.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tinyzero_sdk.settings import merge, read_toml
from tinyzero_sdk.tasks.trust import require_trust
from tinyzero_trainer.config.tasks import identity, task_of

BUILT_IN_MODEL = Path(__file__).parent.parent / "tiny_model"
TINY_MODEL = "the tiny model that comes with the trainer"
"""Its name in messages."""

TINY_NAME = "tiny"
"""`model.path` of it; on a GPU none means the default model (sft/default_model.py)."""

PRESET_FILE = "tinyzero.toml"


def recorded_defaults(model: str | None, tasks: Any) -> dict[str, Any]:
    """Settings recorded with a `model.path`, and the options of those tasks (still unchecked) it was trained on."""
    content = _read(directory_of(model))
    recorded, options = content["settings"], {warmed["task"]: warmed["options"] for warmed in content["warmed_on"]}
    for name, entry in tasks.items() if isinstance(tasks, Mapping) else ():
        if own := options.get(identity(task_of(name, entry))):
            recorded = merge(recorded, {"tasks": {name: {"options": own}}})
    return recorded


def other_task(task: str, model: Path | None = None) -> str | None:
    """The tasks that a model (None = the tiny one) was warm-started on, unless `task` is among them."""
    warmed_on = [warmed["task"] for warmed in _read(model)["warmed_on"]]
    return " and ".join(warmed_on) if warmed_on and identity(task) not in warmed_on else None


def directory_of(path: str | None) -> Path | None:
    """The directory, or the name on the Hub, that a `model.path` stands for; None = the tiny model."""
    return None if path in (None, TINY_NAME) else Path(path)


def is_path(model: str) -> bool:
    """Whether a `model.path` can only be a directory: a name on the Hub has at most one slash, inside."""
    return model.startswith((".", "/", "~")) or model.count("/") > 1


def recorded_content(options: Mapping[str, Mapping[str, Any]], settings: Mapping[str, Any]) -> dict[str, Any]:
    """What a warm start writes: the options of each task, by its name or file, and defaults for training the model."""
    tables = [{"task": identity(task), "options": dict(own)} for task, own in options.items()]
    return {"warmed_on": tables, "settings": dict(settings)}


def _read(model: Path | None) -> dict[str, Any]:
    path = (model or BUILT_IN_MODEL) / PRESET_FILE
    content = {"settings": {}, "warmed_on": [], **(read_toml(path) if path.exists() else {})}
    require_trust(path, content["settings"])
    return content
