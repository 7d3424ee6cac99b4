"""`tinyzero compare`: what differs between scored files, with intervals."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from tinyzero_sdk.cli.score import GroupBy
from tinyzero_sdk.cli.summary_report import PassAt, parse_pass_at, shorten, table
from tinyzero_sdk.console import percent, plural, print_json, stdout
from tinyzero_sdk.errors import SettingsError

if TYPE_CHECKING:
    from tinyzero_sdk.scoring.compare import Comparison, ComparisonReport, Difference


def compare(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE",
            help="Files that `score`, `rescore` or `eval` wrote, or runs or checkpoints; or one run.",
            show_default=False,
        ),
    ],
    group_by: GroupBy = None,
    pass_at: PassAt = None,
    bootstrap: Annotated[
        int,
        typer.Option(
            "--bootstrap", metavar="N", help="Intervals from N bootstrap samples.", show_default="Student's t"
        ),
    ] = 0,
    limit: Annotated[
        int, typer.Option("--limit", min=0, metavar="N", help="Problems to list that got better, and worse.")
    ] = 3,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Compare scored files or runs with the first of them, problem by problem, with 95% intervals of the differences.

    Of one run, its last held-out evaluation is compared with its first; RUN/checkpoints/step_N is that at step N.

    The exit code is 0 if every row was read, 1 if some could not be read or have no score, and 2 if nothing can be
    compared.
    """
    from tinyzero_sdk.scoring.compare import CompareOptions, compare_files

    if bootstrap and not 100 <= bootstrap <= 100_000:  # fewer leave the quantiles to chance, more change no digit shown
        raise SettingsError(f"--bootstrap={bootstrap}: expected from 100 to 100,000 samples, such as 1000")
    report = compare_files(files, CompareOptions(group_by, parse_pass_at(pass_at), bootstrap))
    if json:
        print_json(dataclasses.asdict(report))
    else:
        _show(report, limit)
    if any(file.ignored for file in report.files):
        raise typer.Exit(1)


def _show(report: "ComparisonReport", limit: int) -> None:
    files = table("file", "completions", "accuracy", "difference", "95% interval")
    first = report.comparisons[0].accuracy
    files.add_row(Text(report.files[0].file), f"{report.files[0].completions:,}", percent(first.baseline))
    for file, comparison in zip(report.files[1:], report.comparisons, strict=True):
        accuracy = comparison.accuracy
        files.add_row(Text(file.file), f"{file.completions:,}", percent(accuracy.other), *_change(accuracy))
    stdout.print(files)
    by = f"{plural(report.problems, 'problem')} in all files, by {report.problems_by}"
    stdout.print(Text(f"{by}; differences are from the first file"), style="dim")
    left_out = [
        f"{plural(file.other_problems, 'problem')} of {file.file}" for file in report.files if file.other_problems
    ]
    left_out += [
        f"{plural(rows, 'row')} of {file.file} {what}" for file in report.files for what, rows in file.ignored.items()
    ]
    if left_out:
        stdout.print(Text(f"not compared: {'; '.join(left_out)}"), style="yellow", soft_wrap=True)
    for name, values in report.differing.items():
        sides = ["unknown" if side is None else " and ".join(map(str, side)) for side in values]
        stdout.print(Text(f"settings that differ: {name} {' → '.join(sides)}"), style="yellow", soft_wrap=True)
    for comparison in report.comparisons:
        _show_comparison(report, comparison, limit)


def _change(difference: "Difference") -> tuple[str, str]:
    """The difference and its interval; of shares in percentage points."""
    number = _format(difference)

    def signed(value: float) -> str:
        return f"{value:+{number}}" if number else f"{100 * value:+.1f}"

    interval = "unknown" if difference.interval is None else " to ".join(map(signed, difference.interval))
    return f"{signed(difference.difference)}{'' if number else ' pp'}", interval


def _format(difference: "Difference") -> str:
    """The format of a difference of numbers; empty for one of fractions."""
    from tinyzero_sdk.scoring.compare import is_fraction

    return "" if is_fraction(difference.name) else ",.1f" if difference.name == "tokens" else ".3f"


def _show_comparison(report: "ComparisonReport", comparison: "Comparison", limit: int) -> None:
    from tinyzero_sdk.scoring.compare import remark

    shown = table("", "baseline", "this file", "difference", "95% interval", "problems")
    groups = {"": comparison.metrics, "reason": comparison.by_reason, "difficulty": comparison.by_difficulty}
    groups["task"] = comparison.by_task
    for group, differences in groups.items():
        if group and differences:
            shown.add_row(Text(group, "bold"))
        for difference in differences:
            number = _format(difference) or ".1%"
            sides = (f"{side:{number}}" for side in (difference.baseline, difference.other))
            name = f"  {difference.name}" if group else difference.name
            shown.add_row(name, *sides, *_change(difference), f"{difference.problems:,}")
    stdout.print(Text(f"\n{comparison.file} against {report.files[0].file}", style="bold"), soft_wrap=True)
    stdout.print(shown)
    better, worse = comparison.better, comparison.worse
    if text := remark(better + worse):
        stdout.print(text, style="yellow")
    for name, solved, changes, total in (
        ("better", f"{comparison.newly_solved:,} of them newly solved", comparison.gains, better),
        ("worse", f"{comparison.no_longer_solved:,} of them no longer solved", comparison.losses, worse),
    ):
        stdout.print(f"\n{name} on {plural(total, 'problem')}{f', {solved}' if total else ''}")
        for change in changes[:limit]:
            before, now = (f"{right}/{size}" for right, size in zip(change.correct, change.completions, strict=True))
            rows = " and ".join(f"{row:,}" for row in change.rows)
            stdout.print(Text(f"  {before} → {now} right, rows {rows}: {shorten(change.problem)}"), soft_wrap=True)
        if total > limit:
            stdout.print(f"  ... {total - limit:,} more (--limit, or --json)")
    stdout.print(f"\nthe same on {plural(report.problems - better - worse, 'problem')}")
