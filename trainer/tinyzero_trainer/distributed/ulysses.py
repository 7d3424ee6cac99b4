"""DeepSpeed-Ulysses sequence parallelism: each rank holds a slice of the tokens of a packed row (arXiv 2309.14509).

What a network does per token, it does on the rank that holds the token. For attention the ranks exchange all heads of
some tokens for some heads of all tokens, and back afterwards, so no attention kernel needs to know.
"""

from collections.abc import Sequence
from math import gcd
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tinyzero_trainer.distributed.groups import SequenceParallelGroup


def to_heads(states: Tensor, group: SequenceParallelGroup) -> Tensor:
    """[tokens of the row, heads of this rank, size] from [heads, tokens of the slice, size].

    Heads of keys and values that are fewer than the ranks are repeated, so that every query still meets its own.
    """
    repeats = group.size // gcd(len(states), group.size)
    if repeats > 1:
        states = states.repeat_interleave(repeats, dim=0)
    chunks = states.unflatten(0, (group.size, -1))  # [receiving ranks, heads, tokens of the slice, size]
    exchanged: Tensor = _AllToAll.apply(chunks.transpose(1, 2), group)
    return exchanged.flatten(0, 1)


def to_tokens(attended: Tensor, group: SequenceParallelGroup) -> Tensor:
    """[tokens of the slice, heads, size] from [tokens of the row, heads of this rank, size]; inverse of `to_heads`."""
    chunks = attended.unflatten(0, (group.size, -1))  # [receiving ranks, tokens of the slice, heads, size]
    exchanged: Tensor = _AllToAll.apply(chunks, group)  # [sending ranks, …]
    return exchanged.transpose(0, 1).flatten(1, 2)


def all_gather(
    columns: Sequence[Tensor], counts: Sequence[int], group: SequenceParallelGroup | None
) -> tuple[Tensor, ...]:
    """Values per token of the whole row, [all tokens], on each rank, from those of its slice, [own tokens].

    Every rank then computes the same loss, and its gradient for its own tokens. `counts` are the tokens of each rank;
    without a group, this one has the whole row. None of the results is a view, whose change would drop FSDP2's hook.
    """
    if group is not None:
        columns = _AllGather.apply(torch.stack(tuple(columns)), tuple(counts), group).unbind()
    return tuple(column if column._base is None else column.clone() for column in columns)


class _AllToAll(torch.autograd.Function):
    """[receiving ranks, …] to [sending ranks, …]; the gradient takes the same way back."""

    @staticmethod
    def forward(ctx: Any, chunks: Tensor, group: SequenceParallelGroup) -> Tensor:
        ctx.group = group
        return _all_to_all(chunks, group)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _all_to_all(gradient, ctx.group), None


def _all_to_all(chunks: Tensor, group: SequenceParallelGroup) -> Tensor:
    sent = chunks.contiguous()
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent, group=group.process_group)
    return received


class _AllGather(torch.autograd.Function):
    """[columns, own tokens] to [columns, all tokens]."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, counts: tuple[int, ...], group: SequenceParallelGroup) -> Tensor:
        ctx.start, ctx.length = sum(counts[: group.rank]), counts[group.rank]
        padded = own.new_zeros((len(own), max(counts)))
        padded[:, : own.shape[1]] = own
        received = [torch.empty_like(padded) for _ in counts]
        dist.all_gather(received, padded, group=group.process_group)
        return torch.cat([part[:, :count] for part, count in zip(received, counts, strict=True)], dim=1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return gradient.narrow(1, ctx.start, ctx.length).contiguous(), None, None
