"""What runs in the actors that score. Apart from the others, for these need not wait for torch."""

from tinyzero_sdk import Completion, Score, Task
from tinyzero_sdk.records import Json
from tinyzero_trainer.config import RewardConfig
from tinyzero_trainer.executors.ray.worker import Worker
from tinyzero_trainer.rewards.pool import scoring_pool


class RewardActor(Worker):
    """A task's scoring processes, on the machine that this actor is on."""

    def start(self, config: RewardConfig, task: Task) -> None:
        """Begin; the task was found by its name when it got here, and would not have been in another version."""
        self._pool = scoring_pool(config, task)

    def score(self, completions: list[Completion], ground_truths: list[Json]) -> tuple[list[Score], str | None]:
        """The verdicts in the order given, and the pool's first error so far."""
        return self._pool.score(completions, ground_truths), self._pool.first_error

    def close(self) -> None:
        """End the processes."""
        self._pool.close()
