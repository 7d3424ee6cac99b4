"""The interface of reward pools. No torch, so that a process that only scores starts within a second."""

from collections.abc import Sequence
from typing import Protocol

from tinyzero_sdk import Completion, Score, Task
from tinyzero_sdk.records import Json
from tinyzero_sdk.scoring.pool import ScoringPool
from tinyzero_trainer.config import RewardConfig


class RewardPool(Protocol):
    """Scores completions: a `ScoringPool` of this process, or a proxy of one in an actor."""

    first_error: str | None  # traceback of the first exception that the task raised

    def score(
        self, completions: Sequence[Completion], ground_truths: Sequence[Json], groups: Sequence[int] = ()
    ) -> list[Score]:
        """The scores, in the order of the completions; `groups` are the numbers of completions of each problem."""

    def close(self) -> None:
        """End the processes."""


def scoring_pool(config: RewardConfig, task: Task) -> ScoringPool:
    """Scoring processes for one task on this machine."""
    return ScoringPool(task, workers=config.num_workers, timeout=config.timeout, memory_limit_gb=config.memory_limit_gb)
