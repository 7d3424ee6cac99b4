"""`tinyzero fuzz`: a search for completions that a task scores wrongly."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from tinyzero_sdk.cli.score import MemoryLimit, Timeout
from tinyzero_sdk.cli.task_options import AllowUnsafe, TaskName, TaskOverrides, Workers, one_task, show_judge
from tinyzero_sdk.console import plural, print_json, stderr, stdout
from tinyzero_sdk.tasks.registry import load_task_with_overrides

if TYPE_CHECKING:
    from tinyzero_sdk.fuzz import Finding, FuzzReport
    from tinyzero_sdk.tasks.task import Task

_CHECKS = {"timeout": "bounded-time", "died": "never-raises", "error": "never-raises"}
"""The check that replays a finding without a label."""


def fuzz(
    words: TaskOverrides = None,
    task: TaskName = None,
    time: Annotated[float, typer.Option("--time", min=0.1, metavar="N", help="Seconds to search.")] = 60.0,
    seed: Annotated[
        int, typer.Option("--seed", min=0, metavar="N", help="With one worker, the same seed repeats the search.")
    ] = 0,
    workers: Workers = None,
    cases: Annotated[
        Path | None,
        typer.Option("--cases", help="File to which findings are added.", show_default="./TASK.cases.jsonl"),
    ] = None,
    corpus: Annotated[
        Path | None, typer.Option("--corpus", help="Labelled cases to start from, such as those of a run's audit.")
    ] = None,
    first: Annotated[bool, typer.Option("--first", help="Stop at the first finding.")] = False,
    timeout: Timeout = 1.0,
    memory_limit: MemoryLimit = 4.0,
    json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    allow_unsafe_scorers: AllowUnsafe = False,
) -> None:
    """Search for wrong completions that are rewarded, and right ones that are not.

    Starts from gold completions and the task's grammar, and compares the reward with the task's oracle. Also reports
    what makes the scorer raise, hang or die. Findings become labelled cases, which `tinyzero check` replays. The exit
    code is 1 if there are any. Ctrl-C ends the search and keeps the findings.
    """
    from tinyzero_sdk.fuzz import fuzz as search
    from tinyzero_sdk.progress import Progress
    from tinyzero_sdk.testing import local_cases_path
    from tinyzero_sdk.testing.cases import add_cases, read_cases
    from tinyzero_sdk.workers.process import count_cores

    opened = load_task_with_overrides(*one_task(task, words), allow_unsafe_scorers=allow_unsafe_scorers)
    path = cases or local_cases_path(opened)
    if path.exists():
        read_cases(path)  # a file of something else is refused before the search, not after it
    has_oracle = bool(opened.plugin_manager.hook.oracle.get_hookimpls())
    aim = "on which reward and oracle disagree" if has_oracle else "that raise or hang, since it has no oracle"
    stderr.print(Text(f"{opened.name} {opened.version}: searching for completions {aim}"), soft_wrap=True)
    with Progress(announce=False) as progress:
        progress.phase("starting")
        report = search(
            opened,
            seconds=time,
            seed=seed,
            workers=workers or count_cores(),
            timeout=timeout,
            memory_limit_gb=memory_limit,
            stop_after=1 if first else None,
            corpus=read_cases(corpus) if corpus else (),
            on_progress=lambda report: progress.update(
                report.tried,
                f"{report.seconds:.0f} of {time:g} s · {report.tried:,} tried · {len(report.findings)} found",
            ),
        )
    labelled = [case for case in (finding.to_case() for finding in report.findings) if case]
    added = add_cases(path, labelled)
    show_judge(opened)
    if json:
        print_json(_as_json(opened, path, report))
    else:
        _show(opened, path, report, added)
    if report.findings:
        raise typer.Exit(1)
    if report.interrupted:
        raise typer.Exit(130)


def _show(task: "Task", path: Path, report: "FuzzReport", added: int) -> None:
    for finding in report.findings:
        stdout.print(_describe(task, path, finding), soft_wrap=True)
        stdout.print()
    stdout.print(
        f"{plural(report.tried, 'completion')} tried in {report.seconds:.1f} s ({report.rate:,.0f}/s): "
        f"{len(report.findings) or 'nothing'} found" + (", interrupted" if report.interrupted else "")
    )
    if report.findings:
        unknown = sum(finding.right is None for finding in report.findings)
        more = f"; {unknown} without a label, since the oracle has no result for them" if unknown else ""
        stdout.print(Text(f"{plural(added, 'new case')} in {path}{more}"), soft_wrap=True)


def _describe(task: "Task", path: Path, finding: "Finding") -> Text:
    from tinyzero_sdk.fuzz.findings import DESCRIPTIONS
    from tinyzero_sdk.testing.report import show_text, show_truth

    label = {True: "right", False: "wrong", None: "unknown"}[finding.right]
    facts = [
        ("completion", show_text(finding.completion)),
        ("ground truth", show_truth(finding.ground_truth)),
        ("score", f"{finding.score:g}"),
        ("oracle", label),
        ("traits", finding.note or ", ".join(finding.traits) or "its value only"),
        ("replay", _replay(task, path, finding) or "too long for a command; --json prints all of it"),
    ]
    return Text.assemble(
        (DESCRIPTIONS[finding.kind], "bold red"), *(piece for name, fact in facts for piece in (f"\n  {name:13}", fact))
    )


def _replay(task: "Task", path: Path, finding: "Finding") -> str:
    """The command that tests the completion again; with all cases of the file if it is too long, and is a case."""
    from tinyzero_sdk.fuzz.findings import IN_ORACLE
    from tinyzero_sdk.testing.gold import TestCompletion
    from tinyzero_sdk.testing.report import check_command, replay_words

    inline = replay_words(TestCompletion(finding.completion, finding.ground_truth, right=finding.right))
    if finding.right is not None:
        return check_command(task, "labelled-cases", inline or ["--cases", str(path)])
    if not inline:
        return ""
    if finding.kind == "oracle_error" or finding.note == IN_ORACLE:
        name = "correct-means-right"
    else:
        name = "bounded-memory" if finding.note.startswith("MemoryError") else _CHECKS[finding.kind]
    return check_command(task, name, inline)


def _as_json(task: "Task", path: Path, report: "FuzzReport") -> dict[str, Any]:
    return {
        "task": task.name,
        "version": task.version,
        "tried": report.tried,
        "seconds": round(report.seconds, 3),
        "lines": report.lines,
        "interrupted": report.interrupted,
        "cases": str(path),
        "findings": [asdict(finding) | {"replay": _replay(task, path, finding)} for finding in report.findings],
    }
