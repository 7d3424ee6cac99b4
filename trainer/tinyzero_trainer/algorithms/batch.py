"""A batch of scored completions, filled in from the rewards to the advantages; the update takes it.

Advantage estimators and losses are elsewhere; so are the tensors that the model takes (training/micro_batches.py).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from tinyzero_trainer.config import OptimizerConfig
from tinyzero_trainer.types import Rollout
from tinyzero_trainer.utils import jagged

PER_TOKEN = (
    "old_logprobs",
    "engine_logprobs",
    "is_weights",
    "kl_penalties",
    "values",
    "advantages",
    "returns",
)


@dataclass(slots=True)
class TrainingBatch:
    """Completions and their tokens, one completion after another; groups whole, in order and all of one size."""

    rewards: Tensor
    """[completions] finite scores."""

    lengths: Tensor
    """[completions] tokens of each, at least 1."""

    group_size: int = 1
    """Completions of a prompt."""

    rollouts: Sequence[Rollout] = ()
    """[completions]; what the models read, and no estimator."""

    mask: Tensor | None = None
    """[completions] bool: counts in the loss; the others' rewards still count in their group's mean. None = all."""

    old_logprobs: Tensor | None = None
    """[tokens] log π before the update; None = the update's only pass computes them."""

    engine_logprobs: Tensor | None = None
    """[tokens] as the engine reports them; None = not requested."""

    is_weights: Tensor | None = None
    """[tokens] importance-sampling weight of each token's loss, corrects for the engine; None = 1."""

    kl_penalties: Tensor | None = None
    """[tokens] subtracted from each token's reward, β·KL; None = 0."""

    values: Tensor | None = None
    """[tokens] V(s_t), the critic's estimate before the token was sampled."""

    greedy_rewards: Tensor | None = None
    """[groups] score of each prompt's greedy completion; ReMax needs it."""

    advantages: Tensor | None = None
    """[tokens]"""

    returns: Tensor | None = None
    """[tokens] the critic's target: advantage plus value."""

    gamma: float = 1.0
    """γ, discount of a reward one token later."""

    gae_lambda: float = 1.0
    """λ of GAE."""

    @classmethod
    def of(cls, rollouts: Sequence[Rollout], group_size: int = 1, **columns: Any) -> Self:
        """A batch of these rollouts, with their rewards, lengths, mask and the engine's log-probabilities.

        Args:
            rollouts: whole groups, one after another.
            group_size: completions of a prompt.
            columns: further fields, or others in place of those.
        """
        engine = [column for rollout in rollouts if (column := rollout.generation.logprobs) is not None]
        fields = {
            "rewards": torch.tensor([rollout.score.value for rollout in rollouts]),
            "lengths": torch.tensor([len(rollout.generation.token_ids) for rollout in rollouts], dtype=torch.long),
            "mask": torch.tensor([not rollout.score.masked for rollout in rollouts]),
            "engine_logprobs": None,
        }
        if len(engine) == len(rollouts):
            values = np.fromiter(chain.from_iterable(engine), np.float32, sum(map(len, engine)))
            fields["engine_logprobs"] = torch.from_numpy(values)
        return cls(group_size=group_size, rollouts=rollouts, **{**fields, **columns})

    def token_mask(self) -> Tensor | None:
        """[tokens] bool: belongs to a completion that counts in the loss; None = all."""
        return None if self.mask is None else jagged.repeat_to_tokens(self.mask, self.lengths)

    def group_rewards(self) -> Tensor:
        """[groups, group_size] reward of each completion, less its KL penalties."""
        rewards = self.rewards
        if self.kl_penalties is not None:
            rewards = rewards - jagged.sums(self.kl_penalties, self.lengths)
        return rewards.view(-1, self.group_size)

    def token_rewards(self) -> Tensor:
        """[tokens] minus the KL penalty of each token, plus the score at a completion's last one."""
        at_end = torch.zeros(int(self.lengths.sum()), dtype=self.rewards.dtype, device=self.rewards.device)
        at_end[jagged.last_tokens(self.lengths)] = self.rewards
        return at_end if self.kl_penalties is None else at_end - self.kl_penalties

    def select(self, rows: Sequence[int]) -> Self:
        """The completions at these indices, in this order; groups may be incomplete."""
        indices, chosen = jagged.token_indices(self.lengths, rows), torch.tensor(rows)
        columns: Any = {
            name: torch.from_numpy(column.numpy()[indices])
            for name in PER_TOKEN
            if (column := getattr(self, name)) is not None
        }
        return replace(
            self,
            rollouts=[self.rollouts[row] for row in rows],
            rewards=self.rewards[chosen],
            lengths=self.lengths[chosen],
            mask=None if self.mask is None else self.mask[chosen],
            **columns,
        )

    def mini_batches(self, settings: OptimizerConfig) -> Iterator[Self]:
        """`update_epochs` passes over what counts in the loss, each in `num_mini_batches` parts; none is empty."""
        count = len(self.rollouts)
        assert count % self.group_size == 0, "a group was cut in two"
        for _ in range(settings.update_epochs):
            for rows in mini_batch_rows(count // self.group_size, self.group_size, settings.num_mini_batches):
                counted = [row for row in rows if not self.rollouts[row].score.masked]
                if counted:
                    yield self.select(counted)


def mini_batch_rows(prompts: int, samples: int, mini_batches: int) -> list[range]:
    """Indices of each mini-batch's completions: whole groups, as even as can be, in order.

    Example:
        >>> mini_batch_rows(prompts=3, samples=2, mini_batches=2)
        [range(0, 4), range(4, 6)]
    """
    bounds = [-(-index * prompts // mini_batches) * samples for index in range(mini_batches + 1)]
    return [range(start, end) for start, end in pairwise(bounds)]
