"""A batch of scored completions: starts with rewards, gets advantages, and is trained on."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from tinyzero_sdk.records import SCORER_FAILURES
from tinyzero_trainer.types import Rollout
from tinyzero_trainer.utils import jagged

PER_TOKEN = (
    *("old_logprobs", "engine_logprobs", "teacher_logprobs"),
    *("is_weights", "kl_penalties", "values", "advantages", "returns"),
)


@dataclass(slots=True)
class TrainingBatch:
    """Completions and their tokens, one completion after another; whole groups of one size."""

    rewards: Tensor  # [completions] finite scores
    lengths: Tensor  # [completions] tokens of each, at least 1
    group_size: int = 1
    rollouts: Sequence[Rollout] = ()  # [completions]; for the models, not for estimators
    mask: Tensor | None = None
    """[completions] bool: counts in the loss. None = all."""

    known: Tensor | None = None
    """[completions] bool: its score is known, and counts in the mean of its group, masked or not. None = all."""

    old_logprobs: Tensor | None = None
    """[tokens] log π before the update; None = computed in the update's only pass."""

    engine_logprobs: Tensor | None = None  # [tokens]
    teacher_logprobs: Tensor | None = None  # [tokens]
    is_weights: Tensor | None = None  # [tokens] importance-sampling weight of each token's loss; None = 1
    kl_penalties: Tensor | None = None  # [tokens] β·KL, subtracted from each token's reward; None = 0
    values: Tensor | None = None  # [tokens] V(s_t), the critic's estimate before the token was sampled
    greedy_rewards: Tensor | None = None  # [groups] score of each prompt's greedy completion
    reward_parts: Tensor | None = None  # [completions, parts] parts of the rewards before their weights
    part_weights: Tensor | None = None
    """[completions, parts] weight of each part in the task of the completion; 0 where the task has no such part."""

    advantages: Tensor | None = None  # [tokens]
    returns: Tensor | None = None  # [tokens] the critic's target: advantage plus value
    entropies: Tensor | None = None
    """[tokens] entropy of π where the token was sampled, as the update computed it; NaN where it was not trained on."""

    gamma: float = 1.0
    gae_lambda: float = 1.0
    indices: Sequence[int] = ()  # [completions] of each in the batch that it was selected from; () = of none

    @classmethod
    def of(cls, rollouts: Sequence[Rollout], group_size: int = 1, **columns: Any) -> Self:
        """A batch with the rollouts' rewards, lengths, mask and engine log-probabilities; `columns` take precedence."""
        engine = [column for rollout in rollouts if (column := rollout.generation.logprobs) is not None]
        fields = {
            "rewards": torch.tensor([rollout.score.value for rollout in rollouts]),
            "lengths": torch.tensor([len(rollout.generation.token_ids) for rollout in rollouts], dtype=torch.long),
            "mask": torch.tensor([not rollout.score.masked for rollout in rollouts]),
        }
        known = [rollout.score.reason not in SCORER_FAILURES for rollout in rollouts]
        if not all(known):
            fields["known"] = torch.tensor(known)
        if len(engine) == len(rollouts) > 0:
            values = [np.asarray(column, np.float32) for column in engine]
            fields["engine_logprobs"] = torch.from_numpy(np.concatenate(values))
        return cls(group_size=group_size, rollouts=rollouts, **{**fields, **columns})

    def token_mask(self) -> Tensor | None:
        """[tokens] bool: counts in the loss; None = all."""
        return None if self.mask is None else jagged.repeat_to_tokens(self.mask, self.lengths)

    def group_rewards(self) -> Tensor:
        """[groups, group_size] reward of each completion minus its KL penalties."""
        rewards = self.rewards
        if self.kl_penalties is not None:
            rewards = rewards - jagged.sums(self.kl_penalties, self.lengths)
        return rewards.view(-1, self.group_size)

    def token_rewards(self) -> Tensor:
        """[tokens] the negative KL penalty, plus the score at a completion's last token."""
        at_end = torch.zeros(int(self.lengths.sum()), dtype=self.rewards.dtype, device=self.rewards.device)
        at_end[self.lengths.cumsum(0) - 1] = self.rewards
        return at_end if self.kl_penalties is None else at_end - self.kl_penalties

    def select(self, indices: Sequence[int]) -> Self:
        """The completions at these indices, in this order; groups may be incomplete."""
        tokens, completions = jagged.token_indices(self.lengths, indices), torch.tensor(indices)
        columns: Any = {
            name: torch.from_numpy(column.numpy()[tokens])
            for name in PER_TOKEN
            if (column := getattr(self, name)) is not None
        }
        return replace(
            self,
            rollouts=[self.rollouts[index] for index in indices],
            indices=[self.indices[index] for index in indices] if self.indices else indices,
            rewards=self.rewards[completions],
            lengths=self.lengths[completions],
            mask=None if self.mask is None else self.mask[completions],
            known=None,  # for estimators, which compare whole groups
            **columns,
        )

    def mini_batches(self, number: int, epochs: int) -> Iterator[Self]:
        """`epochs` passes over what counts in the loss, each in at most `number` mini-batches, none of them empty."""
        count = len(self.rollouts)
        assert count % self.group_size == 0, "a group was cut in two"
        for _ in range(epochs):
            for indices in mini_batch_indices(count // self.group_size, self.group_size, number):
                counted = [index for index in indices if not self.rollouts[index].score.masked]
                if counted:
                    yield self.select(counted)


def mask_rejected(rollouts: Sequence[Rollout], group_size: int, most: int | None = None) -> list[Rollout]:
    """The rollouts, with all masked but the right ones, and of each group all but its first `most` right ones."""
    accepted = set[int]()
    for start in range(0, len(rollouts), group_size):
        scores = [(index, rollouts[index].score) for index in range(start, start + group_size)]
        accepted.update([index for index, score in scores if score.correct and not score.masked][:most])
    return [
        rollout if index in accepted else replace(rollout, score=replace(rollout.score, masked=True))
        for index, rollout in enumerate(rollouts)
    ]


def mini_batch_indices(prompts: int, group_size: int, mini_batches: int) -> list[range]:
    """Indices of each mini-batch's completions: whole groups in order, divided evenly.

    Example:
        >>> mini_batch_indices(prompts=3, group_size=2, mini_batches=2)
        [range(0, 4), range(4, 6)]
    """
    bounds = [-(-index * prompts // mini_batches) * group_size for index in range(mini_batches + 1)]
    return [range(start, end) for start, end in pairwise(bounds)]
