"""Runs as seen from outside: their state, how far they came, what they take on the disk; pruning, deletion, copies."""

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tinyzero_sdk.errors import DataError, SettingsError
from tinyzero_sdk.settings import get, read_toml
from tinyzero_trainer.checkpoint import store
from tinyzero_trainer.checkpoint.run_directory import OWNER, RunDirectory, RunDirectoryError, errors_in_one_line
from tinyzero_trainer.config.resume import resume_command
from tinyzero_trainer.monitoring.metrics_log import (
    audit_alarms,
    false_positive_rates,
    held_out_accuracies,
    read_metrics,
)

DEPTH = 4  # of runs below the directory that is searched

State = Literal["running", "finished", "stopped", "aborted", "unreadable"]
"""Stopped runs can be resumed, aborted ones have no checkpoint, unreadable ones a damaged configuration."""


@dataclass(frozen=True)
class RunStatus:
    """A run at this moment."""

    path: Path
    state: State
    tasks: tuple[str, ...]
    model: str | None
    step: int | None  # the last whose metrics are written; None = not even step 0
    steps: int | None  # steps of the whole run; None where its configuration gives seconds, or cannot be read
    accuracy: Mapping[str, tuple[float, float]]  # first and last held-out accuracy on each task
    evaluated: int | None  # the step of the last one
    false_positive_rate: Mapping[str, float]
    """By task, the fraction of the rewarded that the audit's last samples find wrong; a single task has no name."""

    alarms: int  # of the audit
    checkpoints: tuple[int, ...]
    bytes: Mapping[str, int]  # on the disk, by entry of the directory
    changed: float  # when metrics or configuration were last written, in seconds since 1970
    resume: str | None  # the command that resumes it, if it is stopped, or starts it again, if it is aborted
    fault: str | None  # why its configuration cannot be read

    @property
    def size(self) -> int:
        return sum(self.bytes.values())


def find_runs(directory: Path, depth: int = DEPTH) -> list[Path]:
    """The run directories at or below a directory, without following links; hidden ones are left out."""
    if (directory / "config.toml").is_file() and ((directory / OWNER).exists() or (directory / "checkpoints").is_dir()):
        return [directory]
    entries = sorted(directory.iterdir()) if depth and os.access(directory, os.R_OK | os.X_OK) else []
    inside = [entry for entry in entries if not (entry.name.startswith(".") or entry.is_symlink()) and entry.is_dir()]
    return [run for entry in inside for run in find_runs(entry, depth - 1)]


def status_of(path: Path) -> RunStatus:
    """What a run directory holds now."""
    run = RunDirectory(path)
    config: Mapping[str, Any] = {}
    fault = None
    try:
        config = read_toml(run.config)
    except SettingsError as error:
        fault = str(error)
    steps = get(config, "run.steps")
    if not isinstance(steps, int | None):
        steps, fault = None, f"{run.config}: run.steps is {str(steps)[:80]!r}; expected a whole number"
    newest, evaluated, accuracy = _progress(run.metrics)
    saved = sorted(step for step, _ in store.sealed(run.checkpoints))
    times = {file: file.stat().st_mtime for file in (run.metrics, run.config, run.curve) if file.exists()}
    drawn = times.pop(run.curve, 0.0)
    changed = max(times.values(), default=0.0)
    # Of a run in seconds: the plot is drawn at the end of a session.
    is_finished = bool(saved) and (drawn >= changed if steps is None else saved[-1] >= steps)
    state: State = "finished" if is_finished else "stopped" if saved else "aborted"
    if fault:
        state = "unreadable"
    if run.is_locked:
        state = "running"
    return RunStatus(
        path=path,
        state=state,
        tasks=tuple(config.get("tasks", ())),
        model=get(config, "model.path"),
        step=newest.get("step"),
        steps=steps,
        accuracy=accuracy,
        evaluated=evaluated,
        false_positive_rate=false_positive_rates(newest),
        alarms=audit_alarms(newest),
        checkpoints=tuple(saved),
        bytes={entry.name: _bytes(entry) for entry in sorted(path.iterdir())},
        changed=changed,
        resume=resume_command(config, path) if state in ("stopped", "aborted") else None,
        fault=fault,
    )


def prune(path: Path) -> int:
    """Delete all checkpoints of a run but the newest intact one; returns the bytes that this frees."""
    with _locked(path) as run, errors_in_one_line(path):
        before = _bytes(run.checkpoints)
        if run.checkpoints.is_dir():
            store.prune(run.checkpoints)
        return before - _bytes(run.checkpoints)


def delete(path: Path) -> None:
    """Delete a run directory; a RunDirectoryError if it is not a run's, or one in progress, or cannot be deleted."""
    with _locked(path), errors_in_one_line(path):
        shutil.rmtree(path.resolve())  # "." cannot be removed


def copy_run(path: Path, step: int, directory: Path) -> list[dict[str, Any]]:
    """Make a run that resumes before a step (1-based) of the run at `path`, by links; returns its metrics."""
    run = RunDirectory(path)
    if not run.config.is_file():
        raise SettingsError(f"{path} holds no run; give the directory of one (tinyzero runs lists them)")
    config, rows = read_toml(run.config), read_metrics(run.metrics)
    taken = max((row["step"] for row in rows), default=0)
    steps = get(config, "run.steps")
    last = taken + 1 if steps is None else min(taken + 1, steps)  # one that broke has no line
    if not 1 <= step <= last:
        raise SettingsError(f"{path} has done {taken:,} steps, got step {step:,}; give one from 1 to {last:,}")
    copy = RunDirectory(directory)
    copy.checkpoints.mkdir()
    copy.config.write_bytes(run.config.read_bytes())
    copy.metrics.write_text("".join(f"{json.dumps({'step': before})}\n" for before in range(step)), encoding="utf-8")
    if (model := path / "new_model").is_dir():
        (directory / model.name).symlink_to(model.resolve())
    for number, saved in store.sealed(run.checkpoints):
        if number < step:
            (copy.checkpoints / saved.name).symlink_to(saved.resolve())
    return rows


@contextmanager
def _locked(path: Path) -> Iterator[RunDirectory]:
    if not all((path / name).is_file() for name in (OWNER, "config.toml")):
        raise RunDirectoryError(f"{path} is not a run directory, so nothing in it is deleted")
    run = RunDirectory(path)
    with run.acquire():
        yield run


def _progress(metrics: Path) -> tuple[dict[str, Any], int | None, dict[str, tuple[float, float]]]:
    """The last line, the last evaluated step, and the first and the last accuracy on each task."""
    rows: list[dict[str, Any]] = []
    with suppress(DataError):  # not even step 0 is written, or a line is damaged
        rows = read_metrics(metrics)
    evaluated = [(row["step"], accuracies) for row in rows if (accuracies := held_out_accuracies(row))]
    (_, first), (step, last) = (evaluated[0], evaluated[-1]) if evaluated else ((None, {}), (None, {}))
    newest = rows[-1] if rows else {}
    return newest, step, {task: (first.get(task, value), value) for task, value in last.items()}


def _bytes(path: Path) -> int:
    """Size of a file, or of all files in a directory; what the run deletes meanwhile counts nothing."""
    total = 0
    for entry in (path, *path.rglob("*")):
        with suppress(FileNotFoundError):
            total += 0 if entry.is_dir() else entry.lstat().st_size
    return total
