"""What the adapters share: verdicts of a task in this process, or in worker processes that can be killed."""

import threading
from collections.abc import Sequence
from typing import Any, Self

from tinyzero_sdk.host import load_task
from tinyzero_sdk.pool import ScoringPool
from tinyzero_sdk.records import Completion, Json, Score
from tinyzero_sdk.task import Task


class Scorer:
    """Scores the completions of one task; pickles as the task and the number of workers.

    Example:
        >>> scorer = Scorer("countdown")  # doctest: +SKIP
        >>> scorer.score([Completion("<answer>3 + 4</answer>")], [{"target": 7, "numbers": [3, 4]}])  # doctest: +SKIP
    """

    def __init__(self, task: Task | str, *, workers: int = 0, time_limit: float = 5.0) -> None:
        """
        Args:
            task: from `load_task`, or a name for it.
            workers: worker processes; 0 = score in this process, which nothing protects from a scorer that hangs.
                A scorer that must not be trusted with a model's text gets at least one.
            time_limit: seconds for one answer, where there are workers.

        Raises:
            UnsafeScorerError: the scorer must not be trusted with a model's text, and the task was loaded without
                `allow_unsafe_scorers`.
        """
        self.task = load_task(task) if isinstance(task, str) else task
        self.task.check_scoring_allowed()
        self._workers = max(workers, 1 if self.task.info.unsafe_scorer else 0)
        self._time_limit = time_limit
        self._pool: ScoringPool | None = None
        self._lock = threading.Lock()  # a trainer may score from several threads

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.task, self._workers, self._time_limit)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        """End the workers; the next call starts others."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    def score(self, completions: Sequence[Completion], ground_truths: Sequence[Json]) -> list[Score]:
        """The verdicts, in the order given."""
        if not self._workers:
            return list(map(self.task.score_completion, completions, ground_truths))
        with self._lock:
            if self._pool is None:
                self._pool = ScoringPool(self.task, workers=self._workers, time_limit=self._time_limit)
            pool = self._pool
        return pool.score(completions, ground_truths)


def _rebuild(cls: type[Scorer], task: Task, workers: int, time_limit: float) -> Scorer:
    return cls(task, workers=workers, time_limit=time_limit)
