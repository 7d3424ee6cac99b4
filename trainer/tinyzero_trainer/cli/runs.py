"""`tinyzero runs`: the runs below a directory, how to resume them, and what they take on the disk."""

import dataclasses
import shlex
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated

import typer
from rich import filesize
from rich.text import Text

from tinyzero_sdk.cli.summary_report import table
from tinyzero_sdk.console import percent, plural, print_json, stderr, stdout
from tinyzero_sdk.errors import DataError, SettingsError

if TYPE_CHECKING:
    from tinyzero_trainer.checkpoint.run_status import RunStatus


def runs(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[DIR]...", help="Runs, or directories with runs below them: . (here)."),
    ] = None,
    delete: Annotated[bool, typer.Option("--delete", help="Delete these runs, after asking.")] = False,
    prune: Annotated[
        bool,
        typer.Option(
            "--prune",
            help="Delete all checkpoints of these runs but the newest, and those that other runs need, after asking.",
        ),
    ] = False,
    send: Annotated[
        bool, typer.Option("--send", help="Record these runs in their trackers once more, from metrics.jsonl.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List runs: state, steps, held-out accuracy, size on the disk, and how to resume or delete them.

    A stopped run can be resumed; an aborted one ended before its first checkpoint, and --resume starts it again. A run
    in progress is never deleted.
    """
    from tinyzero_trainer.checkpoint import run_status

    verbs = [verb for verb, wanted in {"delete": delete, "prune": prune, "send": send}.items() if wanted]
    if len(verbs) > 1:
        raise SettingsError("--delete, --prune and --send: give one of them")
    for path in paths or ():
        if not path.is_dir():
            raise DataError(f"{path} is not a directory; expected a run, or a directory with runs below it")
    for verb in verbs:
        named = list({path.resolve(): path for path in paths or ()}.values())
        if not named or any(run_status.find_runs(path, depth=0) != [path] for path in named):
            raise SettingsError(f"--{verb} needs the runs themselves: tinyzero runs --{verb} RUN...")
        if not (yes or send):
            _ask(verb, named)
        for path in named:
            if send:
                result = _send(path)
            elif prune:
                result = f"{filesize.decimal(run_status.prune(path))} freed"
            else:
                run_status.delete(path)
                result = "deleted"
            stdout.print(Text(f"{path}: {result}"), soft_wrap=True)
        return
    by_place = {run.resolve(): run for path in paths or [Path()] for run in run_status.find_runs(path)}
    statuses = sorted(map(run_status.status_of, by_place.values()), key=lambda run: run.changed, reverse=True)
    if json:
        derived = ({"path": str(run.path), "size": run.size, "delete": _delete_command(run)} for run in statuses)
        print_json([dataclasses.asdict(run) | more for run, more in zip(statuses, derived, strict=True)])
    elif not statuses:
        where = ", ".join(map(str, paths or [Path.cwd()]))
        stderr.print(Text(f"no runs below {where}; tinyzero train writes them to runs/ unless --output says otherwise"))
    elif len(statuses) == 1:
        _show(statuses[0])
    else:
        _show_all(statuses)


def _ask(verb: str, paths: list[Path]) -> None:
    """Ask whether to delete or prune these runs, and leave if not."""
    from tinyzero_trainer.checkpoint.run_status import status_of

    for path in paths:
        run = status_of(path)
        stderr.print(Text(f"{path}: {run.state}, {_steps(run)}, {filesize.decimal(run.size)}"), soft_wrap=True)
    if not stderr.is_terminal:
        raise SettingsError(f"--{verb} asks first, which needs a terminal; --yes does not ask")
    if not typer.confirm(f"{verb} {plural(len(paths), 'run')}?", err=True):
        raise typer.Exit(1)


def _send(path: Path) -> str:
    from tinyzero_sdk.settings import build, read_toml
    from tinyzero_trainer.checkpoint.run_status import status_of
    from tinyzero_trainer.config import LogConfig
    from tinyzero_trainer.monitoring.metrics_log import read_metrics
    from tinyzero_trainer.monitoring.trackers import Trackers

    if status_of(path).state == "running":
        raise SettingsError(f"{path} is in progress; wait until it ends")
    config, rows = read_toml(path / "config.toml"), read_metrics(path / "metrics.jsonl")
    log = build(LogConfig, config.get("log", {}), "log.")
    if not log.trackers:
        raise SettingsError(f"{path} has no trackers; name them in its config.toml, as trackers of [log]")
    with Trackers(log, config, path, lambda text: stderr.print(Text(text), soft_wrap=True), anew=True) as trackers:
        for row in rows:
            trackers.log(row.pop("step"), {key: value for key, value in row.items() if isinstance(value, int | float)})
    if trackers.has_failed:
        raise typer.Exit(1)
    return f"{plural(len(rows), 'step')} recorded in {', '.join(log.trackers)}"


def _delete_command(run: "RunStatus") -> str:
    return f"tinyzero runs --delete {shlex.quote(str(run.path))}"


def _steps(run: "RunStatus") -> str:
    step = "no step" if run.step is None else f"{run.step:,}"
    return step if run.steps is None else f"{step}/{run.steps:,}"


def _accuracy(run: "RunStatus", *tasks: str) -> str:
    """Mean over these tasks, before and now."""
    if not tasks:
        return ""
    first, last = (fmean(values) for values in zip(*(run.accuracy[task] for task in tasks), strict=True))
    # A warm start may be evaluated once, at its end.
    return f"{percent(first)} -> {percent(last)}" if run.evaluated and first != last else percent(last)


def _show_all(statuses: list["RunStatus"]) -> None:
    shown = table("run", "state", "step", "accuracy", "size")
    for run in statuses:
        state = run.state + ", audit alarm" * bool(run.alarms)
        shown.add_row(
            str(run.path),
            state,
            _steps(run),
            _accuracy(run, *run.accuracy.keys() & run.tasks),
            filesize.decimal(run.size),
        )
    stdout.print(shown)
    total = filesize.decimal(sum(run.size for run in statuses))
    stdout.print(f"\n{plural(len(statuses), 'run')}, {total}; more of one: tinyzero runs RUN", soft_wrap=True)
    for run in statuses:
        if run.fault:
            stdout.print(Text(f"unreadable: {run.fault}"), soft_wrap=True)
    for run in statuses:
        if run.resume and run.state == "stopped":
            stdout.print(Text(f"resume: {run.resume}"), soft_wrap=True)


def _show(run: "RunStatus") -> None:
    where = shlex.quote(str(run.path))
    rates = ", ".join(f"{task} {percent(rate)}".strip() for task, rate in run.false_positive_rate.items())
    large = sorted(run.bytes.items(), key=lambda entry: entry[1], reverse=True)[:3]
    parts = ", ".join(f"{name} {filesize.decimal(size)}" for name, size in large)
    rows = {
        "run": str(run.path),
        "state": f"{run.state}: {run.fault}" if run.fault else run.state,
        "task": ", ".join(run.tasks),
        "model": run.model or "",
        "step": _steps(run),
        "accuracy": ", ".join(f"{task} {_accuracy(run, task)}" for task in run.accuracy),
        "audit": f"{rates} of what was rewarded is wrong, {plural(run.alarms, 'alarm')}" if rates else "",
        "size": f"{filesize.decimal(run.size)} ({parts})",
        "checkpoints": f"of step {', '.join(map(str, run.checkpoints))}" if run.checkpoints else "none",
        "resume": f"{run.resume or ''}{'  # from the start' * (run.state == 'aborted')}",
        "report": f"tinyzero report {where}",
        "prune": f"tinyzero runs --prune {where}" if len(run.checkpoints) > 1 and run.state != "running" else "",
        "delete": _delete_command(run) if run.state != "running" else "",
    }
    for name, value in rows.items():
        if value:
            stdout.print(Text.assemble((f"{name:<13}", "bold"), value), soft_wrap=True)
