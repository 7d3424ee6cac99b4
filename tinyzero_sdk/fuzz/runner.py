"""The parent of a search: starts the workers, ends those that hang, and collects their findings."""

import math
import pickle
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial

from tinyzero_sdk.errors import BrokenTaskError, SettingsError
from tinyzero_sdk.fuzz.differential import PREPARING, Kind
from tinyzero_sdk.fuzz.findings import IN_ORACLE, Finding, FindingSet, traits_of
from tinyzero_sdk.fuzz.search import AttemptBatch, SearchProgress, SearchSettings, run_search
from tinyzero_sdk.seeds import derive_seed
from tinyzero_sdk.tasks.task import Task
from tinyzero_sdk.testing.cases import Case
from tinyzero_sdk.workers.supervisor import Supervisor, Worker, WorkerLoss, wait_for_any

_TICK_SECONDS = 0.05
_PREPARING_TIMES = 20  # timeouts that generating a problem may take
_SETTLE_SECONDS = 10.0  # after the search, to try the last suspects again,
_SETTLE_TIMES = 10  # plus this many timeouts
_BLAMED = 3  # times that a completion must hang or crash: one slow moment of the machine is no finding
_MOST_USELESS = 3  # workers in a row that ended before their first attempt


@dataclass
class FuzzReport:
    tried: int = 0
    seconds: float = 0.0
    lines: int = 0
    """Traced lines of the task's code that were reached."""

    findings: list[Finding] = field(default_factory=list)
    interrupted: bool = False

    @property
    def rate(self) -> float:
        return self.tried / self.seconds if self.seconds else 0.0


def fuzz(
    task: Task,
    *,
    seconds: float = 60.0,
    seed: int = 0,
    workers: int = 1,
    timeout: float = 1.0,
    memory_limit_gb: float = 4.0,
    stop_after: int | None = None,
    corpus: Iterable[Case] = (),
    on_progress: Callable[[FuzzReport], object] = lambda report: None,
) -> FuzzReport:
    """Search for completions that the task scores wrongly, or does not survive.

    Args:
        task: from `load_task`; it scores in child processes alone.
        seconds: for how long.
        seed: the same seed and one worker try the same, in the same order.
        workers: processes.
        timeout: seconds for one completion.
        memory_limit_gb: address space of a worker, in GiB.
        stop_after: end after this many findings; None = never.
        corpus: completions to try first and to start from; their problems must be valid (`is_valid`, `solve`).
        on_progress: called several times a second.

    Raises:
        SettingsError: a number is out of range.
        TinyZeroError: the task cannot be loaded, makes no problems, or ends its workers before they try anything.
    """
    task.check_scoring_allowed()
    if workers < 1 or not all(0 < limit < math.inf for limit in (seconds, timeout, memory_limit_gb)):
        raise SettingsError(
            f"got seconds={seconds}, workers={workers}, timeout={timeout}, memory_limit_gb={memory_limit_gb}; "
            "expected finite numbers above 0"
        )
    if seed < 0 or (stop_after is not None and stop_after < 1):
        raise SettingsError(
            f"got seed={seed}, stop_after={stop_after}; expected a seed from 0, and at least 1 finding or None"
        )
    if task.is_async:
        timeout = max(timeout, 1.5 * task.info.limits.deadline)  # which ends a call by itself
    first = tuple((case.completion, case.ground_truth) for case in corpus)
    memory_limit = int(min(memory_limit_gb * 2**30, sys.maxsize))
    settings = SearchSettings(seed, memory_limit, stop_after, corpus=first)
    run = _FuzzRun(task, settings, timeout, workers)
    report, started = run.report, time.monotonic()
    try:
        settle = _SETTLE_SECONDS + _SETTLE_TIMES * timeout
        while (left := started + seconds - time.monotonic()) > 0 or (run.has_suspects and left > -settle):
            run.step(min(_TICK_SECONDS, max(left, 0.01)))
            report.seconds = time.monotonic() - started
            report.findings = list(run.findings)
            on_progress(report)
            if run.has_enough:
                break
    except KeyboardInterrupt:
        report.interrupted = True
    finally:
        run.close()
    report.seconds = time.monotonic() - started
    report.findings = list(run.findings)
    return report


class _Searcher:
    """One worker, and those that take its place."""

    def __init__(self, process: Worker, number: int, generation: int, suspect: Finding | None) -> None:
        self.process = process
        self.number = number
        self.generation = generation
        self.tried = 0
        self.batch = b""  # pickled, and read only if the worker is lost
        self.unsettled: Finding | None = None  # the finding it is shrinking
        self.suspect = suspect  # what it tries again, until it has survived that


