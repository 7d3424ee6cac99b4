"""Scoring without a process: a stand-in for the workers of a `ScoringPool`, for tests that ask about something else.

A process takes 0.15 s to start. What kills, hangs, prints or must not be trusted needs a real one.
"""

import pickle
import threading
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from typing import cast

from tinyzero_sdk.scoring import pool
from tinyzero_sdk.tasks.task import Task
from tinyzero_sdk.workers.process import Service, SharedTimer, WorkerProcess, to_picklable_error
from tinyzero_sdk.workers.supervisor import Supervisor, Worker


class ThreadSupervisor(Supervisor):
    """Starts threads in place of processes."""

    def start(self, service: Service) -> Worker:
        return Worker(cast(WorkerProcess, ScoringThread(self._task, service)), f"task {self.task_name!r}")


class ScoringThread:
    """As `WorkerProcess`, with the same messages to the same code, but in a thread of this process."""

    def __init__(self, task: bytes, service: Service) -> None:
        self.connection, theirs = Pipe()
        with SharedTimer.make_file() as shared:
            self.timer = SharedTimer(shared.fileno())
        self.timer.stop()
        self._thread = threading.Thread(target=_serve, args=(theirs, _load(task), service, self.timer), daemon=True)
        self._thread.start()

    def has_ended(self) -> bool:
        """Whether nothing will come any more."""
        return not self._thread.is_alive()

    def kill(self) -> None:
        """Nothing that a thread could be told."""

    def close(self) -> None:
        """End it, between two parcels."""
        self.connection.close()
        self._thread.join()


def _load(task: bytes) -> Task | Exception:
    """Not in the thread: in CPython 3.11 an `ast.parse` fails beside that of another thread, and plugins use it."""
    try:
        return cast(Task, pickle.loads(task))
    except Exception as error:  # as in a worker process, which imports a plugin
        return error


def _serve(connection: Connection, task: Task | Exception, service: Service, timer: SharedTimer) -> None:
    with connection, suppress(EOFError, OSError):  # the pool is done with us
        if isinstance(task, Exception):
            connection.send(to_picklable_error(task))
            return
        connection.send(None)
        service(task, connection, timer)


def score_answers(task: Task, connection: Connection, timer: SharedTimer, *, memory_limit: int) -> None:
    """As the pool's, without the limit: it would be that of the tests."""
    assert memory_limit > 0
    while pool._answer(connection.recv(), task, connection, timer, 2**63):
        pass
