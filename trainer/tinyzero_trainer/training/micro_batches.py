"""Splitting a batch into mini-batches and micro-batches, and laying those out as tensors, padded or packed."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, chain, islice, takewhile
from typing import Self

import numpy as np
import torch
from torch import Tensor

from tinyzero_sdk import Item, Score
from tinyzero_trainer.config import Layout
from tinyzero_trainer.distributed.groups import ALONE, DataParallelGroup, SequenceParallelGroup
from tinyzero_trainer.training.seqlen_balancing import balance
from tinyzero_trainer.types import Generation, Prompt, Rollout
from tinyzero_trainer.utils import jagged as ragged


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Sequences that go through the model together: one a line with padding, or all in one line without.

    Where several ranks share the line, `tokens`, `positions`, `predicts` and `targets` are of this one's slice of it.
    """

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
    """[tokens] places, in the lines one after another, whose next token belongs to the completion and counts in the
    loss. Not a mask: to select by one a GPU must first tell the host how many there are."""

    targets: Tensor
    """[tokens] the completion tokens, in the order in which `predicts` selects."""

    rows: list[int]
    """The completions' places in what the micro-batch was made from."""

    lengths: Tensor
    """[sequences] completion tokens of each."""

    filler: bool = False
    """Whether it counts nowhere, and is here only because another rank has one more to go through the model."""

    line: SequenceParallelGroup | None = None
    """The ranks that share the line, which is packed then; None = it is all here."""

    counts: tuple[int, ...] = ()
    """How many tokens `predicts` has on each of those."""


def completion_lengths(samples: Sequence[Rollout]) -> Tensor:
    """[completions] generated tokens of each."""
    return torch.tensor([len(sample.generation.token_ids) for sample in samples], dtype=torch.long)


def micro_batches(
    samples: Sequence[Rollout],
    *,
    token_budget: int,
    pad_id: int,
    device: torch.device,
    layout: Layout = "padded",
    ranks: DataParallelGroup = ALONE,
) -> Iterator[MicroBatch]:
    """Groups of sequences of like length whose size stays within the budget (a longer one goes alone).

    Args:
        samples: the mini-batch, of all ranks.
        token_budget: tokens, padding included, at most; of each of the ranks that share a line.
        pad_id: token that fills up.
        device: where the tensors go.
        layout: see `MicroBatch`.
        ranks: this one's share is given; as many micro-batches on each, for it takes all of them to gather a weight.
    """
    lengths = [_length(sample) for sample in samples]
    assert layout == "packed" or ranks.line is None, "a line with padding cannot be shared"
    budget = token_budget if ranks.line is None else token_budget * ranks.line.count
    plans = [_grouped(share, lengths, budget, layout) for share in balance(lengths, ranks.count)]
    lay_out, own = partial(_pack, line=ranks.line) if layout == "packed" else _pad, plans[ranks.index]
    for rows in own:
        yield lay_out([samples[row] for row in rows], rows, pad_id, device)
    for _ in range(max(map(len, plans)) - len(own)):
        shortest = min(range(len(samples)), key=lengths.__getitem__)
        yield replace(lay_out([samples[shortest]], [shortest], pad_id, device), filler=True)


def _grouped(share: Iterable[int], lengths: Sequence[int], budget: int, layout: Layout) -> list[list[int]]:
    """Rows of each of a rank's micro-batches."""
    rows = sorted(share, key=lengths.__getitem__, reverse=True)
    ordered, groups, start = [lengths[row] for row in rows], [], 0
    while start < len(rows):
        count = _fitting(ordered, start, budget, layout)
        groups.append(rows[start : start + count])
        start += count
    return groups


