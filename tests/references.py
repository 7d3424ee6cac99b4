"""The pages of docs/reference that are generated from code; `python -m tests.references` writes them."""

import inspect
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import typer

from tinyzero_sdk.cli.app import build_app
from tinyzero_sdk.settings import TABLE, Field, describe, format_value
from tinyzero_trainer.config import SftConfig, TrainConfig
from tinyzero_trainer.config.help import groups
from tinyzero_trainer.config.settings import resumable
from tinyzero_trainer.config.sft import SHARED_GROUPS

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


def configuration() -> str:
    """The text of docs/reference/configuration.md."""
    lines = [
        "# Configuration",
        "",
        "Every key of `tinyzero train`, as `key=value` on the command line or in a TOML file (`--config FILE`).",
        "Later sources override earlier ones: the defaults below, the model's defaults (recorded by a warm start), the",
        "recipe (`--recipe`), the file, the command line. A recipe's settings for models of full size rank below the",
        "model's defaults. The result is saved in the run directory, and `--config RUN/config.toml` repeats",
        "the run in another directory.",
        "",
        "`tinyzero train --help WORD` lists the keys with that word in their name or text.",
        "Keys marked ↻ may be changed with `--resume`: they affect speed, memory and records, not what is "
        "learned, or cure what ends a run under way.",
        "(This page is generated from the configuration's docstrings; a test compares them.)",
    ]
    lines += _tables(TrainConfig, groups(TrainConfig))
    lines += [
        "",
        "# Supervised fine-tuning",
        "",
        "`tinyzero sft` and its preset `tinyzero warmstart` have the keys above of the groups",
        f"{', '.join(SHARED_GROUPS)}, and these, which are their own or have other defaults.",
    ]
    general = {field.key: field for field in describe(TrainConfig)}
    own = (
        (group, about, [field for field in fields if field != general.get(field.key)])
        for group, about, fields in groups(SftConfig)
    )
    lines += _tables(SftConfig, ((group, about, fields) for group, about, fields in own if fields))
    return "\n".join(lines) + "\n"


def _tables(cls: type, groups: Iterable[tuple[str, str, list[Field]]]) -> list[str]:
    """Lines of Markdown: a heading and a table for each group."""
    lines = []
    for group, about, fields in groups:
        lines += [
            "",
            f"## {group}",
            "",
            *([about, ""] if about else []),
            "| key | default | type | |",
            "|---|---|---|---|",
        ]
        for field in fields:
            key = f"`{field.key}.…`" if field.type == TABLE else f"`{field.key}`"
            mark = " ↻" if field.key in resumable(cls) else ""
            default = "" if field.type == TABLE else f"`{format_value(field.default)}`"
            cells = [key + mark, default, field.type, field.help]
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return lines


PAGES = {"commands.md": commands, "configuration.md": configuration}

if __name__ == "__main__":
    for page, text in PAGES.items():
        (FOLDER / page).write_text(text(), encoding="utf-8")
