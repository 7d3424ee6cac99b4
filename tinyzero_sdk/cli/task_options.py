"""Arguments shared by the commands on one task."""

from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tinyzero_sdk.console import stderr
from tinyzero_sdk.errors import SettingsError
from tinyzero_sdk.tasks.local_packages import is_path

if TYPE_CHECKING:
    from tinyzero_sdk.tasks.task import Task


DATA_ENDINGS = (".jsonl", ".json", ".csv", ".parquet", ".eval")
"""No task or option of one ends like this."""


def complete_task(incomplete: str) -> list[str]:
    """Installed tasks, for the shell."""
    from tinyzero_sdk.tasks.local_packages import GROUP

    return sorted(name for name in entry_points(group=GROUP).names if name.startswith(incomplete))


TaskName = Annotated[
    str | None,
    typer.Option(
        "--task",
        "-t",
        metavar="TASK",
        help="Name of an installed task, or path of one (file or package).",
        show_default=False,
        autocompletion=complete_task,
    ),
]
TaskOverrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="TASK | task.KEY=VALUE",
        help="The task, as --task names it, and options of it; `tinyzero tasks NAME` lists them.",
        show_default=False,
        autocompletion=complete_task,
    ),
]
AllowUnsafe = Annotated[
    bool,
    typer.Option("--allow-unsafe-scorers", help="Run a scorer that is marked as unsafe; see `tinyzero tasks NAME`."),
]
Workers = Annotated[
    int | None, typer.Option("--workers", min=1, metavar="N", help="Worker processes.", show_default="one per core")
]


def named_tasks(words: Sequence[str] | None) -> tuple[list[str], list[str]]:
    """The words that name a task, which have no `=` and unless they are paths no dot, and the others.

    Example:
        >>> named_tasks(["countdown", "task.numbers=[3]", "run.steps", "./my_task.py"])
        (['countdown', './my_task.py'], ['task.numbers=[3]', 'run.steps'])
    """
    names = [word for word in words or () if "=" not in word and ("." not in word or is_path(word))]
    return names, [word for word in words or () if word not in names]


def refuse_further_files(words: Sequence[str] | None, advice: Mapping[str, str], otherwise: str) -> None:
    """Refuse a second data file, as where a shell expands `*.parquet`, with advice by its ending."""
    if files := _data_files(words):
        raise SettingsError(f"got another file, {files[0]}; give one{advice.get(Path(files[0]).suffix, otherwise)}")


def _data_files(words: Sequence[str] | None) -> list[str]:
    return [word for word in words or () if "=" not in word and word.removesuffix(".gz").endswith(DATA_ENDINGS)]


def one_task(task: str | None, words: Sequence[str] | None) -> tuple[str, list[str]]:
    """The task of a command that needs one, whether --task or a word names it, and the other words.

    Raises:
        SettingsError: none is named, or several, or a word names a data file.
    """
    if files := _data_files(words):
        raise SettingsError(f"got the data file {files[0]}; expected a task and options of it, such as task.KEY=VALUE")
    names, overrides = named_tasks(words)
    match [*filter(None, [task]), *names]:
        case [name]:
            return name, overrides
        case []:
            raise SettingsError("no task is named; give its name or the path of its file, such as: --task countdown")
        case several:
            raise SettingsError(f"got the tasks {' and '.join(several)}; give one (options are written task.KEY=VALUE)")


def show_judge(task: "Task") -> None:
    """Say on stderr what the task's judge has spent, if it has one."""
    if task.info.judge is not None:
        stderr.print(f"judge {task.info.judge}", markup=False, soft_wrap=True)
