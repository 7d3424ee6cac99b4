"""Score in worker processes, with time and memory limits for every single completion.

A scorer may hang, die, leak or print: the pool kills and replaces the worker, that completion scores 0 with the reason
`timeout` or `error`, and all others get their score. A task that compares the completions of a problem is asked twice:
first for each completion by itself, then for each group, which fails as a whole. Completions are sent as columns rather
than a record for each row. Nothing here imports pyarrow, so that the replacement of a killed worker starts at once.
"""

import math
import os
import sys
import threading
import time
import uuid
from array import array
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from multiprocessing.connection import Connection
from typing import NamedTuple, Protocol, TypeVar, cast

from tinyzero_sdk.errors import BrokenTaskError, SettingsError
from tinyzero_sdk.records import SCORER_FAILURES, Completion, Json, Score, ScoreColumns
from tinyzero_sdk.redaction import redact
from tinyzero_sdk.tasks.task import Task
from tinyzero_sdk.workers.process import (
    ClosesOnExit,
    SharedTimer,
    address_space,
    kill_marked,
    limit_memory,
    memory_allowed,
)
from tinyzero_sdk.workers.supervisor import Supervisor, Worker, WorkerLoss, wait_for_any

_FIRST_JOB = 64  # answers sent to a worker at a time, until it is known how long they take
_LARGEST_JOB = 4096
_JOB_SECONDS = 0.03  # what a job should take: one answer at a time is six times slower, one job for all is not shared
_FLUSH_SECONDS = 0.05  # a worker sends what it has this often, so a kill costs little finished work
_TICK_SECONDS = 0.2  # how soon the end of a worker is noticed where its socket stays open
_MARK = "TINYZERO_POOL"  # environment variable of the workers of a pool, and of what they start
_MOST_PRINTED = 10_000  # bytes on stderr for each answer; the rest is left out
_MAX_USELESS = 3  # workers in a row that ended before they answered anything, and no answer explains it
_MOST_WAITING = 192 << 20  # bytes of answers held while one that hangs keeps those behind it from being passed on


class PackedText(NamedTuple):
    """n texts in one buffer."""

    data: bytes  # their UTF-8, concatenated
    offsets: "array[int]"  # [n + 1] start of each text in `data`, and the end of the last

    def unpack(self) -> list[str]:
        starts, ends = self.offsets, self.offsets[1:]
        if self.data.isascii():  # then byte offsets are character offsets
            text = self.data.decode("ascii")
            return [text[start:end] for start, end in zip(starts, ends, strict=False)]
        return [str(self.data[start:end], "utf-8") for start, end in zip(starts, ends, strict=False)]


class ScoreBatch(NamedTuple):
    """Completions as a worker receives them."""

    texts: Sequence[str] | PackedText  # [n] completions
    ground_truths: Sequence[Json]

    details: Sequence[tuple[int | None, bool]] | None = None
    """[n] number of tokens, and whether the completion is finished; None = unknown."""

    groups: Sequence[int] = ()
    """Numbers of completions of each problem, whose `scores` are to be compared; () = to be scored."""

    scores: Sequence[Score] = ()  # [n] what `Task.score_alone` gave

    def completions(self) -> Sequence[Completion | str]:
        """[n] completions to score."""
        texts = self.texts.unpack() if isinstance(self.texts, PackedText) else self.texts
        if self.details is None:
            return texts
        return [Completion(text, *details) for text, details in zip(texts, self.details, strict=True)]

    def numbered_groups(self) -> Iterator[tuple[int, tuple[Sequence[Completion | str], Json, Sequence[Score]]]]:
        """Each group's first row, and its arguments of `Task.compare`."""
        completions, start = self.completions(), 0
        for size in self.groups:
            rows = slice(start, start + size)
            yield start, (completions[rows], self.ground_truths[start], self.scores[rows])
            start += size


class Batch(Protocol):
    """Completions that are scored together."""

    def __len__(self) -> int: ...

    @property
    def groups(self) -> Sequence[int]:
        """Numbers of completions of each problem, in order, for a task that compares them; else not read."""

    @property
    def weight(self) -> int:
        """Approximate bytes in memory."""

    def pack(self, start: int, stop: int) -> ScoreBatch:
        """Completions `start` to `stop` - 1."""


