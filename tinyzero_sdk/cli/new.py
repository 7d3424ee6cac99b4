"""`tinyzero new`: write the package of a new task."""

import shlex
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from tinyzero_sdk.console import stdout


def new(
    name: Annotated[str, typer.Argument(help="Name of the task, such as my-task.", show_default=False)],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="DIR", help="New directory for the package.", show_default="NAME"),
    ] = None,
    from_file: Annotated[
        Path | None,
        typer.Option("--from-file", metavar="FILE.py", help="Task file to package.", show_default="an example"),
    ] = None,
) -> None:
    """Write the package of a new task: a working example to edit.

    It installs, passes `tinyzero check`, and trains.
    """
    from tinyzero_sdk.scaffold.package import write_package

    directory = output or Path(name)
    written = write_package(name, directory, task_file=from_file)
    source = f"with {from_file} in it" if from_file else "an example for you to edit"
    lines = [f"wrote the package of {name}, {source}:", *(f"  {path}" for path in written)]
    lines += ["next:", *(f"  {command}" for command in next_commands(name, directory))]
    stdout.print(Text("\n".join(lines)), soft_wrap=True)  # Text, not markup: a path may contain [brackets]


def next_commands(name: str, directory: Path) -> list[str]:
    place = str(directory) if directory.is_absolute() else f"./{directory}"
    return [
        f"pip install -e {shlex.quote(place)}",
        f"tinyzero check {name}",
        f"tinyzero warmstart --task {name} --output start",
        f"tinyzero train --task {name} --model start",
    ]
