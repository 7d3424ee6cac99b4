"""Confirmation of hangs and crashes: one slow moment of the machine is no finding.

A completion blamed for either is tried again, alone and in fresh processes, and counts only if none of them survives.
"""

import random
import warnings
from contextlib import suppress
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
from tinyzero_sdk.workers.process import SharedTimer, limit_memory
from tinyzero_sdk.workers.supervisor import Supervisor

TIMES = 2  # times that a blamed completion must fail again
_WARM_UP_ITEMS = 2
_WARM_UP_TIMES = 5  # timeouts, or seconds, that the first scores may take; gold completions need them too


class Confirmation:
    """One suspect, and the processes in which it is tried again, one after the other."""

    def __init__(self, supervisor: Supervisor, suspect: Finding, timeout: float, memory_limit: int) -> None:
        """Take a finding of the kind `timeout` or `died`, and the limits of the search."""
        self.suspect = suspect
        self._supervisor = supervisor
        self._timeout = timeout
        self._service = partial(
            try_again, text=suspect.completion, truth=suspect.ground_truth, memory_limit=memory_limit
        )
        self._failed = 0
        self._process = supervisor.start(self._service)

    def look(self) -> bool | None:
        """Whether it failed every time; None while that is open. Called repeatedly."""
        patience = self._timeout
        if self._process.timer.index == PREPARING:
            patience = _WARM_UP_TIMES * max(1.0, self._timeout)
        if self._has_survived():
            return False
        if self._process.fate(patience) is None:
            return None
        loss = self._process.kill(patience)
        if self._has_survived() or loss.index is None:  # it ended or hung outside of the completion
            return False
        self._failed += 1
        if self._failed == TIMES:
            return True
        self.close()
        self._process = self._supervisor.start(self._service)
        return None

    def close(self) -> None:
        self._process.close()

    def _has_survived(self) -> bool:
        """Whether the process reported that it is done, or why it cannot start."""
        try:
            return any(True for _ in self._process.messages())
        except TinyZeroError:
            return True


def try_again(
    task: Task, connection: Connection, timer: SharedTimer, *, text: str, truth: Json, memory_limit: int
) -> None:
    """The service of such a process: one completion, after what a task does on its first calls."""
    warnings.simplefilter("ignore")
    limit_memory(memory_limit)
    differential = DifferentialOracle(task, timer)
    differential.preparing()
    with suppress(TinyZeroError):  # not what is tried here
        for item in islice(task.dataset("train", _WARM_UP_ITEMS), _WARM_UP_ITEMS):
            prepared = FuzzItem(differential, item, random.Random(0))
            answer = prepared.gold or prepared.answers[0]
            differential.is_right(answer, prepared.short.with_answer(answer), prepared.truth)
            task.score_completion(prepared.short.with_answer(answer), prepared.truth)
    try:
        differential.compare(Attempt(text), truth)
    except MemoryError:
        return  # the search did not survive it either
    timer.stop()
    connection.send("done")
