"""Restarting workers that died: the one mechanism for vLLM, and for engines in Ray's actors."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from tinyzero_sdk.errors import TinyZeroError
from tinyzero_trainer.errors import EngineDiedError, NoCapacityError, WorkerDiedError
from tinyzero_trainer.rollout.engine import Completions, Group, OnProgress, PromptBatch, RolloutEngine, SamplingParams
from tinyzero_trainer.utils.signals import stop_requested

Worker = TypeVar("Worker")
Result = TypeVar("Result")


class Restartable(Generic[Worker]):
    """A worker that may fail; up to a limit it is restarted and repeats its work."""

    def __init__(
        self,
        name: str,
        worker: Worker,
        start: Callable[[Worker], Worker],
        max_restarts: Mapping[Any, int],
        report: Callable[[str], None],
    ) -> None:
        """
        Args:
            name: for messages, and to distinguish its death from another worker's.
            start: given the worker that failed, starts the next one, ready for work.
            max_restarts: by the class of the error after which the worker is restarted.
            report: receives a line for each restart.
        """
        self.name, self.worker, self._start, self._report = name, worker, start, report
        self._left = dict(max_restarts)

    def do(self, work: Callable[[Worker], Result]) -> Result:
        """Call `work` with the worker, and again after each restart.

        Raises:
            TinyZeroError: no restarts are left, or another worker that this one needs failed.
        """
        while True:
            try:
                return work(self.worker)
            except tuple(self._left) as error:
                failure: TinyZeroError = error.with_traceback(None)  # which would keep what the failed call held
            self.restart(failure)

    def restart(self, failure: TinyZeroError) -> None:
        """Restart the worker after a failure; raises the failure if that is not possible."""
        while True:
            error_type = next((kind for kind in self._left if isinstance(failure, kind)), None)
            other = getattr(failure, "worker", None) not in (None, self.name)
            if (
                error_type is None
                or other
                or not self._left[error_type]
                or isinstance(failure, NoCapacityError)
                or stop_requested()
            ):
                raise failure
            self._left[error_type] -= 1
            left = self._left[error_type]
            reason = failure.reason if isinstance(failure, EngineDiedError) else str(failure)
            where = "" if reason.startswith(self.name) else f"{self.name}: "
            self._report(
                f"{where}{reason}; it is restarted, and its work repeated (at most {left} more "
                f"time{'' if left == 1 else 's'})"
            )
            try:
                self.worker = self._start(self.worker)
                return
            except tuple(self._left) as error:
                failure = error.with_traceback(None)


class RestartingEngine(RolloutEngine, Generic[Worker]):
    """A rollout engine that is restarted when it fails, and then gets again what was submitted."""

    def __init__(self, worker: Restartable[Worker], engine_of: Callable[[Worker], RolloutEngine]) -> None:
        """`worker` starts with the current weights; `engine_of` is the engine of a worker."""
        self.worker, self._engine_of = worker, engine_of
        self._started = worker.worker
        self.groups, self._new = dict[int, Group](), list[Group]()  # as they were submitted

    @classmethod
    def local(
        cls, build: Callable[[], RolloutEngine], max_restarts: int, report: Callable[[str], None]
    ) -> "RestartingEngine[RolloutEngine]":
        """An engine in this process: `build` starts one with the current weights. For the others see `Restartable`."""
        limits = {EngineDiedError: max_restarts}
        worker = Restartable[RolloutEngine]("the rollout engine", build(), lambda _: build(), limits, report)
        return RestartingEngine(worker, lambda engine: engine)

    def load_weights(self, version: int = 0) -> None:
        failure: EngineDiedError | None = None
        try:
            self._engine.load_weights(version)
        except EngineDiedError as error:
            failure = error.with_traceback(None)
        if failure is not None:
            self.worker.restart(failure)  # the new engine has the weights already
            self._engine.version = version

    def submit(self, groups: Sequence[Group]) -> None:
        self.groups |= {group.number: group for group in groups}
        self._new += groups

    def advance(self, params: SamplingParams, on_progress: OnProgress) -> list[Group]:
        if not self.groups:
            return []
        complete = self._repeating(lambda engine, count: engine.advance(params, count), on_progress)
        for group in complete:
            del self.groups[group.number]
        return list(complete)

    def unfinished(self) -> list[Group]:
        """The unfinished groups; those of an engine that has died as they were submitted."""
        try:
            return list(self._repeating(lambda engine, _: engine.unfinished())) if self.groups else []
        except (WorkerDiedError, EngineDiedError):
            return list(self.groups.values())

    def sleep(self) -> None:
        self.worker.do(lambda worker: self._engine_of(worker).sleep())

    def close(self) -> None:
        self._engine.close()

    def generate_batch(self, batch: PromptBatch, on_progress: OnProgress) -> Completions:
        return self._repeating(lambda engine, count: engine.generate_batch(batch, count), on_progress)

    @property
    def _engine(self) -> RolloutEngine:
        return self._engine_of(self.worker.worker)

    def _repeating(
        self, work: Callable[[RolloutEngine, OnProgress], Result], on_progress: OnProgress = lambda _: None
    ) -> Result:
        """Work with an engine that has all groups, again after each restart: then what was finished counts negative."""
        finished = 0

        def count(more: int) -> None:
            nonlocal finished
            finished += more
            on_progress(more)

        def attempt(worker: Worker) -> Result:
            if finished:
                count(-finished)
            engine = self._engine_of(worker)
            if new := self._new if worker is self._started else list(self.groups.values()):
                engine.submit(new)
            self._started, self._new = worker, []
            return work(engine, count)

        return self.worker.do(attempt)
