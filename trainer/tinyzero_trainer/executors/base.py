"""What the training loop works with: the workers of a run, wherever they are."""

from collections.abc import Mapping
from dataclasses import dataclass

from tinyzero_trainer.executors.tasks import RunTask
from tinyzero_trainer.models.loading import LanguageModel
from tinyzero_trainer.monitoring.progress import Progress
from tinyzero_trainer.rewards.pool import RewardPool
from tinyzero_trainer.rollout import RolloutEngine
from tinyzero_trainer.training.build import CriticRole, PolicyRole


@dataclass(frozen=True, slots=True)
class Workers:
    """Everyone a run needs, in this process or with a stand-in here."""

    tasks: Mapping[str, RunTask]
    """The tasks with their problems and scorers, by what the run calls them."""

    language_model: LanguageModel
    """The model that is trained or evaluated."""

    engine: RolloutEngine
    """Generates completions."""

    policy: PolicyRole | None
    """Updates the model; None where nothing is trained."""

    critic: CriticRole | None
    """Estimates what a completion is worth; None but for `algorithm.advantage_estimator=gae`."""

    display: Progress
    """Is told of progress."""

    @property
    def pools(self) -> dict[str, RewardPool]:
        """The reward pool of each task, by its name in the run."""
        return {name: task.pool for name, task in self.tasks.items()}