def fill_budget(token_budget: int, max_tokens: int, *, context: int) -> list[Rollout]:
    """Made-up completions, as long as can be, that fill a micro-batch to the last token: what takes most memory.

    The last one is what is left over. Without it real micro-batches would be a little larger, and fit into none of the
    blocks that the allocator has from this one: a third more memory for nothing.

    Args:
        token_budget: of the micro-batch.
        max_tokens: of a completion.
        context: of the model.
    """
    prompt = Prompt(Item(None), "", [0])
    length = max(1, min(max_tokens, token_budget - 1, context - 1))
    count = max(1, token_budget // (length + 1))
    left = token_budget - count * (length + 1)
    lengths = [length] * count + [left - 1] * (left > 1)
    return [Rollout(prompt, Generation([0] * size, None, finished=False), "", Score(0.0, False)) for size in lengths]


def in_row_order(
    batches: Iterable[MicroBatch],
    compute: Callable[[MicroBatch], Tensor],
    lengths: Tensor,
    ranks: DataParallelGroup = ALONE,
) -> Tensor:
    """[tokens, …] what `compute` gives for the micro-batches of all ranks, in the completions' order; on the CPU.

    Args:
        batches: this rank's.
        compute: [tokens, …] of a micro-batch, floats; with several ranks [tokens].
        lengths: [completions] tokens of each.
        ranks: which put together what each has computed.
    """
    found, rows = list[Tensor](), list[int]()
    for batch in batches:
        computed = compute(batch)
        if not batch.filler:
            found.append(computed)
            rows += batch.rows
    assert ranks.count > 1 or len(rows) == len(lengths)
    # Fetched together: to wait for each would leave a GPU idle while the next is laid out.
    values = torch.cat(found).float().cpu() if found else torch.empty(0)
    together = values.new_zeros((int(lengths.sum()), *values.shape[1:]))
    together.numpy()[ragged.token_indices(lengths, rows)] = values.numpy()
    return ranks.add(together)  # each token is zero on all ranks but one


def _fitting(lengths: list[int], start: int, budget: int, layout: Layout) -> int:
    """How many sequences from `start` on, the longest in front, go together."""
    if layout != "packed":
        return max(1, budget // lengths[start])
    sums = accumulate(islice(lengths, start, None))
    return max(1, sum(1 for _ in takewhile(budget.__ge__, sums)))


def _length(sample: Rollout) -> int:
    return len(sample.prompt.token_ids) + len(sample.generation.token_ids)


@dataclass(frozen=True, slots=True)
class _Flat:
    """Sequences one after another, as arrays."""

    tokens: np.ndarray
    """[tokens] int64"""

    starts: np.ndarray
    """[sequences] where each begins."""

    lengths: np.ndarray
    """[sequences] of prompt and completion."""

    completions: np.ndarray
    """[sequences] of the completion alone."""

    @classmethod
    def of(cls, samples: Sequence[Rollout]) -> Self:
        pieces = [part for sample in samples for part in (sample.prompt.token_ids, sample.generation.token_ids)]
        sizes = np.fromiter(map(len, pieces), np.int64, len(pieces)).reshape(-1, 2)
        lengths = sizes.sum(axis=1)
        tokens = np.fromiter(chain.from_iterable(pieces), np.int64, int(lengths.sum()))
        return cls(tokens, lengths.cumsum() - lengths, lengths, sizes[:, 1])

    def positions(self) -> np.ndarray:
        """[tokens] place of each in its own sequence."""
        return np.arange(len(self.tokens)) - self.starts.repeat(self.lengths)

    def predicts(self) -> np.ndarray:
        """[tokens] whether the next token belongs to the completion."""
        from_end = self.lengths.repeat(self.lengths) - self.positions()  # 1 for the last token
        return (from_end > 1) & (from_end <= self.completions.repeat(self.lengths) + 1)

    def targets(self) -> np.ndarray:
        """[completion tokens]"""
        return self.tokens[np.flatnonzero(self.predicts()) + 1]


def _pad(samples: Sequence[Rollout], rows: list[int], pad_id: int, device: torch.device) -> MicroBatch:
    flat = _Flat.of(samples)
    longest = int(flat.lengths.max())
    present = np.arange(longest) < flat.lengths[:, None]  # [lines, longest]
    tokens = np.full(present.shape, pad_id)
    tokens[present] = flat.tokens
    return MicroBatch(
        tokens=_on(tokens, device),
        mask=_on(present.astype(np.int64), device),
        positions=None,
        boundaries=None,
        longest=longest,
        predicts=_on(np.flatnonzero(present)[flat.predicts()], device),
        targets=_on(flat.targets(), device),
        rows=rows,
        lengths=_on(flat.completions, device),
    )


def _pack(
    samples: Sequence[Rollout], rows: list[int], pad_id: int, device: torch.device, line: SequenceParallelGroup | None
) -> MicroBatch:
    flat = _Flat.of(samples)
    boundaries = np.concatenate((flat.starts, flat.starts[-1:] + flat.lengths[-1:]))
    tokens, positions, longest = flat.tokens, flat.positions(), int(flat.lengths.max())
    predicts, targets, counts = np.flatnonzero(flat.predicts()), flat.targets(), ()
    if line is not None:
        lacking = -len(tokens) % line.count  # for slices of equal length; a sequence by itself, so that none sees it
        if lacking:
            tokens = np.append(tokens, [pad_id] * lacking)
            positions = np.append(positions, np.arange(lacking))
            boundaries, longest = np.append(boundaries, len(tokens)), max(longest, lacking)
        size = len(tokens) // line.count
        ends = np.searchsorted(predicts, np.arange(1, line.count) * size)
        own = slice(line.index * size, (line.index + 1) * size)
        # Targets are known before anything is cut, so the first token of a slice is predicted on the one before.
        predicts, targets = (np.split(array, ends)[line.index] for array in (predicts - own.start, targets))
        tokens, positions = tokens[own], positions[own]
        counts = tuple(np.diff(ends, prepend=0, append=flat.completions.sum()).tolist())
    return MicroBatch(
        tokens=_on(tokens[None], device),
        mask=None,
        positions=_on(positions[None], device),
        boundaries=_on(boundaries.astype(np.int32), device),
        longest=longest,
        predicts=_on(predicts, device),
        targets=_on(targets, device),
        rows=rows,
        lengths=_on(flat.completions, device),
        line=line,
        counts=counts,
    )


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """A tensor of the host on the device: from pinned memory, so that the host need not wait for what that is at."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def _on(array: np.ndarray, device: torch.device) -> Tensor:
    return to_device(torch.from_numpy(np.ascontiguousarray(array)), device)
