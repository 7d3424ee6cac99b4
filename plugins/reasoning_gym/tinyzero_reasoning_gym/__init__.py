"""The datasets of reasoning-gym as tasks `rg/NAME`: the hooks of the extension.

It imports nothing of reasoning-gym, which takes a second; a single task does, see `family.py`.
"""

from tinyzero_reasoning_gym.names import find_names
from tinyzero_sdk.hookspecs import hookimpl

PREFIX = "rg/"


@hookimpl
def task_names() -> list[str]:
    return [PREFIX + name for name in find_names()]


@hookimpl
def load_family_task(name: str) -> object:
    from tinyzero_reasoning_gym.family import DatasetTask

    return DatasetTask(name.removeprefix(PREFIX))
