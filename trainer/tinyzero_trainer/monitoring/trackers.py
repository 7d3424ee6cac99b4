"""W&B and TensorBoard as observers that can neither stop nor stall a run.

Each has a daemon thread fed through a bounded queue: if it raises or hangs, the run loses at most its points there.
`metrics.jsonl` is the record; their files lie in the run directory.
"""

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from types import TracebackType
from typing import Any, Protocol, Self

from tinyzero_trainer.monitoring.metrics_log import plain_number

QUEUE_SIZE = 1000
"""Steps that wait for a slow tracker; further ones are dropped and counted."""

CLOSE_SECONDS = 15.0
"""Time for all trackers together to finish, after which they are abandoned."""

WANDB_INIT_SECONDS = 8.0
"""After that W&B records offline."""


@dataclass(frozen=True, slots=True)
class _Run:
    """The run as trackers show it."""

    directory: Path
    project: str
    name: str
    config: Mapping[str, Any]


class Trackers:
    """The trackers of a run; no method waits for them (except `close`, for a while) or raises their errors."""

    def __init__(
        self,
        names: Sequence[str],
        *,
        directory: Path,
        project: str,
        name: str,
        config: Mapping[str, Any],
        report: Callable[[str], None],
    ) -> None:
        """
        Args:
            names: any of `wandb` and `tensorboard`.
            directory: of the run.
            project: W&B project.
            name: of the run, for W&B.
            config: plain JSON.
            report: called from other threads with one-line messages for the user.
        """
        run = _Run(directory, project, name, config)
        self._trackers = [_Tracker(tracker, run, report) for tracker in dict.fromkeys(names)]

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Pass on the metrics of a step; NaN and infinities are left out."""
        if self._trackers:
            numbers = {key: number for key, value in metrics.items() if (number := plain_number(value)) is not None}
            for tracker in self._trackers:
                tracker.put((step, numbers))

    def close(self) -> None:
        """Let the trackers finish, for `CLOSE_SECONDS` at most."""
        deadline = time.monotonic() + CLOSE_SECONDS
        for tracker in self._trackers:
            tracker.put(None)
        for tracker in self._trackers:
            tracker.join(deadline)
        self._trackers = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Tracker:
    """One tracker's queue and thread."""

    def __init__(self, name: str, run: _Run, report: Callable[[str], None]) -> None:
        self._name, self._run = name, run
        self._report: Callable[[str], None] = lambda text: report(f"{name}: {text}")
        self._queue: SimpleQueue[tuple[int, Mapping[str, float]] | None] = SimpleQueue()
        self._dropped = 0
        self._thread = Thread(target=self._observe, name=name, daemon=True)
        self._thread.start()

    def put(self, row: tuple[int, Mapping[str, float]] | None) -> None:
        """Queue a step, or drop it if too many wait; None = there are no more."""
        if not self._thread.is_alive():
            return  # it has reported why it stopped
        if row is None or self._queue.qsize() < QUEUE_SIZE:
            self._queue.put(row)
        else:
            self._dropped += 1

    def join(self, deadline: float) -> None:
        """Wait for the thread until the deadline (of `time.monotonic`)."""
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive():
            self._report("did not finish in time; metrics.jsonl has everything")
        if self._dropped:
            self._report(f"was too slow, {self._dropped} steps are missing there; metrics.jsonl has them")

    def _observe(self) -> None:
        try:
            backend = _BACKENDS[self._name](self._run, self._report)
            while (row := self._queue.get()) is not None:
                backend.log(*row)
            backend.finish()
        except ModuleNotFoundError as error:
            advice = "install it with: pip install 'tinyzero-trainer[trackers]'"
            self._report(f"{error}; {advice}. Training continues without it")
        except BaseException as error:  # a library of which nothing is promised, and its thread has nobody to tell
            self._report(f"{type(error).__name__}: {_first_line(error)}; training continues without it")


class _Backend(Protocol):
    def log(self, step: int, metrics: Mapping[str, float]) -> None: ...
    def finish(self) -> None: ...


class _Wandb:
    def __init__(self, run: _Run, report: Callable[[str], None]) -> None:
        import wandb

        # At the interpreter's exit, too, it waits for uploads no longer than this; older versions lack the setting.
        limit: dict[str, Any] = (
            {"finish_timeout": CLOSE_SECONDS} if "finish_timeout" in wandb.Settings.model_fields else {}
        )
        # Silent from the start, so that it does not prompt for a key: without one it raises, and records offline.
        settings = wandb.Settings(init_timeout=WANDB_INIT_SECONDS, silent=True, console="off", **limit)
        wandb.setup(settings)
        options: dict[str, Any] = {
            "project": run.project,
            "name": run.name,
            "config": dict(run.config),
            "dir": str(run.directory),
            "id": _run_id(run.directory),
            "resume": "allow",
            "settings": settings,
        }
        try:
            self._run = wandb.init(**options)
        except Exception as error:  # whatever it is, a run on the disk can be uploaded later
            upload = f"wandb sync {run.directory}/wandb/offline-run-*"
            report(f"recording offline ({_first_line(error)}); upload with: {upload}")
            wandb.teardown()  # or the failed attempt keeps the id
            self._run = wandb.init(**options, mode="offline")
        if self._run.url:
            report(f"recording at {self._run.url}")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def finish(self) -> None:
        self._run.finish()


class _TensorBoard:
    def __init__(self, run: _Run, report: Callable[[str], None]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        # TensorBoard's own writer: torch's SummaryWriter takes seconds to import.
        self._event, self._session, self._summary = Event, SessionLog, Summary
        self._writer = EventFileWriter(str(run.directory / "tensorboard"), flush_secs=5)
        self._started = False

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        if not self._started:  # hides what an earlier session wrote from this step on
            start = self._session(status=self._session.START)
            self._writer.add_event(self._event(wall_time=time.time(), step=step, session_log=start))
            self._started = True
        values = [self._summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        self._writer.add_event(self._event(wall_time=time.time(), step=step, summary=self._summary(value=values)))

    def finish(self) -> None:
        self._writer.close()


_BACKENDS: Mapping[str, Callable[[_Run, Callable[[str], None]], _Backend]] = {
    "wandb": _Wandb,
    "tensorboard": _TensorBoard,
}


def _run_id(directory: Path) -> str:
    """W&B's id of this run: new in a new directory, the same when it is resumed."""
    file = directory / ".wandb-id"
    if not file.exists():
        file.write_text(uuid.uuid4().hex[:8], encoding="utf-8")
    return file.read_text(encoding="utf-8")


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
