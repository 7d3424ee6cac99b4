"""Arguments shared by the commands on one task, and their progress bar."""

from typing import TYPE_CHECKING, Annotated

import typer

from tinyzero_sdk.console import stderr

if TYPE_CHECKING:
    from rich.progress import Progress

TaskName = Annotated[
    str, typer.Option("--task", "-t", help="Name of an installed task, or path of one (file or package).")
]
TaskOverrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="task.KEY=VALUE", help="Options of the task; `tinyzero tasks NAME` lists them.", show_default=False
    ),
]
AllowUnsafe = Annotated[
    bool,
    typer.Option("--allow-unsafe-scorers", help="Run a scorer that is marked as unsafe; see `tinyzero tasks NAME`."),
]
Workers = Annotated[
    int | None, typer.Option("--workers", min=1, metavar="N", help="Worker processes.", show_default="one per core")
]


def progress_bar() -> "Progress":
    """A transient progress bar on stderr, where that is a terminal."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    return Progress(*columns, console=stderr, transient=True, disable=not stderr.is_terminal)
