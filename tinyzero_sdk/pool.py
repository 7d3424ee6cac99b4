"""Scoring in worker processes, with a time and a memory limit for every single answer.

A task's scorer may hang, die, leak or print, whatever it is made to read; the pool kills and replaces the
worker, that one answer scores 0 with the reason `timeout` or `error`, and all others get their verdict.
"""

import math
import os
import pickle
import resource
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from functools import partial
from multiprocessing.connection import Connection, wait
from types import TracebackType
from typing import Any, Self, cast

from tinyzero_sdk.errors import BrokenTaskError, SettingsError, TinyZeroError
from tinyzero_sdk.records import Completion, Json, Reason, Score
from tinyzero_sdk.task import Task
from tinyzero_sdk.worker import Clock, WorkerProcess

_JOB_SIZE = 64  # answers sent at a time: one at a time is six times slower
_FLUSH_SECONDS = 0.05  # a worker sends what it has this often, so a kill costs little finished work
_TICK_SECONDS = 0.2  # how soon the end of a worker is noticed where its socket stays open
_START_SECONDS = 120.0  # for the start of Python and the task's imports
_MAX_USELESS = 3  # workers in a row that ended before they answered anything, and no answer explains it

Job = list[int]
"""Positions of the answers in the caller's list."""


class ScoringPool:
    """Worker processes that score completions.

    Works from any thread (calls from several take turns) and in any script, and is a context manager.

    Example:
        >>> from tinyzero_sdk import Completion, load_task
        >>> with ScoringPool(load_task("countdown"), workers=2) as pool:  # doctest: +SKIP
        ...     pool.score([Completion("<answer>3 + 4</answer>")], [{"target": 7, "numbers": [3, 4]}])
    """

    def __init__(self, task: Task, *, workers: int = 1, time_limit: float = 5.0, memory_limit_gb: float = 4.0) -> None:
        """
        Args:
            task: what to score; each worker loads it anew.
            workers: how many processes.
            time_limit: seconds for one answer, from when a worker starts on it.
            memory_limit_gb: address space of a worker, in GiB.

        Raises:
            SettingsError: one of the numbers is not above 0 and finite.
        """
        if workers < 1 or not 0 < time_limit < math.inf or not 0 < memory_limit_gb < math.inf:
            raise SettingsError(
                f"got workers={workers}, time_limit={time_limit}, memory_limit_gb={memory_limit_gb}; "
                "expected finite numbers above 0"
            )
        self.counts: Counter[str] = Counter()
        """How many answers so far got the reason `error` or `timeout`."""
        self.first_error: str | None = None
        """The traceback of the first exception that the task raised in a worker."""

        self._task_name = task.name
        self._task_bytes = pickle.dumps(task)
        self._time_limit = time_limit
        self._service = partial(score_answers, memory_limit=int(min(memory_limit_gb * 2**30, sys.maxsize)))
        self._size = workers
        self._workers: list[_Worker] = []
        self._useless = 0
        self._lock = threading.Lock()
        self._fill()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the workers."""
        while self._workers:
            self._remove(self._workers[-1])

    def score(self, completions: Sequence[Completion], ground_truths: Sequence[Json]) -> list[Score]:
        """The verdicts, in the order given.

        Raises:
            TinyZeroError: the workers cannot load the task, or keep dying for no answer's sake.
        """
        if len(completions) != len(ground_truths):
            raise ValueError(f"got {len(completions)} completions and {len(ground_truths)} ground truths")
        with self._lock:
            scores: list[Score | None] = [None] * len(completions)
            jobs = deque(_split(range(len(scores)), 4 * self._size))
            entries = [
                (done.text, done.token_count, done.finished, truth)
                for done, truth in zip(completions, ground_truths, strict=True)
            ]
            try:
                self._run(jobs, entries, scores)
            except BaseException:  # Ctrl-C included: a worker must not answer the next call with this one's results
                for worker in [worker for worker in self._workers if worker.job or not worker.ready]:
                    self._remove(worker)
                raise
        verdicts = [score for score in scores if score is not None]
        assert len(verdicts) == len(scores), "an answer without a verdict"
        self.counts.update(score.reason for score in verdicts if score.reason in ("error", "timeout"))
        return verdicts

    def _run(self, jobs: deque[Job], entries: list[tuple[Any, ...]], scores: list[Score | None]) -> None:
        while jobs or any(worker.job for worker in self._workers):
            if jobs:
                self._fill()
            for worker in self._workers:
                if jobs and worker.ready and not worker.job:
                    worker.give(jobs.popleft(), entries)
            watched = {worker.process.connection: worker for worker in self._workers if worker.job or not worker.ready}
            for connection in wait(list(watched), self._patience(watched.values())):
                self._receive(watched[cast(Connection, connection)], scores)
            for worker in watched.values():
                if self._is_over(worker):
                    jobs.extendleft(_split(self._bury(worker, scores), 4 * self._size))

    def _fill(self) -> None:
        while len(self._workers) < self._size:
            self._workers.append(_Worker(WorkerProcess(self._task_bytes, self._service)))

    def _patience(self, workers: Iterable["_Worker"]) -> float:
        left = (self._time_limit - worker.process.clock.seconds for worker in workers)
        return max(0.0, min(_TICK_SECONDS, *left))

    def _receive(self, worker: "_Worker", scores: list[Score | None]) -> bool:
        """Take one message; False if there are no more."""
        try:
            message = worker.process.connection.recv()
        except (EOFError, OSError):
            worker.ended = True
            return False
        if isinstance(message, TinyZeroError):
            raise message
        if message is None:
            worker.ready = True
            return True
        results, error = message
        for position, result in zip(worker.job, results, strict=False):
            scores[position] = Score(*result)
        del worker.job[: len(results)]
        worker.answered += len(results)
        self.first_error = self.first_error or error
        self._useless = 0
        return True

    def _is_over(self, worker: "_Worker") -> bool:
        """Whether a worker is dead, or too late."""
        if worker.ended or worker.process.has_ended():
            worker.ended = True
        elif not worker.ready:
            return time.monotonic() - worker.born > _START_SECONDS
        return worker.ended or worker.process.clock.seconds > self._time_limit

    def _bury(self, worker: "_Worker", scores: list[Score | None]) -> Job:
        """End a worker, give the answer it was at its score, and return the answers that are still to do."""
        reason: Reason = "error" if worker.ended else "timeout"
        worker.process.kill()
        while worker.process.connection.poll() and self._receive(worker, scores):
            pass  # what it had sent counts
        running, late = worker.running(), worker.process.clock.seconds > self._time_limit
        self._remove(worker)
        if not worker.ready:
            raise BrokenTaskError(
                f"a scoring worker ended or hung while it loaded task {self._task_name!r}; messages above may tell why"
            )
        # Between our look and the kill a late worker may have gone on to another answer, which is not to blame.
        if running is not None and (late or reason == "error"):
            scores[running] = Score(0.0, False, reason)
            return [position for position in worker.job if position != running]
        self._useless += not worker.answered
        if self._useless > _MAX_USELESS:
            raise BrokenTaskError(f"the scoring workers of task {self._task_name!r} keep dying between two answers")
        return worker.job

    def _remove(self, worker: "_Worker") -> None:
        self._workers.remove(worker)
        worker.process.close()


class _Worker:
    """What the pool knows of one worker process."""

    def __init__(self, process: WorkerProcess) -> None:
        self.process = process
        self.born = time.monotonic()
        self.ready = False  # it has loaded the task
        self.ended = False  # it is dead, or has closed its socket
        self.job: Job = []  # what it still has to answer, in order
        self.answered = 0  # in its whole life
        self._first = 0  # `answered` when it got its job

    def give(self, job: Job, entries: list[tuple[Any, ...]]) -> None:
        """Send it a job."""
        self.job, self._first = job, self.answered
        try:
            self.process.connection.send([entries[position] for position in job])
        except OSError:  # it died while it had nothing to do
            self.ended = True

    def running(self) -> int | None:
        """Position of the answer it is at."""
        index = self.process.clock.index
        place = -1 if index is None else index - (self.answered - self._first)
        return self.job[place] if 0 <= place < len(self.job) else None


def _split(positions: Sequence[int], pieces: int) -> list[Job]:
    """About `pieces` jobs of at most `_JOB_SIZE` answers."""
    size = max(1, min(_JOB_SIZE, -(-len(positions) // pieces)))
    return [list(positions[start : start + size]) for start in range(0, len(positions), size)]


def score_answers(task: Task, connection: Connection, clock: Clock, *, memory_limit: int) -> None:
    """What a scoring worker does (see `worker.Service`): jobs in, lists of verdicts out."""
    at_start = _address_space()
    if at_start >= memory_limit:
        connection.send(
            BrokenTaskError(
                f"task {task.name!r} takes {at_start / 2**30:.1f} GiB of address space before the first answer, "
                f"the limit is {memory_limit / 2**30:.1f}; raise memory_limit_gb"
            )
        )
        return
    resource.setrlimit(resource.RLIMIT_AS, (memory_limit, memory_limit))
    enough = (at_start + memory_limit) // 2
    while _answer(connection.recv(), task, connection, clock, enough):
        pass


def _answer(
    job: list[tuple[str, int | None, bool, Json]], task: Task, connection: Connection, clock: Clock, enough: int
) -> bool:
    """Score a job; False as soon as the process has grown to `enough` bytes.

    Where a scorer leaks, it is a later answer that fails, and not its fault: a fresh worker goes on in time.
    """
    results: list[tuple[Any, ...]] = []
    sent = time.monotonic()
    for index, (text, token_count, finished, ground_truth) in enumerate(job):
        if results and time.monotonic() - sent > _FLUSH_SECONDS:
            clock.stop()
            connection.send((results, task.first_error))
            results, sent = [], time.monotonic()
            if _address_space() > enough:
                return False
        clock.start(index)
        score = task.score_completion(Completion(text, token_count, finished), ground_truth)
        parts = dict(score.parts)
        results.append((score.value, score.correct, score.reason, score.answer, parts, score.masked))
    clock.stop()
    connection.send((results, task.first_error))
    return _address_space() <= enough


def _address_space() -> int:
    """Bytes of address space in use; 0 where the system does not say."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[0]) * os.sysconf("SC_PAGESIZE")
    except OSError:
        return 0
