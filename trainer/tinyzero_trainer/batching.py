"""Splitting a batch into mini-batches and micro-batches, and padding them into tensors."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from tinyzero_trainer.records import Sample


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Sequences that go through the model together, padded on the right."""

    tokens: Tensor
    """[sequences, length] prompt, completion, padding."""

    mask: Tensor
    """[sequences, length] 1 where there is a token."""

    predicts: Tensor
    """[sequences, length] bool: the token after this one belongs to the completion and counts in the loss."""

    targets: Tensor
    """[tokens] the completion tokens, in the order in which `predicts` selects."""

    rows: list[int]
    """The completions' places in what the micro-batch was made from."""

    lengths: Tensor
    """[sequences] completion tokens of each."""


def mini_batch_rows(prompts: int, samples: int, mini_batches: int) -> list[range]:
    """Rows of each mini-batch: whole prompts, as even as can be, in order.

    Example:
        >>> mini_batch_rows(prompts=3, samples=2, mini_batches=2)
        [range(0, 4), range(4, 6)]
    """
    bounds = [-(-index * prompts // mini_batches) * samples for index in range(mini_batches + 1)]
    return [range(start, end) for start, end in pairwise(bounds)]


def completion_lengths(samples: Sequence[Sample]) -> Tensor:
    """[completions] generated tokens of each."""
    return torch.tensor([len(sample.rollout.token_ids) for sample in samples], dtype=torch.long)


def micro_batches(
    samples: Sequence[Sample], *, token_budget: int, pad_id: int, device: torch.device
) -> Iterator[MicroBatch]:
    """Groups of sequences of like length whose padded size stays within the budget (a longer one goes alone).

    Args:
        samples: the mini-batch.
        token_budget: sequences × longest length, at most.
        pad_id: token that fills up.
        device: where the tensors go.
    """
    rows = sorted(range(len(samples)), key=lambda row: _length(samples[row]), reverse=True)
    while rows:
        count = max(1, token_budget // _length(samples[rows[0]]))
        chosen, rows = rows[:count], rows[count:]
        yield _pad([samples[row] for row in chosen], chosen, pad_id, device)


def _length(sample: Sample) -> int:
    return len(sample.prompt.token_ids) + len(sample.rollout.token_ids)


def _pad(samples: Sequence[Sample], rows: list[int], pad_id: int, device: torch.device) -> MicroBatch:
    longest = max(map(_length, samples))
    tokens = torch.full((len(samples), longest), pad_id)
    mask = torch.zeros((len(samples), longest), dtype=torch.long)
    predicts = torch.zeros((len(samples), longest), dtype=torch.bool)
    for row, sample in enumerate(samples):
        prompt, completion = sample.prompt.token_ids, sample.rollout.token_ids
        end = len(prompt) + len(completion)
        tokens[row, :end] = torch.tensor(prompt + completion)
        mask[row, :end] = 1
        predicts[row, len(prompt) - 1 : end - 1] = True
    return MicroBatch(
        tokens=tokens.to(device),
        mask=mask.to(device),
        predicts=predicts.to(device),
        targets=torch.tensor([token for sample in samples for token in sample.rollout.token_ids], device=device),
        rows=rows,
        lengths=completion_lengths(samples).to(device),
    )
