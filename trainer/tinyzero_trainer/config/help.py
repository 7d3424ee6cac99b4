"""The panels of keys under --help."""

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import is_dataclass
from typing import Any, get_type_hints

from tinyzero_sdk.settings import TABLE, Field, describe, format_value


def key_help(cls: type, only: Sequence[str] = ()) -> Iterator[Any]:
    """A panel for each group of keys of `cls`, or of `only` some, in the style of the command line's own."""
    from rich import box, markup
    from rich.panel import Panel
    from rich.table import Table

    width = max(len(field.key) for field in describe(cls)) + 1  # so that no key is broken
    for group, about, fields in groups(cls):
        fields = [field for field in fields if not only or field.key in only]
        if not fields:
            continue
        table = Table(box=box.SIMPLE, show_header=False, show_edge=False, pad_edge=False, padding=(0, 1), expand=True)
        table.add_column(width=width, overflow="fold")
        table.add_column(ratio=1)
        for field in fields:
            if field.type == TABLE:
                table.add_row(f"[bold cyan]{field.key}[/][dim].KEY=…[/]", markup.escape(field.help))
                continue
            key = f"[bold cyan]{field.key}[/][dim]={markup.escape(format_value(field.default))}[/]"
            unbroken = markup.escape(field.type.replace(" ", "\N{NO-BREAK SPACE}"))
            table.add_row(key, f"{markup.escape(field.help)} [dim]\\[{unbroken}][/]")
        title = f"{group}: {about.splitlines()[0].rstrip('.')}" if about else group
        yield Panel(table, title=markup.escape(title), title_align="left", border_style="dim")


def groups(cls: type) -> Iterator[tuple[str, str, list[Field]]]:
    """(name, description, keys) of each group; a table is a group of one key."""
    grouped: dict[str, list[Field]] = {}
    for field in describe(cls):
        grouped.setdefault(field.key.partition(".")[0], []).append(field)
    hints = get_type_hints(cls)
    for group, fields in grouped.items():
        yield group, (inspect.getdoc(hints[group]) or "") if is_dataclass(hints[group]) else "", fields
