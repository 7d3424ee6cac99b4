"""The parent's side of worker processes: `Supervisor` starts them, `Worker` listens, watches the clock and blames.

Callers decide what is sent, how long an entry may take and what a lost worker costs. They are the scoring pool,
the sandbox of `check`, the fuzzer, the builder of data sets, and the trainer's trackers and chat templates.
"""

import pickle
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any, Literal

from tinyzero_sdk.errors import BrokenTaskError, TinyZeroError
from tinyzero_sdk.workers.process import ClosesOnExit, Service, WorkerProcess

START_SECONDS = 120.0
"""Limit for the start of Python and the task's imports."""

_TICK_SECONDS = 0.05  # how soon the end of a worker is noticed where its socket stays open


@dataclass(frozen=True, slots=True)
class WorkerLoss:
    """How a worker was lost."""

    kind: Literal["died", "hung"]

    index: int | None
    """The entry of its job that it was working on, by its timer; None between two entries."""

    is_certain: bool
    """Whether that entry is to blame. A closed socket is noticed at once, but by then the worker may be at a later
    entry than the one that closed it."""


class Supervisor:
    """Starts the workers of one task, which each of them loads again."""

    def __init__(self, task: Any, environment: Mapping[str, str] | None = None) -> None:
        """`environment` has variables to add to ours."""
        self.task_name: str = task.name
        self._task = pickle.dumps(task)
        self._environment = environment

    def start(self, service: Service) -> "Worker":
        """Start a worker that runs `service`; it does not wait for it."""
        return Worker(WorkerProcess(self._task, service, self._environment), f"task {self.task_name!r}")


class Worker(ClosesOnExit):
    """A worker process, and what its parent knows of it."""

    def __init__(self, process: WorkerProcess, loading: str) -> None:
        """`loading` says what it loads first."""
        self.process = process
        self.timer = process.timer
        self.started_at = time.monotonic()
        self.is_ready = False
        """Whether it has loaded the task."""

        self.has_ended = False
        """Whether it is dead, or has closed its socket."""

        self._loading = loading

    def send(self, message: Any) -> None:
        """Send a message; `status` shows later if the worker was dead."""
        try:
            self.process.connection.send(message)
        except OSError:
            self.has_ended = True

    def messages(self, timeout: float | None = 0.0) -> Iterator[Any]:
        """The messages that have come, waiting up to `timeout` seconds for the first (None = no limit).

        Raises:
            TinyZeroError: the worker has sent it, such as that it cannot load the task.
        """
        try:
            while self.process.connection.poll(timeout):
                message = self.process.connection.recv()
                if isinstance(message, TinyZeroError):
                    raise message
                if self.is_ready:
                    yield message
                self.is_ready, timeout = True, 0.0
        except (EOFError, OSError):
            self.has_ended = True

    def wait_until_ready(self) -> None:
        """Wait until the worker has loaded the task.

        Raises:
            TinyZeroError: the worker cannot load the task; as `BrokenTaskError` also if it ends or hangs meanwhile.
        """
        while not self.is_ready:
            list(self.messages(_TICK_SECONDS))
            if self.status(START_SECONDS) and not self.is_ready:
                raise self.load_failure()

    def load_failure(self) -> BrokenTaskError:
        """The error of a worker that ended or hung before it was ready."""
        return BrokenTaskError(
            f"a worker process ended or hung while it loaded {self._loading}; see the messages above"
        )

    def status(self, timeout: float) -> Literal["died", "hung"] | None:
        """How it is lost: dead, or hung, at one entry for over `timeout` seconds or in its start; None if it is not."""
        if self.process.has_ended() and not self.process.connection.poll():  # its last words may just have come
            self.has_ended = True
        if self.has_ended:
            return "died"
        is_late = self.timer.seconds > timeout or not (
            self.is_ready or time.monotonic() - self.started_at < START_SECONDS
        )
        return "hung" if is_late else None

    def kill(self, timeout: float) -> WorkerLoss:
        """End it, and say what it was working on; what it had sent can still be read."""
        died_by_itself = self.process.has_ended()
        self.process.kill()
        # Between our look and the kill a late worker may have gone on to another entry, which is not to blame.
        is_late = self.timer.seconds > timeout
        index = self.timer.index if self.has_ended or is_late else None
        return WorkerLoss("died" if self.has_ended else "hung", index, is_late or died_by_itself)

    def close(self) -> None:
        self.process.close()


def wait_for_any(workers: Iterable[Worker], timeout: float) -> None:
    """Wait until a worker has sent something or ended, up to `timeout` seconds."""
    wait([worker.process.connection for worker in workers if not worker.has_ended], timeout)
