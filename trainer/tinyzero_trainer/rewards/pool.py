"""Those who score. No torch: a process that does nothing else starts in a second."""

from collections.abc import Sequence
from typing import Protocol

from tinyzero_sdk import Completion, Score, Task
from tinyzero_sdk.records import Json
from tinyzero_sdk.scoring.pool import ScoringPool
from tinyzero_trainer.config import RewardConfig


class RewardPool(Protocol):
    """What is asked of those who score: a `ScoringPool`, or several of them elsewhere."""

    first_error: str | None
    """The traceback of the first exception that the task raised."""

    def score(self, completions: Sequence[Completion], ground_truths: Sequence[Json]) -> list[Score]:
        """The verdicts, in the order given."""


def scoring_pool(config: RewardConfig, task: Task) -> ScoringPool:
    """The processes of this machine that score one task."""
    return ScoringPool(task, workers=config.num_workers, timeout=config.timeout, memory_limit_gb=config.memory_limit_gb)
