"""A scored batch as the update takes it: completions with what each of their tokens is worth."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Self

import torch
from torch import Tensor

from tinyzero_trainer.config import OptimizerConfig
from tinyzero_trainer.training.micro_batches import mini_batch_rows
from tinyzero_trainer.types import Rollout
from tinyzero_trainer.utils import jagged as ragged


@dataclass(frozen=True, slots=True)
class TrainingBatch:
    """Completions and their tokens, one completion after another; groups whole and in order."""

    samples: Sequence[Rollout]
    """The completions."""

    lengths: Tensor
    """[completions] tokens of each."""

    old_logprobs: Tensor | None
    """[tokens] log π of each token before the update; None = what the update's own, only pass finds."""

    advantages: Tensor
    """[tokens]"""

    values: Tensor | None = None
    """[tokens] the critic's V(s_t) before the update; None without a critic."""

    returns: Tensor | None = None
    """[tokens] what the critic shall learn: advantage plus value."""

    importance: Tensor | None = None
    """[tokens] weight of each token's loss, for what the engine sampled and the policy would not; None = 1."""

    engine_logprobs: Tensor | None = None
    """[tokens] log-probabilities as the engine has them, for metrics alone; None where it was not asked."""

    def select(self, rows: Sequence[int]) -> Self:
        """The completions in these rows, in their order."""
        places = ragged.token_indices(self.lengths, rows)
        columns = {
            field.name: torch.from_numpy(values.numpy()[places])
            for field in fields(self)
            if field.name not in ("samples", "lengths") and (values := getattr(self, field.name)) is not None
        }
        samples = [self.samples[row] for row in rows]
        return replace(self, samples=samples, lengths=self.lengths[torch.tensor(rows)], **columns)

    def mini_batches(self, group_size: int, settings: OptimizerConfig) -> Iterator[Self]:
        """`epochs` passes over what counts in the loss, each in `mini_batches` parts of whole groups; none is empty.

        Args:
            group_size: completions of a prompt.
            settings: of the updates, one for each part.
        """
        count = len(self.samples)
        assert count % group_size == 0, "a group was cut in two"
        for _ in range(settings.update_epochs):
            for rows in mini_batch_rows(count // group_size, group_size, settings.num_mini_batches):
                counted = [row for row in rows if not self.samples[row].score.masked]
                if counted:
                    yield self.select(counted)
