"""`tinyzero check`: whether a task keeps the laws of the conformance kit."""

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from tinyzero_sdk.cli.task_options import AllowUnsafe, TaskOverrides, load_task_with_overrides
from tinyzero_sdk.console import print_json, stderr, stdout, warn
from tinyzero_sdk.errors import SettingsError

if TYPE_CHECKING:
    from tinyzero_sdk.tasks.task import Task
    from tinyzero_sdk.testing.cases import Case
    from tinyzero_sdk.testing.report import Report, Result

_STYLES = {"kept": "green", "broken": "bold red", "waived": "yellow", "not checked": "dim"}


def register(app: typer.Typer) -> None:
    """Add the command of this file."""
    app.command("check")(check)


def check(
    task: Annotated[
        str, typer.Argument(help="Name of an installed task, or path of one (file or package).", show_default=False)
    ] = "",
    words: TaskOverrides = None,
    law: Annotated[
        list[str] | None, typer.Option("--law", help="Check this law alone; may be repeated.", show_default="all")
    ] = None,
    examples: Annotated[int, typer.Option("--examples", min=1, help="Completions that a law draws.")] = 200,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Of the items, and of all choices.")] = 0,
    cases: Annotated[
        Path | None,
        typer.Option("--cases", help="More labelled completions, beside the task's own and ./TASK.cases.jsonl."),
    ] = None,
    replay: Annotated[
        str | None, typer.Option("--replay", help="Judge one completion only: a labelled case as JSON.")
    ] = None,
    save: Annotated[bool, typer.Option("--save", help="Add what fails to ./TASK.cases.jsonl.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
    list_laws: Annotated[bool, typer.Option("--list", help="List the laws and exit.")] = False,
    allow_unsafe_scorers: AllowUnsafe = False,
) -> None:
    """Check that a task's reward cannot be gamed, and that its data are sound.

    Every law is tried on gold, near misses, malformed and hostile completions, in a process of its own. A failure
    shows the smallest completion that breaks the law, and the command that replays it; then the exit code is 1.
    """
    if list_laws:
        _list_laws(json)
        return
    if not task:
        raise SettingsError("no task given; give its name or the path of its file, such as: tinyzero check countdown")
    from tinyzero_sdk.testing import known_cases

    opened = load_task_with_overrides(task, words, allow_unsafe_scorers=allow_unsafe_scorers)
    known = known_cases(opened, *([cases] if cases else []))
    report = _run(opened, law or [], examples, seed, known, replay, quiet=json)
    if json:
        print_json(report.as_json())
    else:
        _show_failures(report)
    if save:
        _save(opened, report)
    if not report.passed:
        raise typer.Exit(1)


def _run(
    task: "Task", names: list[str], examples: int, seed: int, cases: "list[Case]", replay: str | None, *, quiet: bool
) -> "Report":
    from tinyzero_sdk.testing import Checker, Report, find_laws
    from tinyzero_sdk.testing.report import parse_replay

    laws = find_laws(names)
    if replay is not None and len(laws) != 1:
        raise SettingsError("--replay judges a completion by one law; name it with --law")
    results = []
    with Checker(task, examples=examples, seed=seed, cases=cases) as checker:
        if not quiet:
            stdout.print(Text(f"{task.name} {task.version}"))
        for law in laws:
            with stderr.status(f"checking {law.name}"):
                result = checker.check(law) if replay is None else checker.replay(law, parse_replay(replay))
            results.append(result)
            if not quiet:
                _show_line(result)
    return Report(task.name, task.version, seed, tuple(results))


def _list_laws(as_json: bool) -> None:
    from tinyzero_sdk.testing import LAWS

    if as_json:
        print_json([{"law": law.name, "text": law.text, "reason": law.reason, "needs": law.needs} for law in LAWS])
        return
    for law in LAWS:
        text = textwrap.fill(law.text, 78, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)
        stdout.print(Text.assemble((law.name, "bold"), "\n", text))


def _show_line(result: "Result") -> None:
    line = Text.assemble((f"{result.status:11}", _STYLES[result.status]), f" {result.law.name:22}")
    if result.status in ("kept", "broken"):
        line.append(f" {result.tried:>9,} tried {result.seconds:>6.1f} s")
    else:
        line.append(f" {result.why}")
    stdout.print(line, soft_wrap=True)
    if result.is_needless_waiver:
        warn(f"{result.law.name} is waived, but the task keeps it; remove the waiver")


def _show_failures(report: "Report") -> None:
    for result in report.broken:
        stdout.print()
        stdout.print(Text(result.tell()), soft_wrap=True)
    counts = {status: sum(result.status == status for result in report.results) for status in _STYLES}
    stdout.print()
    stdout.print(Text(" · ".join(f"{count} {status}" for status, count in counts.items() if count)))
    if any("oracle" in result.law.needs and result.why.startswith("no oracle") for result in report.results):
        stdout.print(Text("not tested for wrong answers that are paid: no oracle", "bold yellow"))


def _save(task: "Task", report: "Report") -> None:
    from tinyzero_sdk.testing import local_cases_path
    from tinyzero_sdk.testing.cases import add_cases

    path = local_cases_path(task)
    added = add_cases(path, [result.case for result in report.results if result.case])
    stderr.print(Text(f"{added} new cases in {path}"), soft_wrap=True)
