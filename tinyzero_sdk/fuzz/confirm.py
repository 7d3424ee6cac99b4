"""Confirmation of hangs and crashes: one slow moment of the machine is no finding.

A completion blamed for either is tried again, alone and in fresh processes, and counts only if none of them survives.
"""

import pickle
import random
import time
import warnings
from functools import partial
from itertools import islice
from multiprocessing.connection import Connection

from tinyzero_sdk.errors import TinyZeroError
from tinyzero_sdk.fuzz.differential import PREPARING, DifferentialOracle
from tinyzero_sdk.fuzz.findings import Finding
from tinyzero_sdk.fuzz.items import FuzzItem
from tinyzero_sdk.fuzz.presentations import Attempt
from tinyzero_sdk.records import Json
from tinyzero_sdk.tasks.task import Task
from tinyzero_sdk.workers.process import SharedTimer, WorkerProcess, limit_memory

TIMES = 2  # times that a blamed completion must fail again
_START_SECONDS = 120.0  # for Python, the task's imports and a first score
_WARM_UP_ITEMS = 2
_WARM_UP_TIMES = 5  # timeouts, or seconds, that the first scores may take; gold completions need them too


class Confirmation:
    """One suspect, and the processes in which it is tried again, one after the other."""

    def __init__(self, task: bytes, suspect: Finding, timeout: float, memory_limit: int) -> None:
        """Take the pickled task, a finding of the kind `timeout` or `died`, and the limits of the search."""
        self.suspect = suspect
        self._task = task
        self._timeout = timeout
        self._service = partial(
            try_again, text=suspect.completion, truth=suspect.ground_truth, memory_limit=memory_limit
        )
        self._failed = 0
        self._start()

    def look(self) -> bool | None:
        """Whether it failed every time; None while that is open. Called repeatedly."""
        if self._has_survived():
            return False
        index, seconds = self._process.timer.index, self._process.timer.seconds
        patience = _WARM_UP_TIMES * max(1.0, self._timeout) if index == PREPARING else self._timeout
        if self._process.has_ended():
            if self._has_survived() or index is None:
                return False
        elif seconds <= patience:
            return False if time.monotonic() - self._born > _START_SECONDS else None
        self._failed += 1
        if self._failed == TIMES:
            return True
        self._process.close()
        self._start()
        return None

    def close(self) -> None:
        self._process.close()

    def _start(self) -> None:
        self._born = time.monotonic()
        self._process = WorkerProcess(self._task, self._service)

    def _has_survived(self) -> bool:
        """Whether the process reported that it is done, or why it cannot start."""
        try:
            while self._process.connection.poll():
                if pickle.loads(self._process.connection.recv_bytes()) is not None:
                    return True
        except (EOFError, OSError):
            pass  # it ended
        return False


def try_again(
    task: Task, connection: Connection, timer: SharedTimer, *, text: str, truth: Json, memory_limit: int
) -> None:
    """What the process does (see `worker.Service`): one completion, after what a task does on its first calls."""
    warnings.simplefilter("ignore")
    limit_memory(memory_limit)
    differential = DifferentialOracle(task, timer)
    differential.preparing()
    try:
        for item in islice(task.dataset("train", _WARM_UP_ITEMS), _WARM_UP_ITEMS):
            prepared = FuzzItem(differential, item, random.Random(0))
            answer = prepared.gold or prepared.answers[0]
            differential.is_right(answer, prepared.short.with_answer(answer), prepared.truth)
            task.score_completion(prepared.short.with_answer(answer), prepared.truth)
    except TinyZeroError:
        pass  # not what is tried here
    try:
        differential.compare(Attempt(text), truth)
    except MemoryError:
        return  # the search did not survive it either
    timer.stop()
    connection.send_bytes(pickle.dumps("done"))
