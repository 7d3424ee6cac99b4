"""What the benchmarks share: the command they measure, the machine's versions, a fixed workload, and Markdown tables.

Not a benchmark: it has no results.
"""

import importlib.metadata
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from rich.box import MARKDOWN
from rich.console import Console
from rich.table import Table

TINYZERO = (sys.executable, "-c", "from tinyzero_sdk.cli import main; main()")
"""`tinyzero` in the environment that runs the benchmark, whether it is installed there or only on the path."""


def machine(*distributions: str) -> dict[str, str]:
    """The date, the machine, its load over the last minute, and the versions of tinyzero-sdk and `distributions`."""
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


def print_machine(*distributions: str) -> dict[str, str]:
    """Print `machine` in one line, and return it."""
    found = machine(*distributions)
    print(", ".join(f"{name} {value}" for name, value in found.items()), end="\n\n", flush=True)
    return found


def fixed_workload(model: Path, *, prompt_tokens: int, new_tokens: int, steps: int) -> list[str]:
    """Arguments of `tinyzero train` for full-length completions of prompts of one length, and little else."""
    return [
        *("--task", str(Path(__file__).with_name("fixed_task.py")), "--model", str(model)),
        *(f"task.prompt_tokens={prompt_tokens}", "data.prompt_template=base", f"run.steps={steps}"),
        *(f"rollout.max_completion_tokens={new_tokens}", "rollout.ignore_eos=true", "rollout.return_logprobs=never"),
        *("eval.num_problems=8", "eval.every=0", "eval.greedy=false", "log.rollouts_every=0", "checkpoint.every=0"),
        f"reward.num_workers={min(8, os.cpu_count() or 1)}",
    ]


def last_of_each(arguments: Sequence[str]) -> list[str]:
    """Arguments of `tinyzero` with the last setting of each key only, after the flags.

    Example:
        >>> last_of_each(["--recipe", "ppo", "a.b=1", "--model", "x", "c.d=2", "a.b=3"])
        ['--recipe', 'ppo', '--model', 'x', 'a.b=3', 'c.d=2']
    """
    last = {word.partition("=")[0]: word for word in arguments if "=" in word and not word.startswith("-")}
    return [word for word in arguments if "=" not in word or word.startswith("-")] + list(last.values())


def table(title: str, rows: Mapping[str, Mapping[str, str]]) -> str:
    """A Markdown table of rows with the same columns; the title heads the first column, which names the rows."""
    columns = list(next(iter(rows.values())))
    markdown = Table(title, *columns, box=MARKDOWN)
    for name, cells in rows.items():
        markdown.add_row(name, *(cells[column] for column in columns))
    # Wide enough for every cell, with brackets and colons printed as they are.
    console = Console(width=1000, markup=False, emoji=False, highlight=False)
    with console.capture() as capture:
        console.print(markdown)
    return "\n".join(line.rstrip() for line in capture.get().strip().splitlines()) + "\n"


def with_content(page: str, content: Mapping[str, str]) -> str:
    """A page with other text between its marks `<!-- NAME: begin -->` and `<!-- NAME: end -->`.

    Raises:
        ValueError: the page has no such marks.
    """
    for name, shown in content.items():
        before, begin, rest = page.partition(f"<!-- {name}: begin -->\n")
        _, end, after = rest.partition(f"<!-- {name}: end -->")
        if not end:
            raise ValueError(f"the page has no place for {name!r}")
        page = f"{before}{begin}{shown}{end}{after}"
    return page


def print_table(title: str, rows: Mapping[str, Mapping[str, str]]) -> None:
    """Print a Markdown table; see `table`."""
    print(table(title, rows), end="", flush=True)