class _FuzzRun:
    def __init__(self, task: Task, settings: SearchSettings, timeout: float, workers: int) -> None:
        self.report = FuzzReport()
        self.findings = FindingSet()
        self._supervisor = Supervisor(task)
        self._settings = settings
        self._timeout = timeout
        self._slow: Counter[frozenset[str]] = Counter()
        self._blamed: Counter[str] = Counter()  # completions that ended a worker
        self._useless = 0
        self._workers: list[_Searcher] = []
        for number in range(workers):
            self._start(number, 0)

    @property
    def has_enough(self) -> bool:
        """Whether as many findings as requested are there, and none is still being shrunk."""
        wanted = self._settings.stop_after
        return wanted is not None and len(self.findings) >= wanted and not any(w.unsettled for w in self._workers)

    @property
    def has_suspects(self) -> bool:
        """Whether a completion that hung or crashed is still being tried again."""
        return any(worker.suspect for worker in self._workers)

    def close(self) -> None:
        """End all processes; suspects that were not tried again are dropped."""
        for worker in self._workers:
            worker.process.close()
            self._keep_unsettled(worker)
        self._workers.clear()

    def _keep_unsettled(self, worker: _Searcher) -> None:
        """Keep the finding that a worker could not shrink, as it is."""
        if worker.unsettled is not None:
            self.findings.add(worker.unsettled)

    def step(self, timeout: float) -> None:
        """Receive messages, waiting up to `timeout` seconds for the first, and replace workers that ended or hang."""
        wait_for_any((worker.process for worker in self._workers), timeout)
        for worker in list(self._workers):
            self._receive(worker)
            if worker.process.status(self._timeout_of(worker)):
                self._retire(worker)

    def _start(self, number: int, generation: int, suspect: Finding | None = None) -> None:
        settings = replace(
            self._settings,
            seed=derive_seed("worker", self._settings.seed, number, generation) >> 33,
            known=tuple((finding.kind, frozenset(finding.traits)) for finding in self.findings),
            # Once: a completion that hangs must not end every worker that follows.
            corpus=() if number or generation else self._settings.corpus,
            avoided=tuple(traits for traits, count in self._slow.items() if count > 1 and traits),
            suspect=None if suspect is None else (suspect.completion, suspect.ground_truth),
        )
        process = self._supervisor.start(partial(run_search, settings=settings))
        self._workers.append(_Searcher(process, number, generation, suspect))

    def _timeout_of(self, worker: _Searcher) -> float:
        return self._timeout * (_PREPARING_TIMES if worker.process.timer.index == PREPARING else 1)

    def _receive(self, worker: _Searcher) -> None:
        for message in worker.process.messages():
            if isinstance(message, bytes):
                worker.batch = message
                continue
            assert isinstance(message, SearchProgress)
            self._useless = 0
            worker.suspect = None
            worker.tried += message.tried
            self.report.tried += message.tried
            self.report.lines = max(self.report.lines, message.lines)
            worker.unsettled = message.unsettled
            for finding in message.findings:
                self.findings.add(finding)

    def _retire(self, worker: _Searcher) -> None:
        """End a worker, blame its attempt, and start another."""
        loss = worker.process.kill(self._timeout_of(worker))
        self._receive(worker)
        if not worker.process.is_ready and loss.kind == "hung":
            raise worker.process.load_failure()
        suspect = None
        if loss.index is not None and loss.index != PREPARING:
            suspect = self._blame(worker, loss)
        elif not worker.tried:
            self._useless += 1
        if self._useless > _MOST_USELESS:
            raise BrokenTaskError(
                f"the workers of task {self._supervisor.task_name!r} end or hang before they try anything; see the "
                "messages above"
            )
        self._workers.remove(worker)
        worker.process.close()
        self._keep_unsettled(worker)
        self._start(worker.number, worker.generation + 1, suspect)

    def _blame(self, worker: _Searcher, loss: WorkerLoss) -> Finding | None:
        """Keep the completion as a finding if it was blamed often enough; or return it, to be tried again."""
        batch: AttemptBatch = pickle.loads(worker.batch)
        index, in_oracle = divmod(loss.index or 0, 2)
        text = batch.attempts[index].text
        traits = traits_of(text[-10_000:]) - batch.usual
        self._slow[traits] += loss.kind == "hung"
        kind: Kind = "timeout" if loss.kind == "hung" else "died"
        self.report.tried += 1
        suspect = Finding(
            kind, text, batch.truth, None, 0.0, None, tuple(sorted(traits)), IN_ORACLE if in_oracle else ""
        )
        self._blamed[text] += 1
        if self._blamed[text] == _BLAMED:
            self.findings.add(suspect)
        return suspect if self._blamed[text] < _BLAMED and self.findings.lacks(suspect) else None
