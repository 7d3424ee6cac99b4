"""`tinyzero score`: score a file of model outputs."""

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from tinyzero_sdk.cli.summary_report import PassAt, as_json, parse_pass_at, show_faults, show_summary
from tinyzero_sdk.cli.task_options import (
    AllowUnsafe,
    TaskName,
    TaskOverrides,
    Workers,
    one_task,
    refuse_further_files,
    show_judge,
)
from tinyzero_sdk.console import plural, print_json, stdout
from tinyzero_sdk.tasks.registry import load_task_with_overrides

Timeout = Annotated[float, typer.Option("--timeout", min=0.01, metavar="N", help="Seconds to score one completion.")]
MemoryLimit = Annotated[
    float, typer.Option("--memory-limit", min=0.1, metavar="N", help="Address space of a worker, in GiB.")
]
GroupBy = Annotated[
    str | None,
    typer.Option(
        "--by",
        metavar="COLUMN",
        help="Column that identifies a prompt, or a field of one as NAME.FIELD.",
        show_default="extra_info.key, problem, prompt, extra_info.index or ground_truth",
    ),
]
Wrappers = Annotated[
    list[str] | None,
    typer.Option(
        "--wrapper",
        metavar="NAME",
        help="Shape the score, as in training: overlong(limit=1024), format, ... Repeatable, innermost first.",
    ),
]
Columns = Annotated[
    list[str] | None,
    typer.Option(
        "--column",
        metavar="NAME=COLUMN",
        help="Where the file has `completion` or `ground_truth`: ground_truth=answer, NAME=COLUMN.FIELD. Repeatable.",
        show_default=False,
    ),
]
AllowMismatch = Annotated[
    bool, typer.Option("--allow-version-mismatch", help="Accept rows of another task or version, or of none.")
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")]

_SEVERAL_FILES = {
    ".parquet": ", or several as their folder: tinyzero score FOLDER --format hf",
    ".jsonl": ", or several as one: cat a.jsonl b.jsonl | tinyzero score -",
    ".eval": ", or several as their folder: tinyzero score FOLDER --format inspect",
}


@contextmanager
def _rows_of(file: Path) -> Iterator[Path]:
    """The file, or for `-` a copy of standard input, since rows may be read twice."""
    if str(file) != "-":
        yield file
        return
    with tempfile.TemporaryDirectory() as folder:
        start = sys.stdin.buffer.read(1 << 16)
        copy = Path(folder) / ("stdin.csv" if start.lstrip()[:1] not in (b"{", b"") else "stdin.jsonl")
        with copy.open("wb") as rows:
            rows.write(start)
            shutil.copyfileobj(sys.stdin.buffer, rows)
        yield copy


def score(
    file: Annotated[
        Path,
        typer.Argument(
            help="Model outputs: .jsonl, .csv, either of them with .gz, .parquet, or as --format says; "
            "- = JSON Lines or CSV from stdin.",
            show_default=False,
        ),
    ],
    overrides: TaskOverrides = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="File for the scored rows, .jsonl or .parquet.", show_default="the summary only"
        ),
    ] = None,
    task: TaskName = None,
    format: Annotated[
        str | None,
        typer.Option(
            "--format",
            metavar="NAME",
            help="Format: rows (our own), verl (rollouts), lm-eval (samples), hf (a folder), "
            "inspect (logs, of tinyzero-inspect), or that of another plugin.",
            show_default="rows",
        ),
    ] = None,
    columns: Columns = None,
    wrappers: Wrappers = None,
    group_by: GroupBy = None,
    pass_at: PassAt = None,
    workers: Workers = None,
    timeout: Timeout = 5.0,
    memory_limit: MemoryLimit = 4.0,
    allow_version_mismatch: AllowMismatch = False,
    allow_unsafe: AllowUnsafe = False,
    overwrite: Overwrite = False,
    json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Score a file of outputs: a summary, and with --output every row with its score, reason, answer and provenance.

    A row needs `completion` and `ground_truth` (or all columns of a data file). Rows that cannot be scored are listed
    instead of written, and the exit code is then 1.
    """
    from tinyzero_sdk.progress import Progress
    from tinyzero_sdk.scoring.score_file import ScoringOptions, score_file
    from tinyzero_sdk.settings import parse_overrides
    from tinyzero_sdk.workers.process import count_cores

    refuse_further_files(overrides, _SEVERAL_FILES, ", and score the files one after another")
    opened = load_task_with_overrides(
        *one_task(task, overrides), wrappers=wrappers or (), allow_unsafe_scorers=allow_unsafe
    )
    with _rows_of(file) as source, Progress(announce=False) as progress:
        progress.phase("scoring", 1.0, "%")
        limits = (workers or count_cores(), timeout, memory_limit)
        shown = (group_by, parse_pass_at(pass_at))
        names = {name: str(column) for name, column in parse_overrides(columns or ()).items()}
        options = ScoringOptions(*limits, *shown, allow_version_mismatch, progress.update, overwrite, names)
        report = score_file(opened, source, output, options, format=format)
    show_faults(file, report)
    show_judge(opened)
    if json:
        print_json(as_json(report))
    else:
        done = (
            f"{plural(report.rows, 'row')} scored in {report.seconds:.1f} s"
            if report.rows
            else f"no row of {file} can be scored"
        )
        written = "" if output is None else f", written to {output}" if report.rows else f", so {output} is empty"
        stdout.print(Text(done + written), soft_wrap=True)
        show_summary(report)
    if not report.is_clean:
        raise typer.Exit(1)
