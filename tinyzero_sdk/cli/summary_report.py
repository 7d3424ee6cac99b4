"""Output of summaries for `score`, `rescore` and `eval`: text of 80 columns, and JSON."""

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


def shorten(text: str | None) -> str:
    """A text in quotes, cut off after 60 characters."""
    return "none" if text is None else repr(text if len(text) <= 60 else text[:57] + "...")


def complain(message: str) -> None:
    """Print a line on stderr, without markup."""
    stderr.print(Text(message), soft_wrap=True)


def show_faults(file: "Path", report: "ScoreReport") -> None:
    """Print the bad rows and the scorer's first exception on stderr."""
    for row in report.bad:
        complain(f"{file}:{row.number}: {row.error}")
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
        "bad": [{"number": row.number, "problem": row.error} for row in report.bad],
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


def table(*columns: str, numbers: bool = True) -> Table:
    """A table whose first column is text, as are the others unless they are numbers."""
    shown = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for place, name in enumerate(columns):
        right = numbers and place > 0
        shown.add_column(name, justify="right" if right else "left", no_wrap=right, overflow="fold")
    return shown


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
    if (by := report.provenance) is not None:
        options = "" if by.task_options == "{}" else f" with {by.task_options}"
        wrappers = "" if by.task_wrappers == "[]" else f" in {by.task_wrappers}"
        stdout.print(Text(f"by {by.task} {by.task_version}{options}{wrappers}"))


def show_tables(summary: "Summary") -> None:
    """Print a table of reasons, of difficulties and of pass@k, where there are any, and how rows were grouped."""
    cut_off = ["cut off"] * (summary.signal.truncated_frac is not None)
    heading = ("reason", "rows", "share", "mean score", summary.length_unit, "median", "95%", "longest")
    reasons = table(*heading, *cut_off)
    for outcome in summary.by_reason:
        lengths = (outcome.mean_length, outcome.median_length, outcome.p95_length, outcome.max_length)
        reasons.add_row(
            *(outcome.reason, f"{outcome.rows:,}", percent(outcome.rows / summary.rows), f"{outcome.mean_score:.3g}"),
            *("" if length is None else f"{length:,.0f}" for length in lengths),
            "" if outcome.truncated_frac is None else percent(outcome.truncated_frac),
        )
    difficulties = table("difficulty", "rows", "accuracy", "95% interval", "mean score", *cut_off)
    for bucket in summary.by_difficulty:
        difficulties.add_row(
            f"{bucket.low:g}" if bucket.low == bucket.high else f"{bucket.low:g} to {bucket.high:g}",
            *(f"{bucket.rows:,}", percent(bucket.accuracy), _interval(bucket.interval), f"{bucket.mean_score:.3g}"),
            "" if bucket.truncated_frac is None else percent(bucket.truncated_frac),
        )
    at_k = table("k completions of a prompt", "prompts", "pass@k", "95% interval", "majority@k", "best@k")
    for entry in summary.at_k:
        at_k.add_row(
            *(str(entry.k), f"{entry.prompts:,}", percent(entry.pass_at_k), _interval(entry.interval)),
            *(percent(entry.majority_at_k), f"{entry.best_at_k:.3g}"),
        )
    for shown in (reasons, difficulties, at_k):
        if shown.rows:
            stdout.print("", shown)
    if summary.at_k:
        stdout.print(Text(f"prompts identified by {summary.prompts_by}"), style="dim")
    if summary.too_large_k:
        ks = ", ".join(map(str, summary.too_large_k))
        stdout.print(f"no pass@k for k={ks}: no prompt has as many completions", style="yellow")
    if summary.alone:
        alone = f"{plural(summary.alone, 'row')} without {summary.prompts_by}, each counted as its own prompt"
        stdout.print(Text(alone), style="yellow")


def _interval(bounds: tuple[float, float]) -> str:
    return " to ".join(map(percent, bounds))
