"""Splits a mini-batch into micro-batches and lays these out as tensors, padded or packed."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby

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

    predicts: Tensor
    """[tokens] positions in the flattened rows whose next token belongs to a completion. Not a mask: to select by one,
    a GPU must first tell the host how many there are."""

    targets: Tensor
    """[tokens] the completion tokens, in the order of `predicts`."""

    indices: list[int]
    """Places of the completions in what was split."""

    lengths: Tensor
    """[sequences] completion tokens of each."""

    longest: int
    """Tokens of the longest sequence, with its prompt."""

    mask: Tensor | None = None
    """[rows, length] 1 at tokens, 0 at padding; None = packed."""

    positions: Tensor | None = None
    """[rows, length] in the own sequence, by which a model tells packed sequences apart; None = padded."""

    boundaries: Tensor | None = None
    """[sequences + 1] int32, where each packed sequence starts, and where the last ends; None = padded."""

    key_indices: Tensor | None = None
    """[keys] places in the whole packed row that the sequences attend to, one sequence after another; None = each to
    itself. A prompt of several completions is a sequence of its own but for its last token, with which each of its
    completions begins; these attend to it, too."""

    key_boundaries: Tensor | None = None
    """[sequences + 1] int32, where those of each sequence start in `key_indices`; None = `boundaries`."""

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
        share_prompts: whether completions of one prompt in a packed row share it.
        ranks: yields this rank's shard. All ranks get as many micro-batches, since gathering a weight takes all.
    """
    lengths = [len(rollout.prompt.token_ids) + len(rollout.generation.token_ids) for rollout in rollouts]
    group = ranks.sequence_group
    assert layout == "packed" or group is None, "only a packed row is divided"
    budget = token_budget if group is None else token_budget * group.size
    share_prompts = share_prompts and layout == "packed"
    groups = _groups(rollouts, ranks.size) if share_prompts else [_Group([index]) for index in range(len(rollouts))]
    shards = balance([piece.tokens(lengths) for piece in groups], ranks.size)
    plans = [_split([groups[place] for place in shard], lengths, budget, layout) for shard in shards]
    pack = partial(_pack, group=group, share_prompts=share_prompts)
    lay_out = pack if layout == "packed" else _pad
    plan = plans[ranks.rank]
    for indices in plan:
        yield lay_out(rollouts, indices, pad_id, device)
    for _ in range(max(map(len, plans)) - len(plan)):
        shortest = min(range(len(rollouts)), key=lengths.__getitem__)
        yield replace(lay_out(rollouts, [shortest], pad_id, device), is_padding=True)


@dataclass(frozen=True, slots=True)
class _Group:
    """Completions that share the first `prefix` tokens of their prompt."""

    indices: list[int]
    prefix: int = 0

    def tokens(self, lengths: Sequence[int]) -> int:
        """Tokens of the group in a packed row."""
        return sum(lengths[index] for index in self.indices) - (len(self.indices) - 1) * self.prefix


