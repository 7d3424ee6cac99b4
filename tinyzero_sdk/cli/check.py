"""`tinyzero check`: whether a task passes the checks of the conformance kit."""

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from tinyzero_sdk.cli.task_options import AllowUnsafe, TaskName, TaskOverrides, one_task, show_judge
from tinyzero_sdk.console import plural, print_json, stderr, stdout, warn
from tinyzero_sdk.errors import SettingsError
from tinyzero_sdk.tasks.registry import load_task_with_overrides

if TYPE_CHECKING:
    from tinyzero_sdk.tasks.task import Task
    from tinyzero_sdk.testing.cases import Case
    from tinyzero_sdk.testing.report import Report, Result

_STYLES = {"passed": "green", "failed": "bold red", "waived": "yellow", "not checked": "dim"}


def check(
    words: TaskOverrides = None,
    task: TaskName = None,
    prop: Annotated[
        list[str] | None,
        typer.Option("--only", help="Run only this check. Repeatable.", metavar="CHECK", show_default="all"),
    ] = None,
    examples: Annotated[
        int | None,
        typer.Option(
            "--examples",
            min=1,
            metavar="N",
            help="Completions sampled for each check.",
            show_default="200, or 10 if score is async",
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, metavar="N", help="Seed of the items and of all choices.")] = 0,
    cases: Annotated[
        Path | None,
        typer.Option("--cases", help="More labelled completions than the task's own and ./TASK.cases.jsonl."),
    ] = None,
    replay: Annotated[
        str | None, typer.Option("--replay", metavar="JSON", help="Test only this completion, a labelled case.")
    ] = None,
    save: Annotated[bool, typer.Option("--save", help="Add failing completions to ./TASK.cases.jsonl.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    list_checks: Annotated[bool, typer.Option("--list", help="List the checks and exit.")] = False,
    allow_unsafe_scorers: AllowUnsafe = False,
) -> None:
    """Check that a task's reward cannot be gamed, and that its data are sound.

    The checks score gold, near misses, malformed and hostile completions, in separate processes. A failed check shows
    the smallest completion that fails, and the command that replays it; the exit code is then 1, as it is if a check
    that --only names cannot be run.
    """
    if list_checks:
        _list_checks(json)
        return
    from tinyzero_sdk.testing import known_cases

    opened = load_task_with_overrides(*one_task(task, words), allow_unsafe_scorers=allow_unsafe_scorers)
    known = known_cases(opened, *([cases] if cases else []))
    report = _run(opened, prop or [], examples, seed, known, replay, quiet=json)
    show_judge(opened)
    if json:
        print_json(report.as_json())
    else:
        _show_failures(report)
    if save:
        from tinyzero_sdk.testing import local_cases_path
        from tinyzero_sdk.testing.cases import add_cases

        path = local_cases_path(opened)
        added = add_cases(path, [result.case for result in report.results if result.case])
        stderr.print(Text(f"{plural(added, 'new case')} in {path}"), soft_wrap=True)
    if not report.passed or (prop and any(result.status == "not checked" for result in report.results)):
        raise typer.Exit(1)


def _run(
    task: "Task",
    names: list[str],
    examples: int | None,
    seed: int,
    cases: "list[Case]",
    replay: str | None,
    *,
    quiet: bool,
) -> "Report":
    from tinyzero_sdk.testing import Checker, Report, find_properties
    from tinyzero_sdk.testing.report import parse_replay

    properties = find_properties(names, task)
    if replay is not None and len(properties) != 1:
        raise SettingsError("--replay tests a completion with one check; name it with --only")
    results = []
    with Checker(task, examples=examples, seed=seed, cases=cases) as checker:
        if not quiet:
            stdout.print(Text(f"{task.name} {task.version}"))
        for prop in properties:
            with stderr.status(f"checking {prop.name}"):
                result = checker.check(prop) if replay is None else checker.replay(prop, parse_replay(replay))
            results.append(result)
            if not quiet:
                _show_line(result)
    return Report(task.name, task.version, seed, tuple(results))


def _list_checks(as_json: bool) -> None:
    from tinyzero_sdk.testing import PROPERTIES

    if as_json:
        print_json(
            [{"check": prop.name, "text": prop.text, "reason": prop.reason, "needs": prop.needs} for prop in PROPERTIES]
        )
        return
    for prop in PROPERTIES:
        text = textwrap.fill(prop.text, 78, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
        stdout.print(Text.assemble((prop.name, "bold"), "\n", text))


def _show_line(result: "Result") -> None:
    line = Text.assemble((f"{result.status:11}", _STYLES[result.status]), f" {result.prop.name:22}")
    if result.status in ("passed", "failed"):
        line.append(f" {result.tried:>9,} tried {result.seconds:>6.1f} s")
    else:
        line.append(f" {result.why}")
    stdout.print(line, soft_wrap=True)
    if result.is_needless_waiver:
        warn(f"{result.prop.name} is waived, but passes; remove the waiver")


def _show_failures(report: "Report") -> None:
    for result in report.failed:
        stdout.print()
        stdout.print(Text(result.describe()), soft_wrap=True)
    counts = {status: sum(result.status == status for result in report.results) for status in _STYLES}
    stdout.print()
    stdout.print(Text(" · ".join(f"{count} {status}" for status, count in counts.items() if count)))
    if report.unknown:
        stdout.print(Text(report.unknown, "bold yellow"), soft_wrap=True)
