"""Splitting a batch into mini-batches and micro-batches, and laying those out as tensors, padded or packed."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import torch
from torch import Tensor

from tinyzero_trainer.config import Layout
from tinyzero_trainer.records import Sample


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Sequences that go through the model together: one a line with padding, or all in one line without."""

    tokens: Tensor
    """[lines, length] prompt, completion, padding."""

    mask: Tensor | None
    """[lines, length] 1 where there is a token; None = everywhere."""

    positions: Tensor | None
    """[lines, length] place of each token in its own sequence, by which a model tells packed sequences apart; None =
    each line is one sequence and begins at its left end."""

    boundaries: Tensor | None
    """[sequences + 1] int32, where each packed sequence begins, and where the last ends; None = not packed."""

    longest: int
    """Tokens of the longest sequence."""

    predicts: Tensor
    """[lines, length] bool: the token after this one belongs to the completion and counts in the loss."""

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
    samples: Sequence[Sample], *, token_budget: int, pad_id: int, device: torch.device, layout: Layout = "padded"
) -> Iterator[MicroBatch]:
    """Groups of sequences of like length whose size stays within the budget (a longer one goes alone).

    Args:
        samples: the mini-batch.
        token_budget: tokens, padding included, at most.
        pad_id: token that fills up.
        device: where the tensors go.
        layout: see `MicroBatch`.
    """
    rows = sorted(range(len(samples)), key=lambda row: _length(samples[row]), reverse=True)
    while rows:
        count = _fitting([_length(samples[row]) for row in rows], token_budget, layout)
        chosen, rows = rows[:count], rows[count:]
        lay_out = _pack if layout == "packed" else _pad
        yield lay_out([samples[row] for row in chosen], chosen, pad_id, device)


def in_row_order(batches: Iterable[MicroBatch], compute: Callable[[MicroBatch], Tensor], count: int) -> Tensor:
    """[tokens] what `compute` gives for micro-batches of `count` completions, in the completions' order; on the CPU."""
    parts: list[Tensor] = [torch.empty(0)] * count
    for batch in batches:
        found = compute(batch).cpu()
        for row, part in zip(batch.rows, found.split(batch.lengths.tolist()), strict=True):
            parts[row] = part
    return torch.cat(parts)


def _fitting(lengths: list[int], budget: int, layout: Layout) -> int:
    """How many of the first sequences, the longest in front, go together."""
    if layout != "packed":
        return max(1, budget // lengths[0])
    return max(1, sum(total <= budget for total in accumulate(lengths)))


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
        positions=None,
        boundaries=None,
        longest=longest,
        predicts=predicts.to(device),
        targets=torch.tensor([token for sample in samples for token in sample.rollout.token_ids], device=device),
        rows=rows,
        lengths=completion_lengths(samples).to(device),
    )


def _pack(samples: Sequence[Sample], rows: list[int], pad_id: int, device: torch.device) -> MicroBatch:
    tokens = [token for sample in samples for token in sample.prompt.token_ids + sample.rollout.token_ids]
    positions = [place for sample in samples for place in range(_length(sample))]
    predicts = torch.zeros(len(tokens), dtype=torch.bool)
    end = 0
    for sample in samples:
        end += _length(sample)
        predicts[end - 1 - len(sample.rollout.token_ids) : end - 1] = True
    return MicroBatch(
        tokens=torch.tensor([tokens], device=device),
        mask=None,
        positions=torch.tensor([positions], device=device),
        boundaries=torch.tensor(list(accumulate(map(_length, samples), initial=0)), dtype=torch.int32, device=device),
        longest=max(map(_length, samples)),
        predicts=predicts[None].to(device),
        targets=torch.tensor([token for sample in samples for token in sample.rollout.token_ids], device=device),
        rows=rows,
        lengths=completion_lengths(samples).to(device),
    )
