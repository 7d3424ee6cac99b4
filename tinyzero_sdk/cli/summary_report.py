"""Output of summaries for `score`, `rescore` and `eval`: text of 80 columns, and JSON."""

import dataclasses
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from tinyzero_sdk.console import percent, plural, stderr, stdout
from tinyzero_sdk.errors import SettingsError

if TYPE_CHECKING:
    from pathlib import Path

    from tinyzero_sdk.scoring.score_file import ScoreReport
    from tinyzero_sdk.scoring.summary import Summary


PassAt = Annotated[
    str | None,
    typer.Option("--pass-at", metavar="K,K,...", help="Values of k for pass@k.", show_default="powers of two"),
]


def parse_pass_at(text: str | None) -> tuple[int, ...]:
    """The values of `--pass-at`, ascending; () where it is not given."""
    from tinyzero_sdk.scoring.summary import MOST_DRAWN

    if text is None:
        return ()
    numbers = {int(word) if word.strip().isdecimal() else 0 for word in text.split(",")}
    if not 1 <= min(numbers) <= max(numbers) <= MOST_DRAWN:
        raise SettingsError(f"--pass-at={text}: expected numbers from 1 to {MOST_DRAWN:,}, such as --pass-at 1,8")
    return tuple(sorted(numbers))


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
        first = f"the scorer failed first where {report.failed_truth}:\n{report.first_error.rstrip()}"
        complain(report.suspicion or first)


def as_json(report: "ScoreReport") -> dict[str, Any]:
    summary = None if report.summary is None else report.summary.as_json()
    return {
        "rows": report.rows,
        "accuracy": report.accuracy,
        "accuracy_of_all": report.accuracy_of_all,
        "mean_score": report.mean_score,
        "reasons": dict(report.reasons),
        "summary": summary,
        **(report.provenance._asdict() if report.provenance else {}),
        "unknown": report.unknown,
        "bad_rows": report.bad_rows,
        "bad": [dataclasses.asdict(row) for row in report.bad],
        "first_error": report.first_error,
        "seconds": round(report.seconds, 3),
    }


def show_summary(report: "ScoreReport") -> None:
    if report.summary is not None:
        _show_accuracy(report, report.summary)
        show_tables(report.summary)
    show_left_out(report)


def show_left_out(report: "ScoreReport") -> None:
    """Print how many rows are in no number above, and what they could change."""
    if report.unknown:
        again = "in no number above; the same command asks for their scores again"
        stdout.print(f"\n[red]{plural(report.unknown, 'row')} without a score, {again}[/]", soft_wrap=True)
    if report.bad_rows and report.accuracy_of_all is not None:
        left_out = f"{plural(report.bad_rows, 'bad row')} not scored"
        if report.rows:
            left_out += f", and in no number above; accuracy {percent(report.accuracy_of_all)} if they count as wrong"
        stdout.print(f"\n[red]{left_out}[/]", soft_wrap=True)


def show_tables(summary: "Summary") -> None:
    _show_reasons(summary)
    _show_difficulties(summary)
    _show_at_k(summary)


def table(*columns: str) -> Table:
    """A table whose first column is text and whose others are numbers."""
    made = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for place, name in enumerate(columns):
        made.add_column(name, justify="right" if place else "left", no_wrap=place > 0, overflow="fold")
    return made


def _show_accuracy(report: "ScoreReport", summary: "Summary") -> None:
    facts = [f"accuracy {percent(summary.accuracy)} (95% interval {_interval(summary.interval)})"]
    facts.append(f"mean score {summary.mean_score:.4g}")
    if summary.signal.truncated_frac is not None:
        facts.append(f"cut off {percent(summary.signal.truncated_frac)}")
    if summary.prompts < summary.rows:
        facts.append(plural(summary.prompts, "prompt"))
    stdout.print(" · ".join(facts), soft_wrap=True)
    if summary.parts:
        parts = " · ".join(f"{name} {mean:.4g}" for name, mean in summary.parts.items())
        stdout.print(Text(f"mean of each part: {parts}"), soft_wrap=True)
    if report.provenance is not None:
        by = f"by {report.provenance.task} {report.provenance.task_version}"
        options = "" if report.provenance.task_options == "{}" else f" with {report.provenance.task_options}"
        wrappers = "" if report.provenance.task_wrappers == "[]" else f" in {report.provenance.task_wrappers}"
        stdout.print(Text(by + options + wrappers))


def _show_reasons(summary: "Summary") -> None:
    heading = ("reason", "rows", "share", "mean score", summary.length_unit, "median", "95%", "longest")
    shown = table(*heading, *_cut_off_heading(summary))
    for outcome in summary.by_reason:
        lengths = (outcome.mean_length, outcome.median_length, outcome.p95_length, outcome.max_length)
        shown.add_row(
            outcome.reason,
            f"{outcome.rows:,}",
            percent(outcome.rows / summary.rows),
            f"{outcome.mean_score:.3g}",
            *("" if length is None else f"{length:,.0f}" for length in lengths),
            *_cut_off(outcome.truncated_frac),
        )
    stdout.print("", shown)


def _show_difficulties(summary: "Summary") -> None:
    if not summary.by_difficulty:
        return
    shown = table("difficulty", "rows", "accuracy", "95% interval", "mean score", *_cut_off_heading(summary))
    for bucket in summary.by_difficulty:
        shown.add_row(
            f"{bucket.low:g}" if bucket.low == bucket.high else f"{bucket.low:g} to {bucket.high:g}",
            f"{bucket.rows:,}",
            percent(bucket.accuracy),
            _interval(bucket.interval),
            f"{bucket.mean_score:.3g}",
            *_cut_off(bucket.truncated_frac),
        )
    stdout.print("", shown)


def _cut_off_heading(summary: "Summary") -> list[str]:
    return [] if summary.signal.truncated_frac is None else ["cut off"]


def _cut_off(fraction: float | None) -> list[str]:
    return [] if fraction is None else [percent(fraction)]


def _interval(bounds: tuple[float, float]) -> str:
    return " to ".join(map(percent, bounds))


def _show_at_k(summary: "Summary") -> None:
    if not summary.at_k:
        _show_grouping(summary)
        return
    shown = table("k completions of a prompt", "prompts", "pass@k", "95% interval", "majority@k", "best@k")
    for entry in summary.at_k:
        shown.add_row(
            str(entry.k),
            f"{entry.prompts:,}",
            percent(entry.pass_at_k),
            _interval(entry.interval),
            percent(entry.majority_at_k),
            f"{entry.best_at_k:.3g}",
        )
    stdout.print("", shown)
    stdout.print(Text(f"prompts identified by {summary.prompts_by}"), style="dim")
    _show_grouping(summary)


def _show_grouping(summary: "Summary") -> None:
    """Print warnings about how rows were grouped by prompt."""
    if summary.too_large_k:
        ks = ", ".join(map(str, summary.too_large_k))
        stdout.print(f"no pass@k for k={ks}: no prompt has as many completions", style="yellow")
    if summary.alone:
        alone = f"{plural(summary.alone, 'row')} without {summary.prompts_by}, each counted as its own prompt"
        stdout.print(Text(alone), style="yellow")
    if summary.late:
        by = "every row counts as its own prompt" if summary.prompts_by == "row" else f"{summary.prompts_by} is"
        late = f"{summary.late} does not identify prompts, since the first rows have none: {by}"
        stdout.print(Text(late if summary.prompts_by == "row" else f"{late} used"), style="yellow")
