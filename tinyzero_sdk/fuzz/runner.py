"""The parent of a search: starts the workers, ends those that hang, and puts together what they find."""

import pickle
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing.connection import Connection, wait
from typing import cast

from tinyzero_sdk.errors import BrokenTaskError, TinyZeroError
from tinyzero_sdk.fuzz.coverage import DEFAULT_SHARE
from tinyzero_sdk.fuzz.findings import Finding, FindingSet, traits_of
from tinyzero_sdk.fuzz.judge import PREPARING, Kind
from tinyzero_sdk.fuzz.search import BATCH_MARK, Batch, Orders, Progress, run_search
from tinyzero_sdk.seeds import derive_seed
from tinyzero_sdk.task import Task
from tinyzero_sdk.worker import WorkerProcess

_TICK_SECONDS = 0.05
_START_SECONDS = 120.0  # for Python, the task's imports and its first problems
_PREPARING_TIMES = 20  # making a problem may take so many time limits
_MOST_USELESS = 3  # workers in a row that ended before they tried anything


@dataclass
class FuzzReport:
    """What a search did and found."""

    tried: int = 0
    """Completions tried."""

    seconds: float = 0.0
    """How long it took."""

    lines: int = 0
    """Lines of the task's code that were seen to be reached."""

    findings: list[Finding] = field(default_factory=list)
    """Of each group the smallest."""

    interrupted: bool = False
    """Whether Ctrl-C ended it."""

    @property
    def rate(self) -> float:
        """Completions a second."""
        return self.tried / self.seconds if self.seconds else 0.0


def fuzz(
    task: Task,
    *,
    seconds: float = 60.0,
    seed: int = 0,
    workers: int = 1,
    time_limit: float = 1.0,
    memory_limit_gb: float = 4.0,
    stop_after: int | None = None,
    traced: float = DEFAULT_SHARE,
    on_progress: Callable[[FuzzReport], object] = lambda report: None,
) -> FuzzReport:
    """Search for completions that the task judges wrongly, or does not survive.

    Args:
        task: from `load_task`; it scores in child processes alone.
        seconds: for how long.
        seed: the same seed and one worker try the same, in the same order.
        workers: processes.
        time_limit: seconds for one completion.
        memory_limit_gb: address space of a worker, in GiB.
        stop_after: end with so many findings; None = go on.
        traced: share of the attempts whose way through the task's code is watched.
        on_progress: called several times a second.

    Raises:
        TinyZeroError: the task cannot be loaded, makes no problems, or ends its workers before they try anything.
    """
    task.check_scoring_allowed()
    orders = Orders(seed, int(memory_limit_gb * 2**30), traced, stop_after)
    fuzzing = _Fuzzing(task, orders, time_limit, workers)
    report, started = fuzzing.report, time.monotonic()
    try:
        while (left := started + seconds - time.monotonic()) > 0:
            fuzzing.step(min(_TICK_SECONDS, left))
            report.seconds = time.monotonic() - started
            report.findings = list(fuzzing.found)
            on_progress(report)
            if stop_after is not None and len(fuzzing.found) >= stop_after and fuzzing.is_settled:
                break
    except KeyboardInterrupt:
        report.interrupted = True
    finally:
        fuzzing.close()
    report.seconds = time.monotonic() - started
    report.findings = list(fuzzing.found)
    return report


class _Worker:
    """One worker process, and those that take its place."""

    def __init__(self, process: WorkerProcess, number: int, generation: int) -> None:
        self.process = process
        self.number = number
        self.generation = generation
        self.born = time.monotonic()
        self.ready = False
        self.ended = False
        self.tried = 0
        self.lines = 0
        self.batch = b""
        self.unsettled: Finding | None = None  # what it is making smaller


