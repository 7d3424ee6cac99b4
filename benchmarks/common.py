"""What the benchmarks share: the command they measure, the machine they run on, and tables for the README.

Not a benchmark: run by itself it does nothing.
"""

import importlib.metadata
import os
import platform
import sys
from collections.abc import Mapping
from datetime import UTC, datetime

from rich.box import MARKDOWN
from rich.console import Console
from rich.table import Table

TINYZERO = (sys.executable, "-c", "from tinyzero_sdk.cli import main; main()")
"""The command line of the environment that runs the benchmark, installed there or on its path only."""


def machine(*distributions: str) -> dict[str, str]:
    """Where and with what a benchmark runs.

    Args:
        distributions: those whose version matters, beside tinyzero-sdk.
    """
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            processor = next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        processor = platform.processor() or platform.machine()
    return {
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "machine": f"{processor}, {os.cpu_count()} cores",
        "load": f"{os.getloadavg()[0]:.1f}",
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in ("tinyzero-sdk", *distributions)},
    }


def print_machine(*distributions: str) -> None:
    """Print `machine` in one line; the load is that of the minute before."""
    print(", ".join(f"{name} {value}" for name, value in machine(*distributions).items()), end="\n\n", flush=True)


def table(title: str, rows: Mapping[str, Mapping[str, str]]) -> str:
    """A Markdown table.

    Args:
        title: head of the first column, which names the rows.
        rows: by name, the cells by the head of their column; all rows have the same columns.
    """
    columns = list(next(iter(rows.values())))
    drawn = Table(title, *columns, box=MARKDOWN)
    for name, cells in rows.items():
        drawn.add_row(name, *(cells[column] for column in columns))
    # Never so narrow that a cell is broken; and cells as they stand, whatever brackets or colons they hold.
    console = Console(width=1000, markup=False, emoji=False, highlight=False)
    with console.capture() as capture:
        console.print(drawn)
    return "\n".join(line.rstrip() for line in capture.get().strip().splitlines()) + "\n"


def print_table(title: str, rows: Mapping[str, Mapping[str, str]]) -> None:
    """Print what `table` gives."""
    print(table(title, rows), end="")
