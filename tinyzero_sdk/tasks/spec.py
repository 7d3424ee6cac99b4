"""Load a task from what a user types: `countdown task.reward=tinyzero`."""

import shlex
from collections.abc import Sequence

from tinyzero_sdk.errors import SettingsError
from tinyzero_sdk.settings import parse_overrides, unknown_key_message
from tinyzero_sdk.tasks.registry import load_task
from tinyzero_sdk.tasks.task import Task


def load_task_with_overrides(
    name: str, overrides: Sequence[str] | None, *, wrappers: Sequence[str] = (), allow_unsafe_scorers: bool = False
) -> Task:
    """The task with its options from `task.KEY=VALUE` overrides, inside score wrappers (innermost first).

    Raises:
        SettingsError: an override is not of this form.
        TinyZeroError: as `load_task`.
    """
    tree = parse_overrides(overrides or ())
    options = tree.pop("task", {})
    if tree or not isinstance(options, dict):
        raise SettingsError(unknown_key_message(next(iter(tree), "task"), ["task.KEY"]))
    return load_task(name, options=options, wrappers=wrappers, allow_unsafe_scorers=allow_unsafe_scorers)


def load_task_from_line(line: str, *, allow_unsafe_scorers: bool = False) -> Task:
    """The task of a line such as `countdown task.reward=tinyzero`, quoted as in a shell.

    Raises:
        SettingsError: the line names no task, or has something else than options after it.
        TinyZeroError: as `load_task`.
    """
    try:
        name, *overrides = shlex.split(line)
    except ValueError as error:
        expected = "expected the name of a task or the path of its file, and its options as task.KEY=VALUE"
        raise SettingsError(f"got the task {line!r} ({error}); {expected}") from None
    return load_task_with_overrides(name, overrides, allow_unsafe_scorers=allow_unsafe_scorers)
