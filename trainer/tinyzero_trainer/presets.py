"""The tiny model that comes with the trainer, and the settings that suit it. No torch in here.

A model directory may hold `tinyzero.toml`, written by a warm start: the task it was warm-started on, and the
settings under which it learns. They stand below the user's own.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

BUILT_IN_MODEL = Path(__file__).parent / "tiny_model"
PRESET_FILE = "tinyzero.toml"


def preset(task: str, model: Path = BUILT_IN_MODEL) -> Mapping[str, Any]:
    """Settings for training `model` on `task` (a name or a file); the task's own only if it was warm-started on it."""
    content = _read(model)
    settings: dict[str, Any] = content["settings"]
    if content["task"] == identity(task):
        return settings
    return {key: value for key, value in settings.items() if key != "task"}


def other_task(task: str, model: Path = BUILT_IN_MODEL) -> str | None:
    """The task that `model` was warm-started on, if that is another than `task`."""
    warmed_on = _read(model)["task"]
    return warmed_on if warmed_on not in (None, identity(task)) else None


def _read(model: Path) -> dict[str, Any]:
    from tinyzero_sdk.settings import read_toml

    path = model / PRESET_FILE
    return read_toml(path) if path.exists() else {"task": None, "settings": {}}


def identity(task: str) -> str:
    """What tells one task from another: an installed one's name, or where a file is."""
    return str(Path(task).resolve()) if task.endswith(".py") else task
