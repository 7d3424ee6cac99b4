"""Restarting workers that died: the one mechanism for vLLM in this process, engines and scorers in Ray's actors."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from tinyzero_sdk.errors import TinyZeroError
from tinyzero_trainer.errors import EngineDiedError, NoCapacityError
from tinyzero_trainer.rollout import RolloutEngine, SamplingParams
from tinyzero_trainer.types import Generation

Worker = TypeVar("Worker")
Result = TypeVar("Result")


class Restartable(Generic[Worker]):
    """A worker that may fail; up to a limit another takes its place and repeats its work."""

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
            name: for messages, and to tell its death from another worker's.
            worker: the first.
            start: starts another in place of the one given, ready for work.
            max_restarts: by the class of the error after which it is restarted.
            report: receives a line for each restart.
        """
        self.name, self.worker, self._start, self._report = name, worker, start, report
        self._left = dict(max_restarts)

    def do(self, work: Callable[[Worker], Result]) -> Result:
        """Call `work` with the worker, and once more with each that takes its place.

        Raises:
            TinyZeroError: it failed more often than it may, or another worker that it needs failed.
        """
        while True:
            try:
                return work(self.worker)
            except tuple(self._left) as error:
                failure: TinyZeroError = error.with_traceback(None)  # which would keep what the failed call held
            self.restart(failure)

    def restart(self, failure: TinyZeroError) -> None:
        """Put another in the worker's place after a failure; raises the failure if that is not possible."""
        while True:
            kind = next((kind for kind in self._left if isinstance(failure, kind)), None)
            other = getattr(failure, "worker", None) not in (None, self.name)
            if kind is None or other or not self._left[kind] or isinstance(failure, NoCapacityError):
                raise failure
            self._left[kind] -= 1
            left = self._left[kind]
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


class RestartingEngine:
    """A `RolloutEngine` in this process that is built anew, with the present weights, when it fails."""

    def __init__(self, build: Callable[[], RolloutEngine], max_restarts: int, report: Callable[[str], None]) -> None:
        """
        Args:
            build: starts an engine with the present weights.
            max_restarts: times that it may fail.
            report: receives a line for each restart.
        """
        limits = {EngineDiedError: max_restarts}
        self._engine = Restartable[RolloutEngine]("the rollout engine", build(), lambda _: build(), limits, report)

    def load_weights(self) -> None:
        """See `RolloutEngine`."""
        try:
            self._engine.worker.load_weights()
        except EngineDiedError as error:
            failure = error.with_traceback(None)
        else:
            return
        self._engine.restart(failure)  # the new engine has the weights already

    def sleep(self) -> None:
        """See `RolloutEngine`."""
        self._engine.do(lambda engine: engine.sleep())

    def close(self) -> None:
        """See `RolloutEngine`."""
        self._engine.worker.close()

    def generate(
        self,
        prompts: Sequence[list[int]],
        samples: int,
        params: SamplingParams,
        *,
        seed: int,
        first: int = 0,
        on_progress: Callable[[int], None] | None = None,
    ) -> list[list[Generation]]:
        """See `RolloutEngine`; `on_progress` gets a negative number when a batch begins again."""
        report, finished = on_progress or (lambda _: None), 0

        def count(more: int) -> None:
            nonlocal finished
            finished += more
            report(more)

        def work(engine: RolloutEngine) -> list[list[Generation]]:
            if finished:
                count(-finished)
            return engine.generate(prompts, samples, params, seed=seed, first=first, on_progress=count)

        return self._engine.do(work)
