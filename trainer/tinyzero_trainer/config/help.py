"""Help generated from the configuration: the panels of keys under --help, and docs/reference/configuration.md."""

import inspect
import typing
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import is_dataclass
from typing import TYPE_CHECKING

from tinyzero_sdk.errors import SettingsError
from tinyzero_sdk.settings import TABLE, Field, describe, format_value
from tinyzero_trainer.config.foreign_keys import foreign_names
from tinyzero_trainer.config.settings import resumable
from tinyzero_trainer.config.sft import SHARED_GROUPS, SftConfig
from tinyzero_trainer.config.train_config import TrainConfig

if TYPE_CHECKING:
    from rich.console import RenderableType


def find_keys(cls: type, words: Sequence[str]) -> list[str]:
    """The keys of `cls` with all of the words in their name, type, text, or name in another trainer.

    Raises:
        SettingsError: there is none.
    """
    foreign, lowered = foreign_names(cls), [word.casefold() for word in words]
    texts = {field.key: f"{field.key} {field.type} {field.help}".casefold() for field in describe(cls)}
    texts = {key: " ".join([text, *foreign.get(key, ())]) for key, text in texts.items()}
    matching = [key for key, text in texts.items() if all(word in text for word in lowered)]
    if not matching:
        raise SettingsError(f"no key has {' and '.join(words)} in its name or text; --help alone lists all keys")
    return matching


def key_help(cls: type, only: Sequence[str] = ()) -> Iterator["RenderableType"]:
    """A panel for each group of keys of `cls`, or of `only` some, in the style of the command line's own."""
    from rich import box
    from rich.markup import escape
    from rich.panel import Panel
    from rich.table import Table

    width = max(len(field.key) for field in describe(cls)) + 1  # so that no key is broken
    for group, about, fields in _groups(cls):
        fields = [field for field in fields if not only or field.key in only]
        if not fields:
            continue
        table = Table(box=box.SIMPLE, show_header=False, show_edge=False, pad_edge=False, padding=(0, 1), expand=True)
        table.add_column(width=width, overflow="fold")
        table.add_column(ratio=1)
        for field in fields:
            if field.type == TABLE:
                table.add_row(f"[bold cyan]{field.key}[/][dim].KEY=…[/]", escape(field.help))
                continue
            key = f"[bold cyan]{field.key}[/][dim]={escape(format_value(field.default))}[/]"
            unbroken = escape(field.type.replace(" ", "\N{NO-BREAK SPACE}"))
            table.add_row(key, f"{escape(field.help)} [dim]\\[{unbroken}][/]")
        title = f"{group}: {about.splitlines()[0].rstrip('.')}" if about else group
        yield Panel(table, title=escape(title), title_align="left", border_style="dim")


def markdown() -> str:
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
        "Keys marked ↻ may be changed with `--resume`: they affect speed, memory and records, not what is learned.",
        "(This page is generated from the configuration's docstrings; a test compares them.)",
    ]
    lines += _tables(TrainConfig, _groups(TrainConfig))
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
        for group, about, fields in _groups(SftConfig)
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


def _groups(cls: type) -> Iterator[tuple[str, str, list[Field]]]:
    """(name, description, keys) of each group; a table is a group of one key."""
    grouped: dict[str, list[Field]] = {}
    for field in describe(cls):
        grouped.setdefault(field.key.partition(".")[0], []).append(field)
    hints = typing.get_type_hints(cls)
    for group, fields in grouped.items():
        yield group, (inspect.getdoc(hints[group]) or "") if is_dataclass(hints[group]) else "", fields
