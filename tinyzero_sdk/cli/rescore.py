"""`tinyzero rescore`: which scores of a file change with the installed task."""

import dataclasses
from json import dumps as to_json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from tinyzero_sdk.cli.score import GroupBy, MemoryLimit, Overwrite, Timeout, Wrappers, scoring_options
from tinyzero_sdk.cli.summary_report import as_json, show_faults, table
from tinyzero_sdk.cli.task_options import AllowUnsafe, TaskName, TaskOverrides, Workers, one_task, show_judge
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
    allow_version_mismatch: Annotated[
        bool,
        typer.Option(
            "--allow-version-mismatch",
            help="Compare even if task or options differ, or rows name several versions or none.",
        ),
    ] = False,
    allow_unsafe: AllowUnsafe = False,
    overwrite: Overwrite = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Score a scored file again with the installed version of its task, and list the scores that changed.

    The exit code is 0 if no score and no part of one changed, and 1 if some did or some rows could not be compared.
    """
    from tinyzero_sdk.scoring.rescore import rescore_file

    opened = load_task_with_overrides(
        *one_task(task, overrides), wrappers=wrappers or (), allow_unsafe_scorers=allow_unsafe
    )
    with scoring_options(
        workers, timeout, memory_limit, group_by, allow_version_mismatch, overwrite=overwrite
    ) as options:
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
    if report.changed:
        # Rows changed by old reason (down) and new reason (across).
        olds, news = (list(dict.fromkeys(pair[side] for pair, _ in report.reasons.most_common())) for side in (0, 1))
        matrix = table("old \\ new", *news)
        for old in olds:
            matrix.add_row(old, *(f"{report.reasons[old, new]:,}" if report.reasons[old, new] else "" for new in news))
        stdout.print("", matrix)
    for reasons, rows in report.reasons.most_common():
        shown = [change for change in report.changes if change.reasons == reasons][:limit]
        for change in shown:
            _show_change(change)
        if rows > len(shown):
            kind = " → ".join(reasons)
            stdout.print(f"\n... and {rows - len(shown):,} more {kind} (--limit, or --output)")


def _show_provenance(report: "RescoreReport") -> None:
    """What produced the old and new scores: task and version, and the options and wrappers that differ."""
    now = report.scored.provenance
    assert now is not None
    provenances = [*report.before, now]
    labels = [f"{provenance.task} {provenance.task_version}" for provenance in provenances]
    if len({provenance.task_wrappers for provenance in provenances}) > 1:
        labels = [f"{text} in {provenance.task_wrappers}" for text, provenance in zip(labels, provenances, strict=True)]
    options = [provenance.options() for provenance in provenances]
    names = sorted({name for one in options for name in one})
    missing = object()
    differing = [
        name for name in names if any(one.get(name, missing) != options[0].get(name, missing) for one in options)
    ]
    if differing:
        kept = [{name: one[name] for name in differing if name in one} for one in options]
        labels = [f"{text} with {to_json(some)}" for text, some in zip(labels, kept, strict=True)]
    before = " and ".join(labels[:-1]) or "an unknown task"
    stdout.print(Text(f"before: {before} · now: {labels[-1]}"), soft_wrap=True)


def _show_change(change: "ScoreChange") -> None:
    head = Text(f"\nrow {change.number}: ", style="bold")
    head.append(
        f"{change.old.reason} {change.old.score:g} → {change.new.reason} {change.new.score:g}",
        style="red" if change.is_flip else "",
    )
    stdout.print(head, soft_wrap=True)
    answers = f"answer {_quoted(change.old.answer)}"
    if change.new.answer != change.old.answer:
        answers += f" → {_quoted(change.new.answer)}"
    stdout.print(Text(f"  {answers}"), soft_wrap=True)
    if change.parts:
        parts = " · ".join(f"{name} {old:.4g} → {new:.4g}" for name, (old, new) in change.parts.items())
        stdout.print(Text(f"  parts: {parts}"), soft_wrap=True)
    stdout.print(Text(f"  …{change.completion_end[-60:]!r}"), soft_wrap=True)


def _quoted(answer: str | None) -> str:
    if answer is None:
        return "none"
    return repr(answer if len(answer) <= 60 else answer[:57] + "...")