def _groups(rollouts: Sequence[Rollout], ranks: int) -> list[_Group]:
    """Completions by prompt; where there are several ranks, in pieces that can be divided evenly."""
    by_prompt: dict[tuple[int, ...], list[int]] = {}
    for index, rollout in enumerate(rollouts):
        by_prompt.setdefault(tuple(rollout.prompt.token_ids), []).append(index)
    most = len(rollouts) if ranks == 1 else max(1, len(rollouts) // (ranks * PIECES))
    return [
        _Group(indices[start : start + most], len(prompt) - 1)
        for prompt, indices in by_prompt.items()
        for start in range(0, len(indices), most)
    ]


def _split(groups: Sequence[_Group], lengths: Sequence[int], budget: int, layout: Layout) -> list[list[int]]:
    """Indices for each micro-batch of a rank, groups with the longest sequences first."""
    batches: list[list[int]] = []
    row = keys = widest = 0  # of the last micro-batch: its tokens, those that are attended to, its longest sequence
    for group in sorted(groups, key=lambda group: -max(lengths[index] for index in group.indices)):
        joined = 0  # completions of this group in the last micro-batch
        for index in sorted(group.indices, key=lambda index: -lengths[index]):
            tokens, seen = lengths[index] - group.prefix * (joined > 0), lengths[index] + group.prefix * (joined == 1)
            # Attention reads the shared tokens once for each completion.
            fits = row + tokens <= budget and keys + seen <= 2 * budget
            if layout == "padded":
                fits = batches != [] and (len(batches[-1]) + 1) * widest <= budget
            if not batches or not fits:
                batches.append([])
                row = keys = joined = 0
                tokens = seen = widest = lengths[index]
            batches[-1].append(index)
            row, keys, joined = row + tokens, keys + seen, joined + 1
    return batches


def fill_budget(token_budget: int, max_tokens: int, *, context: int) -> list[Rollout]:
    """Synthetic completions of maximal length that fill a micro-batch to the last token: the most memory it can need.

    Real micro-batches that are slightly larger would fit into none of the blocks that the allocator keeps from it.
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
    """[tokens, …] on the CPU, in the order of `rollouts`: what is computed for the micro-batches of all ranks.

    `batches` are this rank's; with several ranks `compute` gives [tokens].
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


def _pad(rollouts: Sequence[Rollout], indices: list[int], pad_id: int, device: torch.device) -> MicroBatch:
    prompts = [np.asarray(rollouts[index].prompt.token_ids, np.int64) for index in indices]
    completions = [np.asarray(rollouts[index].generation.token_ids, np.int64) for index in indices]
    lengths = [len(prompt) + len(completion) for prompt, completion in zip(prompts, completions, strict=True)]
    tokens = np.full((len(indices), max(lengths)), pad_id)
    predicts = []
    for row, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
        tokens[row, : lengths[row]] = np.concatenate([prompt, completion])
        first = row * tokens.shape[1] + len(prompt) - 1  # the prompt's last token predicts the completion's first
        predicts.append(np.arange(first, first + len(completion)))
    mask = np.arange(tokens.shape[1]) < np.array(lengths)[:, None]
    return MicroBatch(
        tokens=array_to_device(tokens, device),
        predicts=array_to_device(np.concatenate(predicts), device),
        targets=array_to_device(np.concatenate(completions), device),
        indices=indices,
        lengths=array_to_device(np.array([len(completion) for completion in completions]), device),
        longest=max(lengths),
        mask=array_to_device(mask.astype(np.int64), device),
    )


class _Row:
    """A packed row while sequences are added to it."""

    def __init__(self) -> None:
        self.tokens: list[np.ndarray] = []
        self.positions: list[np.ndarray] = []
        self.boundaries = [0]
        self.keys: list[np.ndarray] = []
        self.key_boundaries = [0]

    def add(self, token_ids: Sequence[int], after: range = range(0)) -> None:
        """Add a sequence that goes on from, and attends to, tokens at other places of the row."""
        start, end = self.boundaries[-1], self.boundaries[-1] + len(token_ids)
        self.tokens.append(np.asarray(token_ids, np.int64))
        self.positions.append(np.arange(len(after), len(after) + len(token_ids)))
        self.boundaries.append(end)
        self.keys += (np.arange(after.start, after.stop), np.arange(start, end))
        self.key_boundaries.append(self.key_boundaries[-1] + len(after) + len(token_ids))


def _pack(
    rollouts: Sequence[Rollout],
    indices: list[int],
    pad_id: int,
    device: torch.device,
    group: SequenceParallelGroup | None,
    share_prompts: bool,
) -> MicroBatch:
    row, predicts = _Row(), list[np.ndarray]()
    chosen = [rollouts[index] for index in indices]
    by_prompt = (list(same) for _, same in groupby(chosen, lambda rollout: rollout.prompt.token_ids))
    for same in by_prompt if share_prompts else ([rollout] for rollout in chosen):
        prompt = list(same[0].prompt.token_ids)
        prefix = prompt[:-1] if len(same) > 1 else []  # the last token predicts the first of each completion
        shared = range(row.boundaries[-1], row.boundaries[-1] + len(prefix))
        if prefix:
            row.add(prefix)
        for rollout in same:
            row.add([*prompt[len(prefix) :], *rollout.generation.token_ids], after=shared)
            end = row.boundaries[-1] - 1
            predicts.append(np.arange(end - len(rollout.generation.token_ids), end))
    lengths = completion_lengths(chosen)
    padding = -row.boundaries[-1] % (1 if group is None else group.size)
    if padding:  # for slices of equal length: a sequence of its own, which no other sees
        row.add([pad_id] * padding)
    tokens, positions, places = map(np.concatenate, (row.tokens, row.positions, predicts))
    targets, counts = tokens[places + 1], ()
    if group is not None:
        size = len(tokens) // group.size
        ends = np.searchsorted(places, np.arange(1, group.size) * size)
        own = slice(group.rank * size, (group.rank + 1) * size)
        # Targets are taken before the row is cut, so the first token of a slice is predicted on the rank before.
        places, targets = (np.split(array, ends)[group.rank] for array in (places - own.start, targets))
        tokens, positions = tokens[own], positions[own]
        counts = tuple(np.diff(ends, prepend=0, append=int(lengths.sum())).tolist())
    return MicroBatch(
        tokens=array_to_device(tokens[None], device),
        predicts=array_to_device(places, device),
        targets=array_to_device(targets, device),
        indices=indices,
        lengths=to_device(lengths, device),
        longest=int(np.diff(row.key_boundaries).max()),
        positions=array_to_device(positions[None], device),
        boundaries=array_to_device(np.array(row.boundaries, np.int32), device),
        key_indices=array_to_device(np.concatenate(row.keys), device) if share_prompts else None,
        key_boundaries=array_to_device(np.array(row.key_boundaries, np.int32), device) if share_prompts else None,
        sequence_group=group,
        counts=counts,
    )


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """A CPU tensor on the device, through pinned memory, so that the host does not wait for the device."""
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def array_to_device(array: np.ndarray, device: torch.device) -> Tensor:
    return to_device(torch.from_numpy(np.ascontiguousarray(array)), device)