AnyBatch = TypeVar("AnyBatch", bound=Batch)


@dataclass(frozen=True, slots=True)
class CompletionBatch:
    """A batch of n completions and ground truths (plain JSON) as Python objects."""

    completions: Sequence[Completion]
    ground_truths: Sequence[Json]
    groups: Sequence[int] = ()

    def __len__(self) -> int:
        return len(self.completions)

    def pack(self, start: int, stop: int) -> ScoreBatch:
        completions = self.completions[start:stop]
        details = [(completion.token_count, completion.finished) for completion in completions]
        return ScoreBatch([completion.text for completion in completions], self.ground_truths[start:stop], details)

    @property
    def weight(self) -> int:
        return sum(len(done.text) for done in self.completions)


class ScoringPool(ClosesOnExit):
    """Worker processes that score completions.

    Works from any thread (calls from several take turns) and in any script, and is a context manager.

    Example:
        >>> from tinyzero_sdk import Completion, load_task
        >>> with ScoringPool(load_task("countdown"), workers=2) as pool:
        ...     pool.score([Completion("<answer>3 + 4</answer>")], [{"target": 7, "numbers": [3, 4]}])[0].value
        1.0
    """

    def __init__(self, task: Task, *, workers: int = 1, timeout: float = 5.0, memory_limit_gb: float = 4.0) -> None:
        """
        Args:
            task: from `load_task`; each worker loads it again.
            workers: number of processes that score at a time.
            timeout: seconds to score one completion, once a worker starts on it.
            memory_limit_gb: address space of a worker, in GiB.

        Raises:
            SettingsError: a number is not finite and above 0.
            UnsafeScorerError: the scorer is unsafe and was not allowed.
        """
        task.check_scoring_allowed()
        if workers < 1 or not 0 < timeout < math.inf or not 0 < memory_limit_gb < math.inf:
            raise SettingsError(
                f"got workers={workers}, timeout={timeout}, memory_limit_gb={memory_limit_gb}; "
                "expected finite numbers above 0"
            )
        self.counts: Counter[str] = Counter()
        """Number of completions so far with the reason `error` or `timeout`."""
        self.first_error: str | None = None
        """The traceback of the first exception that the task raised in a worker."""

        self._mark = uuid.uuid4().hex
        self._supervisor = Supervisor(task, {_MARK: self._mark})
        self._compares = task.compares_completions
        self._timeout = timeout
        self._service = partial(score_answers, memory_limit=int(min(memory_limit_gb * 2**30, sys.maxsize)))
        self._size = 1 if task.is_async else workers  # the limits of an asynchronous scorer are those of one process
        self._is_async = task.is_async
        self._workers: list[_Scorer] = []
        self._useless = 0
        self._job_rows = _FIRST_JOB
        self._lock = threading.Lock()
        self._fill()

    def close(self) -> None:
        """End the workers, and what a scorer has started."""
        while self._workers:
            self._remove(self._workers[-1])
        kill_marked(f"{_MARK}={self._mark}")

    def score(
        self, completions: Sequence[Completion], ground_truths: Sequence[Json], groups: Sequence[int] = ()
    ) -> list[Score]:
        """The scores, in the order given.

        Args:
            groups: how many completions each problem has, those of one problem being adjacent; needed where the task
                compares them. Then the limits are those of a completion, and again of a group's comparison.

        Raises:
            TinyZeroError: the workers cannot load the task, or keep dying between completions.
        """
        if len(completions) != len(ground_truths):
            raise ValueError(f"got {len(completions)} completions and {len(ground_truths)} ground truths")
        if self._compares and sum(groups) != len(completions):
            raise ValueError(f"got {len(completions)} completions in groups {list(groups)}, which are to be compared")
        if not completions:
            return []
        largest = -(-len(completions) // (4 * self._size))
        with closing(self.stream([CompletionBatch(completions, ground_truths, groups)], largest_job=largest)) as stream:
            ((_, scores),) = stream
        return list(scores)

    def stream(
        self, batches: Iterable[AnyBatch], *, largest_job: int = _LARGEST_JOB
    ) -> Generator[tuple[AnyBatch, ScoreColumns], None, None]:
        """Score batches as they arrive, at most `largest_job` completions at a time, and yield each with its scores.

        Reads only as many batches as the workers need, plus some while a completion hangs, so neither input nor output
        has to fit in memory. Other calls wait until the stream is exhausted or closed. Raises as `score`.
        """
        source, started, jobs = iter(batches), deque[_Started](), deque[_Job]()
        with self._lock:
            try:
                while self._admit(source, started, jobs):
                    if self._compares:
                        jobs += [job for batch in started if (job := batch.comparison())]
                    while started and not started[0].left:
                        done = started.popleft()
                        scores = done.scores()
                        self.counts += Counter({reason: scores.reasons.count(reason) for reason in SCORER_FAILURES})
                        yield cast(AnyBatch, done.batch), scores
                    if started:
                        self._work(jobs, largest_job)
            except BaseException:  # Ctrl-C included: a worker must not answer the next call with this one's results
                for worker in [worker for worker in self._workers if worker.job or not worker.process.is_ready]:
                    self._remove(worker)
                raise

    def _admit(self, source: Iterator[AnyBatch], started: deque["_Started"], jobs: deque["_Job"]) -> bool:
        """Take batches from the source until every worker has a next job; False if all is done."""
        while len(jobs) <= self._size and sum(held.batch.weight for held in started) < _MOST_WAITING:
            batch = next(source, None)
            if batch is None:
                break
            started.append(_Started(batch, len(batch)))
            if len(batch):
                jobs.append(_Job(started[-1], 0, len(batch)))
        return bool(started)

    def _work(self, jobs: deque["_Job"], largest_job: int) -> None:
        """Hand out jobs, wait for a message or a limit, and handle it."""
        if jobs:
            self._fill()
        for worker in self._workers:
            if jobs and worker.process.is_ready and worker.job is None:
                worker.give(_cut(jobs, _LARGEST_JOB if self._is_async else min(self._job_rows, largest_job)))
        watched = [worker for worker in self._workers if worker.job or not worker.process.is_ready]
        left = (self._timeout - worker.process.timer.seconds for worker in watched)
        wait_for_any((worker.process for worker in watched), max(0.0, min(_TICK_SECONDS, self._timeout / 4, *left)))
        for worker in watched:
            self._receive(worker)
            if worker.process.status(self._timeout):
                jobs.extendleft(reversed(self._retire(worker)))

    def _fill(self) -> None:
        while len(self._workers) < self._size:
            self._workers.append(_Scorer(self._supervisor.start(self._service)))

    def _receive(self, worker: "_Scorer") -> None:
        for scores, error in worker.process.messages():
            seconds = worker.take(scores)
            if seconds is not None:
                rate = worker.answered / max(seconds, 1e-6)
                self._job_rows = max(1, min(_LARGEST_JOB, int(rate * _JOB_SECONDS), 4 * self._job_rows))
            self.first_error = self.first_error or error
            self._useless = 0

    def _retire(self, worker: "_Scorer") -> list["_Job"]:
        """End a worker, score the answer that it was working on, and return the remaining jobs."""
        loss = worker.process.kill(self._timeout)
        self._receive(worker)  # what it had sent counts
        self._remove(worker)
        job, is_single = worker.job, worker.job is not None and worker.job.is_single
        running = worker.index_of(loss) if loss.is_certain or is_single else None
        if job is not None and running is None and not is_single:
            return job.halves()  # an answer may have closed the socket, or blocks the others: find out which
        if job is None or running is None:
            self._useless += 1
            if not worker.process.is_ready and (loss.kind == "hung" or self._useless > _MAX_USELESS):
                raise worker.process.load_failure()
            if self._useless > _MAX_USELESS:
                name = self._supervisor.task_name
                raise BrokenTaskError(f"the scoring workers of task {name!r} keep dying between two answers")
            return [job] if job else []
        failed, stop = ScoreColumns(), job.owner.end_of(running)
        for _ in range(running, stop):
            failed.add(Score(0.0, False, "error" if loss.kind == "died" else "timeout"), None)
        job.owner.put(running, failed)
        return [*job.until(running), *job.since(stop)]

    def _remove(self, worker: "_Scorer") -> None:
        self._workers.remove(worker)
        worker.process.close()


@dataclass(slots=True)
class _Started:
    """A batch with the scores so far."""

    batch: Batch
    left: int  # completions without a score
    pieces: list[tuple[int, ScoreColumns]] = field(default_factory=list)  # scores, each with the row of its first
    ends: Sequence[int] = ()  # once groups are compared: the row after each
    alone: Sequence[Score] = ()  # their scores before that

    def end_of(self, row: int) -> int:
        """The row after what is scored together with this one."""
        return self.ends[bisect_right(self.ends, row)] if self.ends else row + 1

    def put(self, start: int, scores: ScoreColumns) -> None:
        self.pieces.append((start, scores))
        self.left -= len(scores)

    def pack(self, start: int, stop: int) -> ScoreBatch:
        packed = self.batch.pack(start, stop)
        if not self.ends:
            return packed
        first, last = bisect_right(self.ends, start), bisect_right(self.ends, stop - 1)
        return packed._replace(groups=self.batch.groups[first : last + 1], scores=self.alone[start:stop])

    def scores(self) -> ScoreColumns:
        self.pieces.sort(key=lambda piece: piece[0])
        (_, whole), *others = self.pieces or [(0, ScoreColumns())]
        for start, scores in others:
            assert start == len(whole), "a completion without a score, or with two"
            whole.extend(scores)
        assert len(whole) == len(self.batch), "a completion without a score"
        return whole

    def comparison(self) -> "_Job | None":
        """The job to compare its groups, as soon as each completion has a score by itself."""
        if self.left or self.ends or not len(self.batch):
            return None
        self.alone, self.pieces = list(self.scores()), []
        self.ends, self.left = [*accumulate(self.batch.groups)], len(self.alone)
        return _Job(self, 0, self.left)


@dataclass(frozen=True, slots=True)
class _Job:
    """Completions `start` to `stop` - 1 of a batch; at least one."""

    owner: _Started
    start: int
    stop: int

    @property
    def is_single(self) -> bool:
        """Whether it is one completion, or one group."""
        return self.owner.end_of(self.start) >= self.stop

    def until(self, row: int) -> list["_Job"]:
        """What is before a row: one job, or none."""
        return [replace(self, stop=row)] if self.start < row else []

    def since(self, row: int) -> list["_Job"]:
        """What begins at a row: one job, or none."""
        return [replace(self, start=row)] if row < self.stop else []

    def halves(self) -> list["_Job"]:
        """Two jobs in place of one that is not single."""
        middle = self.owner.end_of((self.start + self.stop) // 2 - 1)
        middle = middle if middle < self.stop else self.owner.end_of(self.start)
        return [*self.until(middle), *self.since(middle)]


def _cut(jobs: deque[_Job], size: int) -> _Job:
    """The next job, of at most `size` answers, or one group of more."""
    job = jobs.popleft()
    stop = min(job.stop, job.owner.end_of(min(job.start + size, job.stop) - 1))
    jobs.extendleft(job.since(stop))
    return replace(job, stop=stop)


@dataclass(slots=True, eq=False)
class _Scorer:
    """What the pool knows of a worker."""

    process: Worker
    job: _Job | None = None  # what it still has to answer
    answered: int = 0  # of its job
    begun: float = 0.0  # when it got its job

    def give(self, job: _Job) -> None:
        """Send it a job."""
        self.job, self.answered, self.begun = job, 0, time.monotonic()
        self.process.send(job.owner.pack(job.start, job.stop))

    def take(self, scores: ScoreColumns) -> float | None:
        """Pass its scores on; the seconds that its job took, if that was the end of it."""
        assert self.job is not None, "a score without a request"
        if len(scores):
            self.job.owner.put(self.job.start, scores)
        self.answered += len(scores)
        self.job = next(iter(self.job.since(self.job.start + len(scores))), None)
        return None if self.job else time.monotonic() - self.begun

    def index_of(self, loss: WorkerLoss) -> int | None:
        """Index in its batch of the answer at which it was lost."""
        if self.job is None or loss.index is None:
            return None
        index = self.job.start - self.answered + loss.index
        return index if self.job.start <= index < self.job.stop else None


def score_answers(task: Task, connection: Connection, timer: SharedTimer, *, memory_limit: int) -> None:
    """What a scoring worker does (see `workers.process.Service`): batches in, their scores out."""
    at_start, limit = address_space(), memory_allowed(memory_limit)
    if at_start >= limit:
        setting = "memory_limit_gb" if limit == memory_limit else "that of the system (ulimit -v)"
        connection.send(
            BrokenTaskError(
                f"task {task.name!r} takes {at_start / 2**30:.1f} GiB of address space before the first answer, "
                f"the limit is {limit / 2**30:.1f}; raise {setting}"
            )
        )
        return
    limit_memory(limit)
    enough = (at_start + limit) // 2
    stderr = os.dup(2)
    _bound_stderr(stderr, timer)
    try:
        while _answer(connection.recv(), task, connection, timer, enough):
            pass
    except OSError:  # an answer closed the socket, or the parent is gone
        os._exit(1)
    finally:
        os.dup2(stderr, 2)  # for a last message of the worker itself


def _bound_stderr(stderr: int, timer: SharedTimer) -> None:
    """Pass on what is written to stderr, in Python, C or a process of the scorer, up to `_MOST_PRINTED` an answer."""
    source, target = os.pipe()
    os.dup2(target, 2)
    os.close(target)

    def forward() -> None:
        since, left = 0.0, _MOST_PRINTED
        with suppress(OSError):  # an answer closed it, or the terminal is gone
            while chunk := os.read(source, 1 << 16):
                if since != timer.started:
                    since, left = timer.started, _MOST_PRINTED
                text = redact(chunk[:left].decode(errors="surrogateescape"))
                left = max(0, left - len(chunk))
                os.write(stderr, text.encode(errors="surrogateescape"))

    threading.Thread(target=forward, name="stderr", daemon=True).start()


def _answer(batch: ScoreBatch, task: Task, connection: Connection, timer: SharedTimer, enough: int) -> bool:
    """Score a batch; False as soon as the process has grown to `enough` bytes.

    A leaking scorer would fail on a later, innocent completion, so a fresh worker takes over in time.
    """
    scores, flushed, pid = ScoreColumns(), time.monotonic(), os.getpid()
    completions, ground_truths = batch.completions(), batch.ground_truths
    is_single = 1 in (len(completions), len(batch.groups))
    if task.is_async and not batch.groups:
        # The timer is at none of several answers: if one blocks the others, the job is halved until it is alone.
        task.prefetch(completions, ground_truths, lambda: timer.start(0 if is_single else len(ground_truths)))
    pairs = enumerate(zip(completions, ground_truths, strict=True))
    for index, arguments in batch.numbered_groups() if batch.groups else pairs:
        if timer.start(index) - flushed > _FLUSH_SECONDS:
            timer.stop()
            if len(scores):
                connection.send((scores, task.first_error))
                if address_space() > enough:
                    return False
            scores, flushed = ScoreColumns(), timer.start(index)
        if batch.groups:
            for compared in task.compare(*arguments):
                scores.add(compared, compared.answer)
        elif task.compares_completions:
            alone = task.score_alone(*arguments)
            scores.add(alone, alone.answer)
        else:
            task.score_into(scores, *arguments)
        if os.getpid() != pid:
            os._exit(0)  # the scorer forked, and this is the copy: it must not answer too
    if not is_single:
        timer.stop()
    connection.send((scores, task.first_error))  # if that fails for a single answer, it is by the timer at this one
    timer.stop()
    return address_space() <= enough
