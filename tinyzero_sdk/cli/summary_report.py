"""Output of summaries for `score`, `rescore` and `eval`: text of 80 columns, and JSON."""

import dataclasses
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from tinyzero_sdk.console import stderr, stdout

if TYPE_CHECKING:
    from pathlib import Path

    from tinyzero_sdk.scoring.score_file import ScoreReport
    from tinyzero_sdk.scoring.summary import Summary


def complain(message: str) -> None:
    """Print a line on stderr, without markup."""
    stderr.print(Text(message), soft_wrap=True)


def show_faults(file: "Path", report: "ScoreReport") -> None:
    """Print the bad rows and the scorer's first exception on stderr."""
    for row in report.bad:
        complain(f"{file}:{row.number}: {row.problem}")
    if report.bad_rows > len(report.bad):
        complain(f"... and {report.bad_rows - len(report.bad):,} more")
    if report.first_error is not None:
        complain(report.suspicion or f"the scorer raised exceptions; the first:\n{report.first_error.rstrip()}")


def as_json(report: "ScoreReport") -> dict[str, Any]:
    summary = None if report.summary is None else report.summary.as_json()
    return {
        "rows": report.rows,
        "accuracy": report.accuracy,
        "mean_score": report.mean_score,
        "reasons": dict(report.reasons),
        "summary": summary,
        **(report.provenance._asdict() if report.provenance else {}),
        "bad_rows": report.bad_rows,
        "bad": [dataclasses.asdict(row) for row in report.bad],
        "first_error": report.first_error,
        "seconds": round(report.seconds, 3),
    }


def show_summary(report: "ScoreReport") -> None:
    if report.summary is not None:
        _show_accuracy(report, report.summary)
        show_tables(report.summary)
    if report.bad_rows:
        stdout.print(f"\n[red]{count(report.bad_rows, 'bad row')} not scored[/]")


def show_tables(summary: "Summary") -> None:
    _show_reasons(summary)
    _show_difficulties(summary)
    _show_at_k(summary)


def count(number: int, name: str) -> str:
    return f"{number:,} {name}{'' if number == 1 else 's'}"


def percent(fraction: float) -> str:
    return f"{fraction:.1%}"


def table(*columns: str) -> Table:
    """A table whose first column is text and whose others are numbers."""
    made = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for place, name in enumerate(columns):
        made.add_column(name, justify="right" if place else "left", no_wrap=place > 0, overflow="fold")
    return made


def _show_accuracy(report: "ScoreReport", summary: "Summary") -> None:
    low, high = summary.interval
    facts = [f"accuracy {percent(summary.accuracy)} (95% interval {percent(low)} to {percent(high)})"]
    facts.append(f"mean score {summary.mean_score:.4g}")
    if summary.prompts < summary.rows:
        facts.append(count(summary.prompts, "prompt"))
    stdout.print(" · ".join(facts), soft_wrap=True)
    if report.provenance is not None:
        by = f"by {report.provenance.task} {report.provenance.task_version}"
        options = "" if report.provenance.task_options == "{}" else f" with {report.provenance.task_options}"
        wrappers = "" if report.provenance.task_wrappers == "[]" else f" in {report.provenance.task_wrappers}"
        stdout.print(Text(by + options + wrappers))


def _show_reasons(summary: "Summary") -> None:
    shown = table("reason", "rows", "share", "mean score", summary.length_unit, "median", "95%", "longest")
    for outcome in summary.by_reason:
        lengths = (outcome.mean_length, outcome.median_length, outcome.p95_length, outcome.max_length)
        shown.add_row(
            outcome.reason,
            f"{outcome.rows:,}",
            percent(outcome.rows / summary.rows),
            f"{outcome.mean_score:.3g}",
            *("" if length is None else f"{length:,.0f}" for length in lengths),
        )
    stdout.print("", shown)


def _show_difficulties(summary: "Summary") -> None:
    if not summary.by_difficulty:
        return
    shown = table("difficulty", "rows", "accuracy", "95% interval", "mean score")
    for bucket in summary.by_difficulty:
        low, high = bucket.interval
        shown.add_row(
            f"{bucket.low:g}" if bucket.low == bucket.high else f"{bucket.low:g} to {bucket.high:g}",
            f"{bucket.rows:,}",
            percent(bucket.accuracy),
            f"{percent(low)} to {percent(high)}",
            f"{bucket.mean_score:.3g}",
        )
    stdout.print("", shown)


def _show_at_k(summary: "Summary") -> None:
    if not summary.at_k:
        _show_grouping(summary)
        return
    shown = table("k completions of a prompt", "prompts", "pass@k", "majority@k", "best@k")
    for entry in summary.at_k:
        shown.add_row(
            str(entry.k),
            f"{entry.prompts:,}",
            percent(entry.pass_at_k),
            percent(entry.majority_at_k),
            f"{entry.best_at_k:.3g}",
        )
    stdout.print("", shown)
    stdout.print(Text(f"prompts identified by {summary.prompts_by}"), style="dim")
    _show_grouping(summary)


def _show_grouping(summary: "Summary") -> None:
    """Print warnings about how rows were grouped by prompt."""
    if summary.alone:
        alone = f"{count(summary.alone, 'row')} without {summary.prompts_by}, each counted as its own prompt"
        stdout.print(Text(alone), style="yellow")
    if summary.late:
        by = "every row counts as its own prompt" if summary.prompts_by == "row" else f"{summary.prompts_by} is"
        late = f"{summary.late} does not identify prompts, since the first rows have none: {by}"
        stdout.print(Text(late if summary.prompts_by == "row" else f"{late} used"), style="yellow")
