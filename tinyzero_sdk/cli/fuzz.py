"""`tinyzero fuzz`: a search for completions that a task's reward judges wrongly."""

import json as json_module
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from tinyzero_sdk.cli.output import print_json, stderr, stdout
from tinyzero_sdk.cli.task_options import AllowUnsafe, TaskWords, Workers, open_task

if TYPE_CHECKING:
    from tinyzero_sdk.fuzz import Finding, FuzzReport
    from tinyzero_sdk.task import Task

_MOST_SHOWN = 400  # characters of a completion
_MOST_INLINE = 2000  # characters of a command that carries its case


def register(app: typer.Typer) -> None:
    """Add the command of this file."""
    app.command("fuzz")(fuzz)


def fuzz(
    task: Annotated[str, typer.Argument(help="Name of an installed task, or path of a task file.", show_default=False)],
    words: TaskWords = None,
    time: Annotated[float, typer.Option("--time", min=0.1, help="Seconds to search.")] = 60.0,
    seed: Annotated[
        int, typer.Option("--seed", min=0, help="With one worker, the same seed tries the same in the same order.")
    ] = 0,
    workers: Workers = None,
    cases: Annotated[
        Path | None, typer.Option("--cases", help="File that findings are added to.", show_default="./TASK.cases.jsonl")
    ] = None,
    first: Annotated[bool, typer.Option("--first", help="End with the first finding.")] = False,
    time_limit: Annotated[float, typer.Option("--time-limit", min=0.01, help="Seconds for one completion.")] = 1.0,
    memory_limit: Annotated[float, typer.Option("--memory-limit", min=0.1, help="GiB for one worker.")] = 4.0,
    json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    allow_unsafe_scorers: AllowUnsafe = False,
) -> None:
    """Search for completions that are paid though wrong, or not paid though right.

    Starts from gold completions and the task's grammar, and compares the reward with the task's oracle. Also reports
    what makes the scorer raise, hang or die. Findings become labelled cases, which `tinyzero check` replays; if there
    are any, the exit code is 1. Ctrl-C ends the search and keeps what was found.
    """
    from tinyzero_sdk.cases import add_cases, read_cases
    from tinyzero_sdk.fuzz import fuzz as search
    from tinyzero_sdk.testing import local_cases_path
    from tinyzero_sdk.worker import count_cores

    opened = open_task(task, words, allow_unsafe_scorers=allow_unsafe_scorers)
    path = cases or local_cases_path(opened)
    if path.exists():
        read_cases(path)  # a file that is none of cases is refused before the search, not after it
    stderr.print(Text(_aim(opened)), soft_wrap=True)
    with stderr.status("starting") as status:
        report = search(
            opened,
            seconds=time,
            seed=seed,
            workers=workers or count_cores(),
            time_limit=time_limit,
            memory_limit_gb=memory_limit,
            stop_after=1 if first else None,
            on_progress=lambda report: status.update(_tell_progress(report, time)),
        )
    added = add_cases(path, [finding.to_case() for finding in report.findings]) if report.findings else 0
    if json:
        print_json(_as_json(opened, path, words or [], report))
    else:
        _show(opened, path, words or [], report, added)
    if report.findings:
        raise typer.Exit(1)
    if report.interrupted:
        raise typer.Exit(130)


def _aim(task: "Task") -> str:
    """What is looked for, in one line."""
    hooks = task.plugin_manager.hook
    if hooks.oracle.get_hookimpls():
        return f"{task.name} {task.version}: searching for completions that reward and oracle judge differently"
    return (
        f"{task.name} {task.version} has no oracle: searching for completions that raise, hang, or are judged by what"
        " stands around the answer"
    )


def _tell_progress(report: "FuzzReport", seconds: float) -> str:
    lines = f" · {report.lines} lines reached" if report.lines else ""
    return (
        f"{report.seconds:.0f} of {seconds:g} s · {report.tried:,} tried, {report.rate:,.0f}/s{lines} · "
        f"{len(report.findings)} found"
    )


def _show(task: "Task", path: Path, words: list[str], report: "FuzzReport", added: int) -> None:
    for finding in report.findings:
        stdout.print(_describe(task, path, words, finding), soft_wrap=True)
        stdout.print()
    stdout.print(
        f"{report.tried:,} completions tried in {report.seconds:.1f} s ({report.rate:,.0f}/s): "
        f"{len(report.findings) or 'nothing'} found" + (", interrupted" if report.interrupted else "")
    )
    if report.findings:
        stdout.print(Text(f"{added} new cases in {path}"), soft_wrap=True)


def _describe(task: "Task", path: Path, words: list[str], finding: "Finding") -> Text:
    from tinyzero_sdk.fuzz.findings import SAYS

    shown = ascii(finding.completion)
    if len(shown) > _MOST_SHOWN:
        shown = f"{shown[: _MOST_SHOWN // 2]} … {shown[-_MOST_SHOWN // 4 :]} ({len(finding.completion):,} characters)"
    says = {True: "right", False: "wrong", None: "cannot tell"}[finding.right]
    facts = [
        ("completion", shown),
        ("ground truth", json_module.dumps(finding.ground_truth)),
        ("score", f"{finding.score:g}"),
        ("oracle", says),
        ("what is odd", finding.note or ", ".join(finding.traits) or "its value alone"),
        ("replay", _replay(task, path, words, finding)),
    ]
    return Text.assemble(
        (SAYS[finding.kind], "bold red"), *(piece for name, fact in facts for piece in (f"\n  {name:13}", fact))
    )


def _replay(task: "Task", path: Path, words: list[str], finding: "Finding") -> str:
    """The command that judges the completion again, or all cases of the file where it is too long for a line."""
    case = finding.to_case()
    inline = json_module.dumps(
        {"completion": case.completion, "ground_truth": case.ground_truth, "correct": case.correct}
    )
    source = task.source if not task.source.endswith(".py") else _near(task.source)
    unsafe = ["--allow-unsafe-scorers"] if task.info.unsafe_scorer else []
    with_what = ["--replay", inline] if len(inline) <= _MOST_INLINE else ["--cases", str(path)]
    return shlex.join(["tinyzero", "check", source, *words, *unsafe, "--law", "labelled-cases", *with_what])


def _near(path: str) -> str:
    """The path as seen from here, where that is below."""
    here = Path.cwd()
    return f"./{Path(path).relative_to(here)}" if Path(path).is_relative_to(here) else path


def _as_json(task: "Task", path: Path, words: list[str], report: "FuzzReport") -> dict[str, Any]:
    return {
        "task": task.name,
        "version": task.version,
        "tried": report.tried,
        "seconds": round(report.seconds, 3),
        "lines": report.lines,
        "interrupted": report.interrupted,
        "cases": str(path),
        "findings": [
            {
                "kind": finding.kind,
                "completion": finding.completion,
                "ground_truth": finding.ground_truth,
                "answer": finding.answer,
                "score": finding.score,
                "right": finding.right,
                "traits": list(finding.traits),
                "note": finding.note,
                "replay": _replay(task, path, words, finding),
            }
            for finding in report.findings
        ],
    }
