"""Splits a mini-batch into micro-batches and lays these out as tensors, padded or packed."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Self

import numpy as np
import torch
from torch import Tensor

from tinyzero_sdk import Item, Score
from tinyzero_trainer.config import Layout
from tinyzero_trainer.distributed.groups import ALONE, DataParallelGroup, SequenceParallelGroup
from tinyzero_trainer.training.seqlen_balancing import balance
from tinyzero_trainer.types import Generation, Prompt, Rollout
from tinyzero_trainer.utils import jagged

PIECES = 8
"""Ranks divide the completions of a prompt that are more than one of so many pieces of a rank's share."""


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Sequences that pass through the model together: one per row with padding, or all packed in one row.

    With a sequence-parallel group, `tokens`, `positions`, `predicts` and `targets` are of this rank's slice of the row.
    """

    tokens: Tensor
    """[rows, length] prompt, completion, padding."""

    mask: Tensor | None
    """[rows, length] 1 at tokens, 0 at padding; None = no padding."""

    positions: Tensor | None
    """[rows, length] in the own sequence, by which a model tells packed sequences apart; None = not packed."""

    boundaries: Tensor | None
    """[sequences + 1] int32, where each packed sequence starts, and where the last ends; None = not packed."""

    key_indices: Tensor | None
    """[keys] places in the whole packed row that the sequences attend to, one sequence after another; None = each to
    itself. A prompt of several completions is a sequence of its own but for its last token, with which each of its
    completions begins; these attend to it, too."""

    key_boundaries: Tensor | None
    """[sequences + 1] int32, where those of each sequence start in `key_indices`; None = `boundaries`."""

    longest: int
    """Tokens of the longest sequence, with its prompt."""

    predicts: Tensor
    """[tokens] positions in the flattened rows whose next token belongs to a completion. Not a mask: to select by one,
    a GPU must first tell the host how many there are."""

    targets: Tensor
    """[tokens] the completion tokens, in the order of `predicts`."""

    indices: list[int]
    """Places of the completions in what was split."""

    lengths: Tensor
    """[sequences] completion tokens of each."""

    is_padding: bool = False
    """Whether it counts nowhere, and is here because another rank has one micro-batch more."""

    sequence_group: SequenceParallelGroup | None = None
    """The ranks that share the packed row; None = it is all here."""

    counts: tuple[int, ...] = ()
    """Tokens of `predicts` on each of those ranks."""


def completion_lengths(rollouts: Sequence[Rollout]) -> Tensor:
    return torch.tensor([len(rollout.generation.token_ids) for rollout in rollouts], dtype=torch.long)


def micro_batches(
    rollouts: Sequence[Rollout],
    *,
    token_budget: int,
    pad_id: int,
    device: torch.device,
    layout: Layout = "padded",
    share_prompts: bool = False,
    ranks: DataParallelGroup = ALONE,
) -> Iterator[MicroBatch]:
    """Sequences of similar length, or of one prompt, within the token budget; a longer sequence is alone.

    Args:
        rollouts: the mini-batch, of all ranks.
        token_budget: most tokens, padding included, per rank.
        pad_id: the padding token.
        device: of the tensors.
        layout: see `MicroBatch`.
        share_prompts: whether completions of one prompt in a packed row share it.
        ranks: yields this rank's shard. All ranks get as many micro-batches, since gathering a weight takes all.
    """
    lengths = [len(rollout.prompt.token_ids) + len(rollout.generation.token_ids) for rollout in rollouts]
    group = ranks.sequence_group
    assert layout == "packed" or group is None, "only a packed row is divided"
    budget = token_budget if group is None else token_budget * group.size
    share_prompts = share_prompts and layout == "packed"
    groups = _groups(rollouts, lengths, ranks.size) if share_prompts else [_Group([at]) for at in range(len(rollouts))]
    shards = balance([each.tokens(lengths) for each in groups], ranks.size)
    plans = [_split([groups[place] for place in shard], lengths, budget, layout) for shard in shards]
    pack = partial(_pack, group=group, share_prompts=share_prompts)
    lay_out = pack if layout == "packed" else _pad
    own = plans[ranks.rank]
    for indices in own:
        yield lay_out([rollouts[index] for index in indices], indices, pad_id, device)
    for _ in range(max(map(len, plans)) - len(own)):
        shortest = min(range(len(rollouts)), key=lengths.__getitem__)
        yield replace(lay_out([rollouts[shortest]], [shortest], pad_id, device), is_padding=True)


@dataclass(frozen=True, slots=True)
class _Group:
    """Completions that share the first `prefix` tokens of their prompt."""

    indices: list[int]
    prefix: int = 0

    def tokens(self, lengths: Sequence[int]) -> int:
        """Tokens of the group in a packed row."""
        return sum(lengths[index] for index in self.indices) - (len(self.indices) - 1) * self.prefix


def _groups(rollouts: Sequence[Rollout], lengths: Sequence[int], ranks: int) -> list[_Group]:
    """Completions by prompt; where there are several ranks, in pieces that can be divided evenly."""
    by_prompt: dict[tuple[int, ...], list[int]] = {}
    for index, rollout in enumerate(rollouts):
        by_prompt.setdefault(tuple(rollout.prompt.token_ids), []).append(index)
    groups = [_Group(indices, len(prompt) - 1) for prompt, indices in by_prompt.items()]
    if ranks == 1:
        return groups
    most = sum(group.tokens(lengths) for group in groups) / (ranks * PIECES)
    pieces = []
    for group in groups:
        size = -(-len(group.indices) // max(1, round(group.tokens(lengths) / most)))
        starts = range(0, len(group.indices), size)
        pieces += [_Group(group.indices[start : start + size], group.prefix) for start in starts]
    return pieces


def _split(groups: Sequence[_Group], lengths: Sequence[int], budget: int, layout: Layout) -> list[list[int]]:
    """Indices for each micro-batch of a rank, groups with the longest sequences first."""
    longest = [max(lengths[index] for index in group.indices) for group in groups]
    found: list[list[int]] = []
    row = keys = widest = 0  # of the present micro-batch: its tokens, those that are attended to, the longest sequence
    for _, group in sorted(zip(longest, groups, strict=True), key=lambda each: -each[0]):
        joined = 0  # of this group in the present micro-batch
        for index in sorted(group.indices, key=lambda index: -lengths[index]):
            tokens, seen = lengths[index] - group.prefix * (joined > 0), lengths[index] + group.prefix * (joined == 1)
            # Attention reads the shared tokens once for each completion.
            fits = row + tokens <= budget and keys + seen <= 2 * budget
            if layout == "padded":
                fits = found != [] and (len(found[-1]) + 1) * widest <= budget
            if not found or not fits:
                found.append([])
                row = keys = joined = 0
                tokens = seen = widest = lengths[index]
            found[-1].append(index)
            row, keys, joined = row + tokens, keys + seen, joined + 1
    return found


def fill_budget(token_budget: int, max_tokens: int, *, context: int) -> list[Rollout]:
    """Synthetic completions of maximal length that fill a micro-batch to the last token: the most memory it can need.

    The last one takes the rest. Without it real micro-batches would be slightly larger than this one, and fit into none
    of the blocks that the allocator keeps from it: a third more memory.
    """
    prompt = Prompt(Item(None), "", [0])
    length = max(1, min(max_tokens, token_budget - 1, context - 1))
    count = max(1, token_budget // (length + 1))
    rest = token_budget - count * (length + 1)
    lengths = [length] * count + [rest - 1] * (rest > 1)
    return [Rollout(prompt, Generation([0] * size, None, finished=False), "", Score(0.0, False)) for size in lengths]


def in_batch_order(
    batches: Iterable[MicroBatch],
    compute: Callable[[MicroBatch], Tensor],
    rollouts: Sequence[Rollout],
    ranks: DataParallelGroup = ALONE,
) -> Tensor:
    """[tokens, …] on the CPU: what is computed for the micro-batches of all ranks, in the completions' order.

    Args:
        batches: this rank's.
        compute: [tokens, …] floats of a micro-batch; [tokens] with several ranks.
        rollouts: the completions of all ranks.
        ranks: of the model.
    """
    lengths, results, indices = completion_lengths(rollouts), list[Tensor](), list[int]()
    for batch in batches:
        result = compute(batch)
        if not batch.is_padding:
            results.append(result)
            indices += batch.indices
    assert ranks.size > 1 or len(indices) == len(lengths)
    # Fetched together: waiting for each would leave a GPU idle while the next is laid out.
    values = torch.cat(results).float().cpu() if results else torch.empty(0)
    ordered = values.new_zeros((int(lengths.sum()), *values.shape[1:]))
    ordered.numpy()[jagged.token_indices(lengths, indices)] = values.numpy()
    return ranks.all_reduce(ordered)  # each token is zero on all ranks but one


@dataclass(frozen=True, slots=True)
class _Sequences:
    """Sequences one after another, as arrays."""

    tokens: np.ndarray  # [tokens] int64
    starts: np.ndarray  # [sequences]
    lengths: np.ndarray  # [sequences] of prompt and completion
    completions: np.ndarray  # [sequences] length of the completion
    shared: np.ndarray  # [sequences] tokens of its prompt that are a sequence before it
    shared_starts: np.ndarray  # [sequences] where these start

    @classmethod
    def of(cls, rollouts: Sequence[Rollout], *, share_prompts: bool = False) -> Self:
        """With `share_prompts` a prompt of several rollouts in a row comes once, before them, but for its last token.

        That one predicts the first token of each completion.
        """
        pieces: list[Sequence[int]] = []
        shared: list[tuple[int, int]] = []  # tokens, and in which sequence
        by_prompt = (list(group) for _, group in groupby(rollouts, lambda rollout: rollout.prompt.token_ids))
        for group in by_prompt if share_prompts else ([rollout] for rollout in rollouts):
            first = len(shared)  # the sequence of the prefix, if there is one
            prefix = group[0].prompt.token_ids[:-1] if len(group) > 1 else []
            if prefix:
                pieces += (prefix, ())
                shared.append((0, first))
            for rollout in group:
                pieces += (rollout.prompt.token_ids[len(prefix) :], rollout.generation.token_ids)
                shared.append((len(prefix), first))
        sizes = np.fromiter(map(len, pieces), np.int64, len(pieces)).reshape(-1, 2)
        lengths = sizes.sum(axis=1)
        starts = lengths.cumsum() - lengths
        tokens = np.concatenate([np.asarray(piece, np.int64) for piece in pieces])
        counts, places = np.array(shared).T
        return cls(tokens, starts, lengths, sizes[:, 1], counts, starts[places])

    def positions(self) -> np.ndarray:
        """[tokens] in prompt and completion."""
        return ranges(self.shared, self.lengths)

    def keys(self) -> tuple[np.ndarray, np.ndarray]:
        """Places of what each sequence attends to, the shared tokens first, and [sequences] how many these are."""
        starts, lengths = (
            np.stack([first, second], axis=1).ravel()
            for first, second in ((self.shared_starts, self.starts), (self.shared, self.lengths))
        )
        return ranges(starts, lengths), self.shared + self.lengths

    def predicts(self) -> np.ndarray:
        """[completion tokens] the place before each, whose next token it is."""
        return ranges(self.starts + self.lengths - self.completions - 1, self.completions)

    def targets(self) -> np.ndarray:
        """[completion tokens]"""
        return self.tokens[self.predicts() + 1]


def ranges(starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Ranges of integers one after another.

    Example:
        >>> ranges(np.array([5, 0]), np.array([3, 2])).tolist()
        [5, 6, 7, 0, 1]
    """
    return np.arange(lengths.sum()) + (starts - (lengths.cumsum() - lengths)).repeat(lengths)


