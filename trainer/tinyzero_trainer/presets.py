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
    from tinyzero_sdk.settings import read_toml

    path = model / PRESET_FILE
    if not path.exists():
        return {}
    content = read_toml(path)
    settings: dict[str, Any] = content["settings"]
    name = Path(task).stem if task.endswith(".py") else task
    return settings if content["task"] == name else {key: value for key, value in settings.items() if key != "task"}
