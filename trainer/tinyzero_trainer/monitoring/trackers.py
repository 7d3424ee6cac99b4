"""W&B, trackio and TensorBoard as observers that can neither stop nor stall a run.

Each has a process of its own (`tracker_process.py`), and threads here that write to it and listen: if it fails, hangs
or is killed, the run loses its points there at most; `tinyzero runs --send` records them later from `metrics.jsonl`.
The trackers' files are in the run directory, and trackio's in its own cache for all runs.
"""

import json
import pickle
import shlex
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any

from tinyzero_sdk.console import plural
from tinyzero_sdk.errors import TinyZeroError
from tinyzero_sdk.workers.process import ClosesOnExit, WorkerProcess
from tinyzero_sdk.workers.supervisor import Worker
from tinyzero_trainer.config import LogConfig
from tinyzero_trainer.monitoring.metrics_log import plain_number
from tinyzero_trainer.monitoring.tracker_process import record

MOST_WAITING = 1000
"""Steps that wait for a slow tracker; further ones are dropped and counted."""

PATIENCE = 15.0
"""Seconds that the end of a run waits for a tracker to start, to record one more step, or to finish."""

Report = Callable[[str], None]


class Trackers(ClosesOnExit):
    """The trackers of a run; no method waits for them (except `close`, for a while) or raises their errors."""

    def __init__(
        self, log: LogConfig, config: Mapping[str, Any], directory: Path, report: Report, *, anew: bool = False
    ) -> None:
        """Start the trackers that `log` names for the run in `directory`; `config` is what they show of it.

        Args:
            report: told one-line messages for the user, by other threads.
            anew: whether a whole run is recorded beside what a tracker has of it, for which `log` and `close` wait.
        """
        options = {"project": log.project, "config": config, "anew": anew, "directory": str(directory)}
        self._trackers = [_Tracker({"name": name, **options}, report) for name in dict.fromkeys(log.trackers)]

    def log(self, step: int, metrics: Mapping[str, Any]) -> None:
        """Pass on the metrics of a step; NaN and infinities are left out."""
        if self._trackers:
            numbers = {key: number for key, value in metrics.items() if (number := plain_number(value)) is not None}
            for tracker in self._trackers:
                tracker.put(step, numbers)

    @property
    def has_failed(self) -> bool:
        """Whether a tracker lacks steps."""
        return any(tracker.has_failed for tracker in self._trackers)

    def close(self) -> None:
        """Let the trackers finish as long as they make progress, and end their processes."""
        for tracker in self._trackers:
            tracker.finish()
        for tracker in self._trackers:
            tracker.close()


class _Tracker:
    """One tracker's process, its queue and its threads."""

    def __init__(self, options: Mapping[str, Any], report: Report) -> None:
        self._name, self._report = options["name"], report
        self._directory, self._waits = options["directory"], options["anew"]
        self.has_failed = False
        self._put = self._recorded = self._dropped = 0
        self._sign = time.monotonic()  # of life, the last one
        self._queue: SimpleQueue[tuple[int, Mapping[str, float]] | None] = SimpleQueue()
        arguments = pickle.dumps(json.dumps(options, default=str))
        self._worker = Worker(WorkerProcess(arguments, record, outlives_parent=True), self._name)
        self._writer = Thread(target=self._write, name=self._name, daemon=True)
        self._listener = Thread(target=self._listen, name=self._name, daemon=True)
        self._writer.start()
        self._listener.start()

    def put(self, step: int, metrics: Mapping[str, float]) -> None:
        """Queue a step, or drop it if too many wait."""
        while self._waits and self._put - self._recorded >= MOST_WAITING and not self.has_failed:
            time.sleep(0.01)
        if self.has_failed:
            return
        if self._put - self._recorded < MOST_WAITING:
            self._put += 1
            self._queue.put((step, metrics))
        else:
            self._dropped += 1

    def finish(self) -> None:
        """There are no more steps."""
        self._queue.put(None)
        self._closed = time.monotonic()

    def close(self) -> None:
        """Wait as long as it makes progress, and end its process and what that has started."""
        while self._listener.is_alive() and (left := max(self._sign, self._closed) + PATIENCE - time.monotonic()) > 0:
            self._listener.join(min(left, 0.05))
        if self._listener.is_alive():
            self._fail("it did not finish in time")
        elif self._dropped:
            self._fail(f"it was too slow, {plural(self._dropped, 'step')} missing there")
        self._worker.process.kill()
        self._writer.join()
        self._listener.join()
        self._worker.close()

    def _write(self) -> None:
        with suppress(OSError):  # it has ended, which the other thread reports once it has heard everything
            while (row := self._queue.get()) is not None:
                self._worker.process.connection.send(row)
            self._worker.process.connection.send(None)

    def _listen(self) -> None:
        try:
            while not self._worker.has_ended:
                for news in self._worker.messages(None):
                    self._recorded += "recorded" in news
                    self._sign = time.monotonic()
                    if news.get("failed"):
                        self._fail(news["say"])
                    elif "say" in news:
                        self._report(f"{self._name}: {news['say']}")
        except TinyZeroError as error:  # it cannot even start
            self._fail(str(error))
        self._worker.process.kill()  # what it has left in its group
        if code := self._worker.process.exit_code:
            self._fail(
                f"its process ended with code {code}" if code > 0 else f"its process was ended by signal {-code}"
            )

    def _fail(self, reason: str) -> None:
        """Report it, if it is the first fault."""
        if not self.has_failed:
            self.has_failed = True
            send = f"tinyzero runs --send {shlex.quote(self._directory)}"
            self._report(f"{self._name}: {reason}; metrics.jsonl has everything, to record it there later: {send}")
