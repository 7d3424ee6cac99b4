"""Restarting workers that died: the one mechanism for vLLM, and for engines and scorers in Ray's actors."""

from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

from tinyzero_sdk.errors import TinyZeroError
from tinyzero_trainer.errors import EngineDiedError, NoCapacityError
from tinyzero_trainer.rollout.engine import Groups, OnProgress, PromptBatch, RolloutEngine
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
            error_type = next((each for each in self._left if isinstance(failure, each)), None)
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


class RestartingEngine(RolloutEngine):
    """A rollout engine of this process that is rebuilt, with the current weights, when it fails."""

    def __init__(self, build: Callable[[], RolloutEngine], max_restarts: int, report: Callable[[str], None]) -> None:
        """`build` starts an engine with the current weights; for the others see `Restartable`."""
        limits = {EngineDiedError: max_restarts}
        self._engine = Restartable[RolloutEngine]("the rollout engine", build(), lambda _: build(), limits, report)

    def load_weights(self) -> None:
        failure: EngineDiedError | None = None
        try:
            self._engine.worker.load_weights()
        except EngineDiedError as error:
            failure = error.with_traceback(None)
        if failure is not None:
            self._engine.restart(failure)  # the new engine has the weights already

    def sleep(self) -> None:
        self._engine.do(lambda engine: engine.sleep())

    def close(self) -> None:
        self._engine.worker.close()

    def generate_batch(self, batch: PromptBatch, on_progress: OnProgress) -> Groups:
        finished = 0

        def count(more: int) -> None:
            nonlocal finished
            finished += more
            on_progress(more)

        def work(engine: RolloutEngine) -> Groups:
            if finished:
                count(-finished)
            return engine.generate_batch(batch, count)

        return self._engine.do(work)
