"""How a mini-batch is split, laid out, padded or ordered changes neither the policy's gradient nor the critic's."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, get_args

import pytest
import torch
from torch import Tensor

from tests.trainer.conftest import SHAPE
from tests.trainer.samples import build_policy, flat_gradient, ragged_samples
from tinyzero_trainer.algorithms.batch import TrainingBatch
from tinyzero_trainer.algorithms.kinds import Aggregation
from tinyzero_trainer.algorithms.schedules import StepSettings
from tinyzero_trainer.config import CriticConfig, OptimizerConfig
from tinyzero_trainer.models.loading import LanguageModel
from tinyzero_trainer.models.new_model import build_model
from tinyzero_trainer.training.critic import Critic
from tinyzero_trainer.training.micro_batches import completion_lengths
from tinyzero_trainer.types import Rollout

NOW = StepSettings(learning_rate=1e-3, temperature=0.8, kl_coefficient=0.3)
WHOLE = 10**6
LOSSES = ("ppo", "gspo", "cispo", "reinforce")


@dataclass(frozen=True)
class Split:
    """One way to take the same mini-batch."""

    micro_batch_tokens: int = WHOLE
    layout: str = "padded"
    reorder: bool = False

    @property
    def optimizer(self) -> OptimizerConfig:
        return OptimizerConfig(max_grad_norm=1e9, micro_batch_tokens=self.micro_batch_tokens, packing=self.layout)  # type: ignore[arg-type]


SPLITS = {
    "each row alone": Split(1),
    "some rows together": Split(70),
    "all packed": Split(layout="packed"),
    "another order, some packed": Split(70, "packed", reorder=True),
}


def one_experience(samples: list[Rollout]) -> TrainingBatch:
    """Random values for everything that a loss reads, far enough from the policy for clips to bite."""
    generator = torch.Generator().manual_seed(7)
    lengths = completion_lengths(samples)
    noise = [torch.randn(int(lengths.sum()), generator=generator) for _ in range(5)]
    own = torch.tensor([value for sample in samples for value in sample.generation.logprobs or []])
    return TrainingBatch.of(
        samples,
        old_logprobs=own + 0.3 * noise[0],
        advantages=noise[1],
        engine_logprobs=None,
        values=noise[2],
        returns=noise[3],
        is_weights=noise[4].exp().clamp(max=2.0),
    )


def reordered(experience: TrainingBatch) -> TrainingBatch:
    """The same completions in another order, each with all that belongs to it."""
    order = torch.randperm(len(experience.rollouts), generator=torch.Generator().manual_seed(3)).tolist()
    starts = (experience.lengths.cumsum(0) - experience.lengths).tolist()
    lengths = experience.lengths.tolist()
    tokens = torch.tensor([start for row in order for start in range(starts[row], starts[row] + lengths[row])])
    names = ("old_logprobs", "advantages", "values", "returns", "is_weights")
    columns: Any = {name: getattr(experience, name)[tokens] for name in names}
    samples = [experience.rollouts[row] for row in order]
    return replace(experience, rollouts=samples, lengths=experience.lengths[torch.tensor(order)], **columns)


def check(update: Callable[[Split, TrainingBatch], Tensor], samples: list[Rollout]) -> None:
    """Every split of the mini-batch gives the gradient of the whole."""
    experience = one_experience(samples)
    whole = update(Split(), experience)
    assert whole.norm() > 1e-3
    for name, split in SPLITS.items():
        found = update(split, reordered(experience) if split.reorder else experience)
        difference = ((found - whole).norm() / whole.norm()).item()
        assert difference < 1e-5, f"{name}: {difference:.1e}"


# Each loss and each aggregation once, and the rest of the pairs in the slow suite.
@pytest.mark.parametrize(
    ("loss", "aggregation"),
    [
        pytest.param(loss, mode, marks=[] if LOSSES.index(loss) == number else [pytest.mark.slow])
        for loss in LOSSES
        for number, mode in enumerate(get_args(Aggregation))
    ],
)
def test_the_policys_gradient_is_the_same_for_every_split(
    loss: str, aggregation: Aggregation, toy_model: LanguageModel
) -> None:
    reference = build_model(SHAPE, toy_model.tokenizer, seed=1).requires_grad_(False)
    algorithm = {"kl_coefficient": 0.3, "kl_estimator": "k2", "entropy_coefficient": 0.1}
    algorithm |= {"policy_loss": loss, "loss_aggregation": aggregation}
    before = copy.deepcopy(toy_model.model.state_dict())

    def update(split: Split, experience: TrainingBatch) -> Tensor:
        toy_model.model.load_state_dict(before)
        build_policy(toy_model, reference=reference, optimizer=split.optimizer, **algorithm).update(experience, NOW)
        return flat_gradient(toy_model.model)

    check(update, ragged_samples(toy_model, groups=2, samples=3))


@pytest.mark.slow
def test_the_critics_gradient_is_the_same_for_every_split(toy_model: LanguageModel) -> None:
    start = Critic(toy_model, settings=CriticConfig(), optimizer=OptimizerConfig()).model
    torch.nn.init.normal_(start.head.weight, generator=torch.Generator().manual_seed(2))
    before = copy.deepcopy(start.state_dict())

    def update(split: Split, experience: TrainingBatch) -> Tensor:
        taker = Critic(toy_model, settings=CriticConfig(), optimizer=split.optimizer)
        taker.model.load_state_dict(before)
        taker.update(experience)
        return flat_gradient(taker.model)

    check(update, ragged_samples(toy_model, groups=2, samples=3))
