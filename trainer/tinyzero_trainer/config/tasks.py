"""Which tasks a run is made of, with what weights: both ways of saying so, read into one.

One task stands in `run.task`, its options in `task`. Several stand in the table `tasks`, an entry each.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinyzero_sdk.errors import SettingsError
from tinyzero_sdk.settings import unknown_key_message
from tinyzero_sdk.tasks.local_packages import is_path

if TYPE_CHECKING:
    from tinyzero_sdk import Task

ENTRY_KEYS = ("task", "weight", "options")


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """One task of a run."""

    name: str
    """What the run calls it, in names of metrics too; empty = what it calls itself."""

    task: str
    """Name of an installed task, or the path of a task file."""

    weight: float
    """Its share of the problems, beside the other tasks' weights."""

    options: Mapping[str, Any]
    """The task's own options."""

    @property
    def title(self) -> str:
        """What to call it where it has not been loaded."""
        return self.name or title_of(self.task)


def title_of(task: str) -> str:
    """What a task that has not been loaded is called: the last part of its name or path."""
    return Path(task).stem


def read_task_specs(task: str, options: Mapping[str, Any], tasks: Mapping[str, Any]) -> tuple[TaskSpec, ...]:
    """The tasks of a configuration; empty if it names none.

    Args:
        task: `run.task`, the only task.
        options: its options.
        tasks: the table of several tasks.

    Raises:
        ValueError: both are given, or an entry is not what it must be.

    Example:
        >>> read_task_specs("", {}, {"countdown": {"weight": 2}, "multiply": {}})[0].weight
        2.0
    """
    if not tasks:
        return (TaskSpec("", task, 1.0, options),) if task else ()
    if task:
        raise ValueError(
            f"run.task={task!r} and tasks ({', '.join(tasks)}) are both given; with one task write its options as "
            "task.KEY=…, with several name all of them in tasks (or with a --task each)"
        )
    if options:
        key, name = next(iter(options)), next(iter(tasks))
        raise ValueError(f"task.{key} has no effect with tasks; write tasks.{name}.options.{key}")
    shares = tuple(_read_entry(name, entry) for name, entry in tasks.items())
    if len(shares) == 1 and shares[0].weight != 1:
        raise ValueError(
            f"tasks.{shares[0].name}.weight={shares[0].weight:g} has no effect: there is no other task; leave it out"
        )
    return shares


def identity(task: str) -> str:
    """What tells one task from another: an installed one's name, or where a file is."""
    return str(Path(task).resolve()) if is_path(task) else task


def same_task(task: str, other: str) -> bool:
    """Whether two names or paths are of one task."""
    return identity(task) == identity(other)


def whole_entries(shares: Sequence[TaskSpec]) -> dict[str, Any]:
    """The table `tasks` of these, with nothing left to defaults: equal settings are written alike."""
    return {
        share.name: {"task": share.task, "weight": share.weight, "options": dict(share.options)}
        for share in shares
        if share.name
    }


def flag_settings(tasks: Sequence[str]) -> dict[str, Any]:
    """What `--task` says, once or several times, by the keys it stands for.

    Raises:
        SettingsError: a weight is no number, or a task is named twice.

    Example:
        >>> flag_settings(["countdown"]), flag_settings(["rg/chain_sum:2", "multiply"])
        ({'run.task': 'countdown'}, {'tasks.chain_sum.task': 'rg/chain_sum', 'tasks.chain_sum.weight': 2.0, \
'tasks.multiply.task': 'multiply'})
    """
    parsed = [_parse_flag(text) for text in tasks]
    if len(parsed) == 1 and parsed[0][1] is None:
        return {"run.task": parsed[0][0]}
    settings: dict[str, Any] = {}
    for task, weight in parsed:
        name = _entry_name(task)
        if f"tasks.{name}.task" in settings:
            raise SettingsError(
                f"two of --task would be called {name!r}; name them apart in a file, "
                f"as [tasks.NAME] with task = {task!r}"
            )
        settings[f"tasks.{name}.task"] = task
        if weight is not None:
            settings[f"tasks.{name}.weight"] = weight
    return settings


def load_tasks(
    shares: Sequence[TaskSpec], *, wrappers: Sequence[str] = (), allow_unsafe_scorers: bool = False
) -> dict[str, "Task"]:
    """Load the tasks; the keys are what the run calls them.

    Args:
        shares: of the configuration.
        wrappers: names of score wrappers to put around each, innermost first.
        allow_unsafe_scorers: see `tinyzero_sdk.load_task`.

    Raises:
        TinyZeroError: as `load_task`.
    """
    from tinyzero_sdk import load_task

    tasks = {}
    for share in shares:
        try:
            task = load_task(
                share.task, options=share.options, wrappers=wrappers, allow_unsafe_scorers=allow_unsafe_scorers
            )
        except SettingsError as error:
            # `load_task` knows options by the name that they have where there is one task.
            place = f"tasks.{share.name}.options." if share.name else "task."
            raise SettingsError(re.sub(r"\btask\.(?=\w)", place, str(error))) from error
        tasks[share.name or task.name] = task
    return tasks


def _read_entry(name: str, entry: Any) -> TaskSpec:
    place = f"tasks.{name}"
    if not name or "." in name:
        raise ValueError(f"tasks: got the name {name!r}, expected one without dots; a file goes into its key `task`")
    _expect(isinstance(entry, Mapping), place, entry, f"a table, such as {place}.weight=2")
    for key in entry:
        if key not in ENTRY_KEYS:
            raise ValueError(unknown_key_message(f"{place}.{key}", [f"{place}.{known}" for known in ENTRY_KEYS]))
    task, weight, options = entry.get("task", name), entry.get("weight", 1), entry.get("options", {})
    is_number = isinstance(weight, int | float) and not isinstance(weight, bool)
    _expect(isinstance(task, str) and task, f"{place}.task", task, "the name of a task or the path of its file")
    _expect(is_number and 0 < weight < math.inf, f"{place}.weight", weight, "a number above 0, such as 2")
    _expect(isinstance(options, Mapping), f"{place}.options", options, f"a table, such as {place}.options.KEY=…")
    return TaskSpec(name, task, float(weight), options)


def _expect(fine: object, key: str, value: object, expected: str) -> None:
    if not fine:
        raise ValueError(f"{key}: got {value!r}, expected {expected}")


def _parse_flag(text: str) -> tuple[str, float | None]:
    """The task and its weight, if one is given."""
    task, colon, number = text.rpartition(":")
    if not colon or (is_path(text) and number.endswith(".py")):
        return text, None
    try:
        return task, float(number)
    except ValueError:
        raise SettingsError(f"--task {text}: got the weight {number!r}, expected TASK or TASK:WEIGHT") from None


def _entry_name(task: str) -> str:
    """A name for the entry that can be typed in `tasks.NAME.options.KEY=…`."""
    name = "".join(letter if letter.isalnum() else "_" for letter in Path(task).stem)
    return name if name.isidentifier() else f"_{name}"
