"""The tasks of a run: the table `tasks`, an entry each, and the short way of writing a single one.

`--task countdown task.numbers=[3]` stands for `[tasks.countdown]` with `options.numbers = [3]`; a configuration, and so
a saved config.toml, holds the table only.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tinyzero_sdk.errors import SettingsError
from tinyzero_sdk.settings import build, get, merge
from tinyzero_sdk.tasks.local_packages import is_path
from tinyzero_trainer.utils.bounds import PositiveFloat

if TYPE_CHECKING:
    from tinyzero_sdk import Task
    from tinyzero_trainer.config.rollout import DataConfig


@dataclass(frozen=True, slots=True)
class TaskSpec:
    """One task of a run, and its entry in the table `tasks` or `eval.tasks`."""

    name: str
    """What the run calls it, in names of metrics too."""

    task: str
    """Name of an installed task, or the path of a task file."""

    weight: PositiveFloat = 1.0
    """Its fraction of the problems, relative to the other tasks' weights."""

    options: dict[str, Any] = field(default_factory=dict)
    """The task's own options."""


def with_task_table(values: Mapping[str, Any]) -> dict[str, Any]:
    """`values` with `run.task` and `task.KEY`, the short way of writing one task, in the table `tasks`.

    Options stay where they are if no task is named, since a saved run may name it.

    Example:
        >>> with_task_table({"run": {"task": "countdown"}, "task": {"numbers": [3]}})
        {'tasks': {'countdown': {'task': 'countdown', 'options': {'numbers': [3]}}}}
    """
    task, options, tasks = get(values, "run.task"), values.get("task"), values.get("tasks")
    if not (task or options) or not isinstance(tasks or {}, Mapping):
        return {name: group for name, group in values.items() if name != "task" or group}
    if task and not isinstance(task, str):
        raise SettingsError(f"run.task: got {task!r}, expected the name of a task or the path of its file")
    if not tasks and not task:
        return dict(values)
    # Where the table names none, the task has the name that it gives itself.
    tasks = tasks or {name_of(task): {"task": task}}
    name, entry = next(iter(tasks.items()))
    if task and (len(tasks) > 1 or identity(task) != identity(task_of(name, entry))):
        raise SettingsError(
            f"run.task={task!r} and tasks ({', '.join(tasks)}) are both given; with one task write its options as "
            "task.KEY=…, with several name all of them in tasks (or with a --task each)"
        )
    if options and len(tasks) > 1:
        key = next(iter(options))
        raise SettingsError(f"task.{key} is ambiguous with several tasks; write tasks.{name}.options.{key}")
    rest = {group: settings for group, settings in values.items() if group != "task"}
    if task:
        rest["run"] = {key: value for key, value in values["run"].items() if key != "task"}
    rest = {group: settings for group, settings in rest.items() if settings or group != "run"}
    return merge(rest, {"tasks": merge(tasks, {name: {"options": options}}) if options else tasks})


def name_of(task: str) -> str:
    """What a run calls a task that is not named otherwise."""
    return (Path(task).stem if is_path(task) else task).replace(".", "_")


def read_task_specs(tasks: Mapping[str, Any], table: Literal["tasks", "eval.tasks"] = "tasks") -> tuple[TaskSpec, ...]:
    """The tasks of a table; a ValueError or SettingsError if one is impossible."""
    specs = []
    for name, values in tasks.items():
        if not name or "." in name:
            raise ValueError(f"{table}: got the name {name!r}, expected one without dots; a file goes into its `task`")
        if not isinstance(values, Mapping):
            raise SettingsError(f"{table}.{name}: got {values!r}, expected a table, with {name}.options.KEY=…")
        for key in values.keys() & ({"name"} if table == "tasks" else {"name", "weight"}):
            raise ValueError(f"{table}.{name}.{key} has no effect; leave it out")
        specs.append(build(TaskSpec, {"name": name, "task": name, **values}, f"{table}.{name}."))
    if len(specs) == 1 and specs[0].weight != 1:
        raise ValueError(
            f"tasks.{specs[0].name}.weight={specs[0].weight:g} has no effect: there is no other task; leave it out"
        )
    return tuple(specs)


def identity(task: str) -> str:
    """What tells one task from another: an installed one's name, or where a file is."""
    return str(Path(task).resolve()) if is_path(task) else task


def task_of(name: str, entry: Any) -> str:
    """The task of an entry that has not been checked."""
    value = entry.get("task") if isinstance(entry, Mapping) else None
    return value if isinstance(value, str) else name


def complete_table(specs: Sequence[TaskSpec], keys: Sequence[str] = ("task", "weight", "options")) -> dict[str, Any]:
    """The table of these, with every default written out: equal settings are written alike."""
    return {spec.name: {key: getattr(spec, key) for key in keys} for spec in specs}


def load_tasks(
    specs: Sequence[TaskSpec],
    data: "DataConfig | None" = None,
    *,
    wrappers: Sequence[str] = (),
    allow_unsafe_scorers: bool = False,
    table: Literal["tasks", "eval.tasks"] = "tasks",
) -> Mapping[str, "Task"]:
    """The tasks by what the run calls them, with the problems of `data.path`, if it names any.

    The options and errors are those of `tinyzero_sdk.load_task`, and `load_file_tasks`.
    """
    from tinyzero_sdk import load_task

    tasks: dict[str, Task] = {}
    for spec in specs:
        try:
            tasks[spec.name] = load_task(
                spec.task, options=spec.options, wrappers=wrappers, allow_unsafe_scorers=allow_unsafe_scorers
            )
        except SettingsError as error:
            if len(specs) == 1 and table == "tasks":
                raise
            raise SettingsError(re.sub(r"\btask\.(?=\w)", f"{table}.{spec.name}.options.", str(error))) from error
    if data is None or (data.path or data.test_path) is None:
        return tasks
    from tinyzero_sdk.data.file_task import load_file_tasks

    return load_file_tasks(tasks, data.path, data.test_path, data.test_fraction, data.columns)


def refuse_unused(tasks: Mapping[str, "Task"], typed: Mapping[str, Any]) -> None:
    """Refuse what the user set of `data` where splits or prompts of the tasks' data leave it without effect."""
    from tinyzero_sdk.tasks.splits import check_test_fraction

    fraction, template = (get(typed, f"data.{name}") for name in ("test_fraction", "prompt_template"))
    if fraction is not None and all(task.has_own_splits for task in tasks.values()):
        for task in tasks.values():
            check_test_fraction(task, fraction)
    if tasks and template is not None and not any(task.makes_prompts for task in tasks.values()):
        raise SettingsError(
            f"data.prompt_template={template!r} has no effect: the rows of data.path have their own prompts"
        )
