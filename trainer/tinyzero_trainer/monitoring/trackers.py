"""W&B, trackio and TensorBoard as observers that can neither stop nor stall a run.

Each has a daemon thread fed through a bounded queue: if it raises or hangs, the run loses at most its points there.
`metrics.jsonl` is the record; their files are in the run directory, and trackio's in its own cache for all runs.
"""

import sys
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any

from tinyzero_sdk.console import plural
from tinyzero_sdk.settings import to_mapping
from tinyzero_sdk.workers.process import ClosesOnExit
from tinyzero_trainer.config import SftConfig, TrainConfig
from tinyzero_trainer.errors import first_line
from tinyzero_trainer.monitoring.metrics_log import plain_number

QUEUE_SIZE = 1000
"""Steps that wait for a slow tracker; further ones are dropped and counted."""

CLOSE_SECONDS = 15.0
"""Time for all trackers together to finish, after which they are abandoned."""

WANDB_INIT_SECONDS = 8.0
"""After that W&B records offline."""

Row = tuple[int, Mapping[str, float]]
"""A step and its metrics."""

Report = Callable[[str], None]


class Trackers(ClosesOnExit):
    """The trackers of a run; no method waits for them (except `close`, for a while) or raises their errors."""

    def __init__(self, config: TrainConfig | SftConfig, directory: Path, report: Report) -> None:
        """Start `log.trackers` of a run in `directory`; other threads `report` one-line messages for the user."""
        observers = {
            "wandb": partial(_record_in_wandb, config, directory),
            "trackio": partial(_record_in_trackio, config, directory),
            "tensorboard": partial(_record_in_tensorboard, directory),
        }
        names = dict.fromkeys(config.log.trackers)
        self._trackers = [_Tracker(name, observers[name], report) for name in names]

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


class _Tracker:
    """One tracker's queue and thread."""

    def __init__(self, name: str, observe: Callable[[Iterable[Row], Report], None], report: Report) -> None:
        """`observe` records rows until there are no more."""
        self._observe, self._dropped = observe, 0
        self._report: Report = lambda text: report(f"{name}: {text}")
        self._queue: SimpleQueue[Row | None] = SimpleQueue()
        self._thread = Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def put(self, row: Row | None) -> None:
        """Queue a step (None = there are no more), or drop it if the queue is full."""
        if not self._thread.is_alive():
            return  # it has reported why it stopped
        if row is None or self._queue.qsize() < QUEUE_SIZE:
            self._queue.put(row)
        else:
            self._dropped += 1

    def join(self, deadline: float) -> None:
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive():
            self._report("did not finish in time; metrics.jsonl has everything")
        if self._dropped:
            self._report(f"was too slow, {plural(self._dropped, 'step')} missing there; metrics.jsonl has them")

    def _run(self) -> None:
        try:
            self._observe(iter(self._queue.get, None), self._report)
        except ModuleNotFoundError as error:
            extra = "trackio" if self._thread.name == "trackio" else "trackers"
            advice = f"install it with: pip install 'tinyzero-trainer[{extra}]'"
            self._report(f"{error}; {advice}. Training continues without it")
        except BaseException as error:  # the libraries promise nothing, and nobody else sees what this thread raises
            reason = str(error).strip().partition("\n")[0] or "no reason given"
            self._report(f"{type(error).__name__}: {reason}; training continues without it")


def _record_in_wandb(config: TrainConfig | SftConfig, directory: Path, rows: Iterable[Row], report: Report) -> None:
    import wandb

    # At the interpreter's exit, too, it waits for uploads no longer than this; older versions lack the setting.
    limit: dict[str, Any] = {"finish_timeout": CLOSE_SECONDS} if "finish_timeout" in wandb.Settings.model_fields else {}
    # Silent from the start, so that it does not prompt for a key: without one it raises, and records offline.
    settings = wandb.Settings(init_timeout=WANDB_INIT_SECONDS, silent=True, console="off", **limit)
    wandb.setup(settings)
    options: dict[str, Any] = {
        "project": config.log.project,
        "name": directory.name,
        "config": to_mapping(config),
        "dir": str(directory),
        "id": _run_id(directory),
        "resume": "allow",
        "settings": settings,
    }
    try:
        run = wandb.init(**options)
    except Exception as error:  # of any type: a run on the disk can be uploaded later
        upload = f"wandb sync {directory}/wandb/offline-run-*"
        report(f"recording offline ({first_line(error)}); upload with: {upload}")
        wandb.teardown()  # or the failed attempt keeps the id
        run = wandb.init(**options, mode="offline")
    if run.url:
        report(f"recording at {run.url}")
    for step, metrics in rows:
        run.log(dict(metrics), step=step)
    run.finish()


def _record_in_trackio(config: TrainConfig | SftConfig, directory: Path, rows: Iterable[Row], report: Report) -> None:
    import trackio

    run = None
    for step, metrics in rows:
        if run is None:
            # A new run may have the name of an older one in another directory; a resumed one continues the newest.
            resume = "allow" if step else "never"
            with redirect_stdout(sys.stderr):  # it says where it records, and stdout is for results
                run = trackio.init(
                    config.log.project, directory.name, config=to_mapping(config), resume=resume, embed=False
                )
        run.log(dict(metrics), step=step)
    if run is not None:
        with redirect_stdout(sys.stderr):
            run.finish()


def _record_in_tensorboard(directory: Path, rows: Iterable[Row], report: Report) -> None:
    from tensorboard.compat.proto.event_pb2 import Event, SessionLog
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    # TensorBoard's own writer: torch's SummaryWriter takes seconds to import.
    writer = EventFileWriter(str(directory / "tensorboard"), flush_secs=5)
    start = SessionLog(status=SessionLog.START)  # hides what an earlier session wrote from this step on
    for step, metrics in rows:
        if start is not None:
            writer.add_event(Event(wall_time=time.time(), step=step, session_log=start))
            start = None
        values = [Summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        writer.add_event(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))
    writer.close()


def _run_id(directory: Path) -> str:
    """W&B's id of this run: new in a new directory, the same when it is resumed."""
    file = directory / ".wandb-id"
    if not file.exists():
        file.write_text(uuid.uuid4().hex[:8], encoding="utf-8")
    return file.read_text(encoding="utf-8")
