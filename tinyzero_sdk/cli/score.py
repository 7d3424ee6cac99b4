"""`tinyzero score`: the verdicts on a file of model outputs."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from tinyzero_sdk.cli.output import print_json, stderr, stdout
from tinyzero_sdk.cli.task_options import TaskName, TaskWords, Workers, open_task, progress_bar

if TYPE_CHECKING:
    from tinyzero_sdk.scoring import ScoreReport


def register(app: typer.Typer) -> None:
    """Add the command of this file."""
    app.command("score")(score)


def score(
    file: Annotated[Path, typer.Argument(help="Outputs, .jsonl or .parquet.", show_default=False)],
    task: TaskName,
    output: Annotated[Path, typer.Option("--output", "-o", help="Scored rows, .jsonl or .parquet.")],
    words: TaskWords = None,
    workers: Workers = None,
    time_limit: Annotated[float, typer.Option("--time-limit", min=0.01, help="Seconds for one answer.")] = 5.0,
    memory_limit: Annotated[float, typer.Option("--memory-limit", min=0.1, help="GiB for one worker.")] = 4.0,
    json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
) -> None:
    """Score a file of outputs: adds score, correct, reason and answer to every row.

    A row needs `completion` and `ground_truth` (or a whole row of a data file). Rows that cannot be scored
    are left out and listed; then the exit code is 1.
    """
    from tinyzero_sdk.scoring import score_file
    from tinyzero_sdk.worker import count_cores

    opened = open_task(task, words)
    with progress_bar() as progress:
        bar = progress.add_task("scoring", total=1.0)
        report = score_file(
            opened,
            file,
            output,
            workers=workers or count_cores(),
            time_limit=time_limit,
            memory_limit_gb=memory_limit,
            on_progress=lambda share: progress.update(bar, completed=share),
        )
    _show_faults(file, report)
    if json:
        print_json(_as_json(report))
    else:
        _show_summary(output, report)
    if not report.is_clean:
        raise typer.Exit(1)


def _show_faults(file: Path, report: "ScoreReport") -> None:
    for row in report.bad:
        _complain(f"{file}:{row.number}: {row.problem}")
    if report.bad_rows > len(report.bad):
        _complain(f"... and {report.bad_rows - len(report.bad):,} more")
    if report.first_error is not None:
        _complain(f"the scorer raised, first this:\n{report.first_error.rstrip()}")


def _complain(message: str) -> None:
    stderr.print(Text(message), soft_wrap=True)


def _as_json(report: "ScoreReport") -> dict[str, object]:
    return {
        "rows": report.rows,
        "accuracy": report.accuracy,
        "mean_score": report.mean_score,
        "reasons": dict(report.reasons),
        "bad_rows": report.bad_rows,
        "bad": [dataclasses.asdict(row) for row in report.bad],
        "first_error": report.first_error,
        "seconds": round(report.seconds, 3),
    }


def _show_summary(output: Path, report: "ScoreReport") -> None:
    stdout.print(Text(f"{report.rows:,} rows scored in {report.seconds:.1f} s, written to {output}"), soft_wrap=True)
    if report.accuracy is not None and report.mean_score is not None:
        stdout.print(f"accuracy {report.accuracy:.1%} · mean score {report.mean_score:.4g}")
        stdout.print(" · ".join(f"{reason} {count:,}" for reason, count in report.reasons.most_common()))
    if report.bad_rows:
        stdout.print(f"[red]{report.bad_rows:,} bad rows left out[/]")
