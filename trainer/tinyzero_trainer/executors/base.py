"""The workers of a run as the training loop sees them: in this process or behind Ray proxies."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from torch import Tensor

from tinyzero_trainer.algorithms.batch import TrainingBatch
from tinyzero_trainer.algorithms.schedules import StepSettings
from tinyzero_trainer.executors.tasks import RunTask
from tinyzero_trainer.models.loading import LanguageModel
from tinyzero_trainer.monitoring.performance import GpuMemoryUsage
from tinyzero_trainer.monitoring.progress import Progress
from tinyzero_trainer.rewards.reward_pool import RewardPool
from tinyzero_trainer.rollout import RolloutEngine
from tinyzero_trainer.types import Rollout


class PolicyWorker(Protocol):
    """The policy, on one or several ranks."""

    @property
    def world_size(self) -> int:
        """Number of ranks that share the work."""

    @property
    def micro_batch_tokens(self) -> int:
        """`optimizer.micro_batch_tokens`, or fewer where memory has run out."""

    def gpu_memory(self) -> list[GpuMemoryUsage]:
        """The memory in use on each rank's GPU; empty on the CPU."""

    def logprobs(self, samples: Sequence[Rollout], temperature: float) -> Tensor:
        """[tokens] log π of every sampled token under the current weights."""

    def reference_logprobs(self, samples: Sequence[Rollout], temperature: float) -> Tensor:
        """[tokens] log π_ref of every sampled token."""

    def update(self, batch: TrainingBatch, settings: StepSettings) -> dict[str, float]:
        """Train on a batch; metrics `actor/*`."""

    def entropies(self) -> Tensor | None:
        """[tokens] entropies of the last batch trained on, as in `TrainingBatch.entropies`."""

    def export(self, directory: Path) -> None:
        """Write the model in transformers' format."""

    def save(self, directory: Path) -> None:
        """Write the rest of the state that resuming needs."""

    def load(self, directory: Path) -> None:
        """Read what `save` wrote; the weights are loaded already."""


class CriticWorker(Protocol):
    """The critic, on one or several ranks."""

    @property
    def parameters(self) -> int:
        """Number of parameters."""

    def values(self, samples: Sequence[Rollout]) -> Tensor:
        """[tokens] V(s_t) before each token."""

    def update(self, batch: TrainingBatch) -> dict[str, float]:
        """Train on a batch; metrics `critic/*`."""

    def save(self, directory: Path) -> None:
        """Write all state that resuming needs."""

    def load(self, directory: Path) -> None:
        """Read what `save` wrote."""


class TeacherWorker(Protocol):
    """The teacher, on one or several ranks."""

    def logprobs(self, samples: Sequence[Rollout], temperature: float) -> Tensor:
        """[tokens] log π_teacher of every sampled token."""


@dataclass(frozen=True, slots=True)
class Workers:
    """The workers of a run: local objects or Ray proxies."""

    tasks: Mapping[str, RunTask]
    """The tasks with their problems and scorers, by name."""

    language_model: LanguageModel
    """The policy's; without weights if the policy is elsewhere."""

    engine: RolloutEngine

    policy: PolicyWorker | None
    """None where nothing is trained."""

    critic: CriticWorker | None
    """None unless the advantages need one, as `gae` does."""

    teacher: TeacherWorker | None
    """None unless the advantages need one, as `on_policy_distillation` does."""

    display: Progress

    @property
    def pools(self) -> dict[str, RewardPool]:
        """The reward pool of each task, by name."""
        return {name: task.pool for name, task in self.tasks.items()}