def _pad(rollouts: Sequence[Rollout], indices: list[int], pad_id: int, device: torch.device) -> MicroBatch:
    sequences = _Sequences.of(rollouts)
    longest = int(sequences.lengths.max())
    present = np.arange(longest) < sequences.lengths[:, None]  # [rows, longest]
    tokens = np.full(present.shape, pad_id)
    tokens[present] = sequences.tokens
    return MicroBatch(
        tokens=array_to_device(tokens, device),
        mask=array_to_device(present.astype(np.int64), device),
        positions=None,
        boundaries=None,
        key_indices=None,
        key_boundaries=None,
        longest=longest,
        predicts=array_to_device(np.flatnonzero(present)[sequences.predicts()], device),
        targets=array_to_device(sequences.targets(), device),
        indices=indices,
        lengths=array_to_device(sequences.completions, device),
    )


def _pack(
    rollouts: Sequence[Rollout],
    indices: list[int],
    pad_id: int,
    device: torch.device,
    group: SequenceParallelGroup | None,
    share_prompts: bool,
) -> MicroBatch:
    sequences = _Sequences.of(rollouts, share_prompts=share_prompts)
    boundaries = np.append(sequences.starts, len(sequences.tokens))
    keys, key_lengths = sequences.keys()
    tokens, positions, longest = sequences.tokens, sequences.positions(), int(key_lengths.max())
    predicts, targets, counts = sequences.predicts(), sequences.targets(), ()
    # For slices of equal length, too; a sequence of its own, which no other sees.
    padding = -len(tokens) % (1 if group is None else group.size)
    if padding:
        tokens = np.append(tokens, [pad_id] * padding)
        positions = np.append(positions, np.arange(padding))
        keys = np.append(keys, np.arange(boundaries[-1], len(tokens)))
        boundaries, key_lengths = np.append(boundaries, len(tokens)), np.append(key_lengths, padding)
        longest = max(longest, padding)
    if group is not None:
        size = len(tokens) // group.size
        ends = np.searchsorted(predicts, np.arange(1, group.size) * size)
        own = slice(group.rank * size, (group.rank + 1) * size)
        # Targets are taken before the row is cut, so the first token of a slice is predicted on the rank before.
        predicts, targets = (np.split(array, ends)[group.rank] for array in (predicts - own.start, targets))
        tokens, positions = tokens[own], positions[own]
        counts = tuple(np.diff(ends, prepend=0, append=sequences.completions.sum()).tolist())
    key_boundaries = np.append(0, key_lengths.cumsum()).astype(np.int32)
    return MicroBatch(
        tokens=array_to_device(tokens[None], device),
        mask=None,
        positions=array_to_device(positions[None], device),
        boundaries=array_to_device(boundaries.astype(np.int32), device),
        key_indices=array_to_device(keys, device) if share_prompts else None,
        key_boundaries=array_to_device(key_boundaries, device) if share_prompts else None,
        longest=longest,
        predicts=array_to_device(predicts, device),
        targets=array_to_device(targets, device),
        indices=indices,
        lengths=to_device(completion_lengths(rollouts), device),
        sequence_group=group,
        counts=counts,
    )


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """A CPU tensor on the device, through pinned memory, so that the host does not wait for the device."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def array_to_device(array: np.ndarray, device: torch.device) -> Tensor:
    return to_device(torch.from_numpy(np.ascontiguousarray(array)), device)
