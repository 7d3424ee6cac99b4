"""`tinyzero rescore`: which scores of a file change with the installed task."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from tinyzero_sdk.cli.score import AllowMismatch, GroupBy, MemoryLimit, Overwrite, Timeout, Wrappers
from tinyzero_sdk.cli.summary_report import as_json, shorten, show_faults, table
from tinyzero_sdk.cli.task_options import (
    AllowUnsafe,
    TaskName,
    TaskOverrides,
    Workers,
    one_task,
    refuse_further_files,
    show_judge,
)
from tinyzero_sdk.console import percent, plural, print_json, stdout
from tinyzero_sdk.tasks.registry import load_task_with_overrides

if TYPE_CHECKING:
    from tinyzero_sdk.scoring.rescore import RescoreReport, ScoreChange


def rescore(
    old: Annotated[Path, typer.Argument(help="A file that `tinyzero score` wrote.", show_default=False)],
    overrides: TaskOverrides = None,
    task: TaskName = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="File for the rows with new scores; the old ones are kept as old_score, ..."
        ),
    ] = None,
    wrappers: Wrappers = None,
    group_by: GroupBy = None,
    workers: Workers = None,
    timeout: Timeout = 5.0,
    memory_limit: MemoryLimit = 4.0,
    limit: Annotated[
        int, typer.Option("--limit", min=0, metavar="N", help="Changed rows to show for each pair of reasons.")
    ] = 3,
    allow_version_mismatch: AllowMismatch = False,
    allow_unsafe: AllowUnsafe = False,
    overwrite: Overwrite = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Score a scored file again with the installed version of its task, and list the scores that changed.

    The exit code is 0 if no score and no part of one changed, and 1 if some did or some rows could not be compared.
    """
    from tinyzero_sdk.progress import Progress
    from tinyzero_sdk.scoring.rescore import rescore_file
    from tinyzero_sdk.scoring.score_file import ScoringOptions
    from tinyzero_sdk.workers.process import count_cores

    refuse_further_files(overrides, {}, ", and rescore the files one after another")
    opened = load_task_with_overrides(
        *one_task(task, overrides), wrappers=wrappers or (), allow_unsafe_scorers=allow_unsafe
    )
    with Progress(announce=False) as progress:
        progress.phase("scoring", 1.0, "%")
        limits = (workers or count_cores(), timeout, memory_limit)
        options = ScoringOptions(*limits, group_by, (), allow_version_mismatch, progress.update, overwrite)
        report = rescore_file(opened, old, output, options)
    show_faults(old, report.scored)
    show_judge(opened)
    if json:
        print_json(_as_json(report))
    else:
        _show(report, limit, output)
    if report.changed or not report.scored.is_clean:
        raise typer.Exit(1)


def _as_json(report: "RescoreReport") -> dict[str, Any]:
    return {
        "rows": report.scored.rows,
        "compared": report.compared,
        "changed": report.changed,
        "flipped": report.flipped,
        "other_answer": report.other_answer,
        "old_accuracy": report.old_accuracy,
        "new_accuracy": report.new_accuracy,
        "before": [provenance._asdict() for provenance in report.before],
        "parts": {name: dataclasses.asdict(part) for name, part in report.parts.items()},
        "reasons": [{"old": old, "new": new, "rows": rows} for (old, new), rows in report.reasons.most_common()],
        "changes": [dataclasses.asdict(change) | {"flipped": change.is_flip} for change in report.changes],
        "new": as_json(report.scored),
    }


def _show(report: "RescoreReport", limit: int, output: Path | None) -> None:
    scored = report.scored
    written = "" if output is None else f", written to {output}"
    stdout.print(Text(f"{plural(scored.rows, 'row')} scored again in {scored.seconds:.1f} s{written}"), soft_wrap=True)
    _show_provenance(report)
    if report.compared < scored.rows:
        compared = f"{report.compared:,}" if report.compared else "none"
        stdout.print(f"{compared} of these rows compared; the others have no old or no new score")
    if report.old_accuracy is not None and report.new_accuracy is not None:
        stdout.print(f"accuracy {percent(report.old_accuracy)} before, {percent(report.new_accuracy)} now")
    other = f"; {report.other_answer:,} more have another answer" if report.other_answer else ""
    changed = f"{plural(report.changed, 'score')} changed, {report.flipped:,} of them flipped{other}"
    stdout.print(changed, soft_wrap=True)
    if report.parts:
        parts = table("part of the reward", "mean before", "now", "rows in which it rose", "fell")
        for name, part in report.parts.items():
            means = (f"{total / part.rows:.4g}" for total in (part.old_sum, part.new_sum))
            parts.add_row(name, *means, f"{part.rose:,}", f"{part.fell:,}")
        stdout.print("", parts)
    for reasons, rows in report.reasons.most_common():
        shown = [change for change in report.changes if change.reasons == reasons][:limit]
        for change in shown:
            _show_change(change)
        if rows > len(shown):
            kind = " → ".join(reasons)
            stdout.print(f"\n... and {rows - len(shown):,} more {kind} (--limit, or --output)")


def _show_provenance(report: "RescoreReport") -> None:
    """The tasks that produced the old and new scores, and their options and wrappers where these differ."""
    now = report.scored.provenance
    assert now is not None
    provenances = [*report.before, now]
    settings = [name for name in ("task_options", "task_wrappers") if len({getattr(p, name) for p in provenances}) > 1]
    *before, last = (" ".join([p.task, p.task_version, *(getattr(p, name) for name in settings)]) for p in provenances)
    stdout.print(Text(f"before: {' and '.join(before) or 'an unknown task'} · now: {last}"), soft_wrap=True)


def _show_change(change: "ScoreChange") -> None:
    old, new = change.old, change.new
    head = f"\nrow {change.number}: {old.reason} {old.score:g} → {new.reason} {new.score:g}"
    stdout.print(Text(head, "bold red" if change.is_flip else "bold"), soft_wrap=True)
    stdout.print(Text(f"  answer {shorten(old.answer)} → {shorten(new.answer)}"), soft_wrap=True)
    if change.parts:
        parts = " · ".join(f"{name} {old:.4g} → {new:.4g}" for name, (old, new) in change.parts.items())
        stdout.print(Text(f"  parts: {parts}"), soft_wrap=True)
    stdout.print(Text(f"  …{change.completion_end[-60:]!r}"), soft_wrap=True)
