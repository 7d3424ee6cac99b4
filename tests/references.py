"""The pages of docs/reference that are generated from code; `python -m tests.references` writes them."""

import inspect
from pathlib import Path
from typing import Any

import typer

from tinyzero_sdk.cli.app import build_app
from tinyzero_trainer.config import help as keys

FOLDER = Path(__file__).parents[1] / "docs/reference"


def commands() -> str:
    """The text of docs/reference/commands.md."""
    group = typer.main.get_command(build_app())
    lines = ["# Commands", "", group.help, group.epilog, "(This page is generated from the commands' help.)"]
    for name, command in sorted(group.commands.items()):
        lines += ["", f"## {name}", "", inspect.cleandoc(command.help), "", "| | default | |", "|---|---|---|"]
        lines += map(_row, (parameter for parameter in command.params if parameter.name != "help"))
    return "\n".join(lines) + "\n"


def _row(parameter: Any) -> str:  # an option or argument of click or of typer's own copy, by typer's version
    """A row of a command's table: the option or argument, its default, and its help."""
    is_option, default = hasattr(parameter, "is_flag"), parameter.default
    names = ", ".join([*parameter.opts, *parameter.secondary_opts]) if is_option else ""
    value = "" if is_option and parameter.is_flag else parameter.metavar or parameter.name.upper()
    shown = parameter.show_default if isinstance(parameter.show_default, str) else default
    cells = f"`{names} {value}`".replace("` ", "`").replace(" `", "`"), "" if shown in (None, False) else str(shown)
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in (*cells, parameter.help or "")) + " |"


PAGES = {"commands.md": commands, "configuration.md": keys.markdown}

if __name__ == "__main__":
    for page, text in PAGES.items():
        (FOLDER / page).write_text(text(), encoding="utf-8")
