"""The scorer that the adapters share: scores a task in this process, or in worker processes that can be killed.

A trainer sees only a number, so a completion that the scorer fails on looks like a wrong one: the first failure is
reported in a warning, and a task that fails on everything stops the run.
"""

import threading
import warnings
from collections.abc import Sequence
from functools import partial
from typing import Any

from tinyzero_sdk.errors import BrokenTaskError, DataError, SettingsError
from tinyzero_sdk.records import SCORER_FAILURES, Completion, Json, Score
from tinyzero_sdk.scoring.pool import ScoringPool
from tinyzero_sdk.tasks.registry import load_task
from tinyzero_sdk.tasks.score_guard import describe_value
from tinyzero_sdk.tasks.task import Task
from tinyzero_sdk.workers.process import ClosesOnExit

MOST_FAILURES = 32
"""Number of errors, without any right or wrong answer, after which the task or ground truths count as broken."""


class Scorer(ClosesOnExit):
    """Scores the completions of one task; pickles as the task and the number of workers.

    Example:
        >>> scorer = Scorer("countdown")
        >>> scorer.score([Completion("<answer>3 + 4</answer>")], [{"target": 7, "numbers": [3, 4]}])[0].value
        1.0
    """

    def __init__(self, task: Task | str, *, workers: int = 0, timeout: float = 5.0) -> None:
        """
        Args:
            task: from `load_task`, or a name for it.
            workers: worker processes; 0 = score in this process, without protection from a scorer that hangs. An
                unsafe scorer gets at least one.
            timeout: seconds to score one completion, with workers.

        Raises:
            UnsafeScorerError: the scorer is unsafe and the task was loaded without `allow_unsafe_scorers`.
            SettingsError: the task compares completions, and another trainer's groups may come in pieces.
        """
        self.task = load_task(task) if isinstance(task, str) else task
        self.task.check_scoring_allowed()
        if self.task.compares_completions:
            raise SettingsError(
                f"task {self.task.name!r} compares the completions of a problem (score_group), which an adapter cannot "
                "pass together; train on it with tinyzero train"
            )
        self._workers = max(workers, 1 if self.task.info.unsafe_scorer else 0)
        self._timeout = timeout
        self._pool: ScoringPool | None = None
        self._lock = threading.Lock()  # a trainer may score from several threads
        self._failures: int | None = 0  # errors so far; None once an answer was right or wrong
        self._has_warned = False

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), workers=self._workers, timeout=self._timeout), (self.task,)

    def close(self) -> None:
        """Stop the workers; the next call starts new ones."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    def score(self, completions: Sequence[Completion], ground_truths: Sequence[Json]) -> list[Score]:
        """The scores, in the given order.

        Raises:
            DataError: completions and ground truths differ in number.
            BrokenTaskError: the first `MOST_FAILURES` completions all ended in an error.
        """
        if len(completions) != len(ground_truths):
            raise DataError(
                f"got {len(completions)} completions and {len(ground_truths)} ground truths; expected one for each"
            )
        if self._workers:
            with self._lock:
                if self._pool is None:
                    self._pool = ScoringPool(self.task, workers=self._workers, timeout=self._timeout)
                pool = self._pool
            scores = pool.score(completions, ground_truths)
        else:
            scores = list(self.task.score_completions(completions, ground_truths))
        self._watch(scores, ground_truths)
        return scores

    def _watch(self, scores: Sequence[Score], ground_truths: Sequence[Json]) -> None:
        """Warn of the first failure, and stop if there are only failures."""
        reasons = [score.reason for score in scores]
        if any(reason in ("ok", "wrong") for reason in reasons):  # other reasons may not involve the ground truth
            self._failures = None
        elif self._failures is not None:
            self._failures += reasons.count("error")
        failed = next((place for place, reason in enumerate(reasons) if reason in SCORER_FAILURES), None)
        if failed is None:
            return
        error = self.task.first_error if self._pool is None else self._pool.first_error
        cause, truth = error.splitlines()[-1] if error else "its worker ended", describe_value(ground_truths[failed])
        if self._failures is not None and self._failures >= MOST_FAILURES:
            raise BrokenTaskError(
                f"task {self.task.name!r} failed on all of the first {self._failures} answers ({truth} is a ground "
                f"truth, which it may be unable to use): {cause}"
            )
        if not self._has_warned:
            self._has_warned = True
            if reasons[failed] == "timeout":
                cause = f"it took more than {self._timeout:g} s"
            warnings.warn(
                f"task {self.task.name!r} failed on an answer, which scores 0 ({reasons[failed]}: {cause}); its ground "
                f"truth: {truth}; further failures are not reported",
                stacklevel=4,
            )