class _Fuzzing:
    def __init__(self, task: Task, orders: Orders, time_limit: float, workers: int) -> None:
        self.report = FuzzReport()
        self.found = FindingSet()
        self._task = task
        self._task_bytes = pickle.dumps(task)
        self._orders = orders
        self._time_limit = time_limit
        self._slow: Counter[frozenset[str]] = Counter()
        self._useless = 0
        self._workers: list[_Worker] = []
        for number in range(workers):
            self._start(number, 0)

    @property
    def is_settled(self) -> bool:
        """Whether nothing found is still being made smaller."""
        return not any(worker.unsettled for worker in self._workers)

    def close(self) -> None:
        for worker in self._workers:
            worker.process.close()
            self._keep_unsettled(worker)

    def _keep_unsettled(self, worker: _Worker) -> None:
        """The finding that a worker could not make smaller counts as it is."""
        if worker.unsettled is not None:
            self.found.add(worker.unsettled)

    def step(self, patience: float) -> None:
        """Take what has come, and look after the workers."""
        watched = {worker.process.connection: worker for worker in self._workers if not worker.ended}
        for connection in wait(list(watched), patience):
            self._drain(watched[cast(Connection, connection)])
        for worker in list(self._workers):
            if worker.ended or worker.process.has_ended():
                self._bury(worker, "died")
            elif worker.process.clock.seconds > self._patience(worker):
                self._bury(worker, "timeout")
            elif not worker.ready and time.monotonic() - worker.born > _START_SECONDS:
                raise BrokenTaskError(f"a worker hung while it loaded task {self._task.name!r}")

    def _start(self, number: int, generation: int) -> None:
        orders = replace(
            self._orders,
            seed=derive_seed("worker", self._orders.seed, number, generation) >> 33,
            known=tuple((finding.kind, frozenset(finding.traits)) for finding in self.found),
            avoided=tuple(traits for traits, count in self._slow.items() if count > 1 and traits),
        )
        process = WorkerProcess(self._task_bytes, partial(run_search, orders=orders))
        self._workers.append(_Worker(process, number, generation))

    def _patience(self, worker: _Worker) -> float:
        return self._time_limit * (_PREPARING_TIMES if worker.process.clock.index == PREPARING else 1)

    def _drain(self, worker: _Worker) -> None:
        """Take all messages that have come."""
        try:
            while worker.process.connection.poll():
                self._receive(worker, worker.process.connection.recv_bytes())
        except (EOFError, OSError):
            worker.ended = True

    def _receive(self, worker: _Worker, message: bytes) -> None:
        if message.startswith(BATCH_MARK):
            worker.batch = message
            return
        content = pickle.loads(message)
        if isinstance(content, TinyZeroError):
            raise content
        if content is None:
            worker.ready = True
            return
        progress = cast(Progress, content)
        self._useless = 0
        worker.tried += progress.tried
        self.report.tried += progress.tried
        self.report.lines = max(self.report.lines, progress.lines)
        worker.unsettled = progress.unsettled
        for finding in progress.findings:
            self.found.add(finding)

    def _bury(self, worker: _Worker, kind: Kind) -> None:
        """End a worker, note what it was at, and put another in its place."""
        index = worker.process.clock.index
        worker.process.kill()
        self._drain(worker)
        late = kind == "timeout" and worker.process.clock.seconds > self._patience(worker)
        if (kind == "died" or late) and index is not None and index != PREPARING:
            self._blame(worker, kind, index)
        elif not worker.tried:
            self._useless += 1
        if self._useless > _MOST_USELESS:
            raise BrokenTaskError(
                f"the workers of task {self._task.name!r} end or hang before they try anything; messages above may "
                "tell why"
            )
        self._workers.remove(worker)
        worker.process.close()
        self._keep_unsettled(worker)
        self._start(worker.number, worker.generation + 1)

    def _blame(self, worker: _Worker, kind: Kind, index: int) -> None:
        batch: Batch = pickle.loads(worker.batch[len(BATCH_MARK) :])
        text = batch.attempts[index // 2].text
        traits = traits_of(text[-10_000:]) - batch.usual
        self._slow[traits] += kind == "timeout"
        note = "in the oracle" if index % 2 else ""
        self.report.tried += 1
        self.found.add(Finding(kind, text, batch.truth, None, 0.0, None, tuple(sorted(traits)), note))
