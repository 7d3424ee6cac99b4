"""What the commands on one task share: `--task`, `task.KEY=VALUE` words for its options, and a progress bar."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from tinyzero_sdk.cli.output import stderr
from tinyzero_sdk.errors import SettingsError
from tinyzero_sdk.host import load_task
from tinyzero_sdk.settings import parse_words, unknown_key_message
from tinyzero_sdk.task import Task

if TYPE_CHECKING:
    from rich.progress import Progress

TaskName = Annotated[str, typer.Option("--task", "-t", help="Name of an installed task, or path of a task file.")]
TaskWords = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="task.KEY=VALUE",
        help="Options of the task; `tinyzero tasks NAME` lists them.",
        show_default=False,
    ),
]
AllowUnsafe = Annotated[
    bool,
    typer.Option(
        "--allow-unsafe-scorers", help="Run a scorer that evaluates a model's text (`tinyzero tasks NAME` says which)."
    ),
]
Workers = Annotated[int | None, typer.Option("--workers", min=1, help="Worker processes.", show_default="one per core")]


def open_task(name: str, words: Sequence[str] | None, *, allow_unsafe_scorers: bool = False) -> Task:
    """The task, with its options from `task.KEY=VALUE` words."""
    tree = parse_words(words or ())
    options = tree.pop("task", {})
    if tree or not isinstance(options, dict):
        raise SettingsError(unknown_key_message(next(iter(tree), "task"), ["task.KEY"]))
    return load_task(name, options=options, allow_unsafe_scorers=allow_unsafe_scorers)


def progress_bar() -> "Progress":
    """A bar on stderr, where that is a terminal, which goes away in the end."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    return Progress(*columns, console=stderr, transient=True, disable=not stderr.is_terminal)
