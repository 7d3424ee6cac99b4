"""Sequence parallelism: several ranks have the same packed line, each a slice of its tokens (arXiv 2309.14509).

All that a network does to a token by itself, it does on the rank that has it. For attention the ranks exchange what
they have: before it each gives away heads and gets tokens, so that it has some heads of the whole line, and after it
the other way round. No kernel of attention need know of it. Which ranks those are is in mesh.py.
"""

from collections.abc import Sequence
from math import gcd
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tinyzero_trainer.distributed.groups import SequenceParallelGroup


def to_heads(states: Tensor, line: SequenceParallelGroup) -> Tensor:
    """[tokens of the line, heads of this rank, size], some heads of all tokens, from all heads of some tokens.

    Heads of keys and values that are too few to go round are repeated, each as often as it takes; every query still
    meets the one that it would.

    Args:
        states: [heads, tokens of the slice, size]
        line: the ranks, which divide the heads of the queries.
    """
    lacking = line.count // gcd(len(states), line.count)
    if lacking > 1:
        states = states.repeat_interleave(lacking, dim=0)
    pieces = states.unflatten(0, (line.count, -1))  # [ranks that get them, heads, tokens of the slice, size]
    exchanged: Tensor = _Exchange.apply(pieces.transpose(1, 2), line)
    return exchanged.flatten(0, 1)


def to_tokens(attended: Tensor, line: SequenceParallelGroup) -> Tensor:
    """[tokens of the slice, heads, size], all heads of some tokens, from some heads of all tokens.

    Args:
        attended: [tokens of the line, heads of this rank, size], what attention gives for those from `to_heads`.
        line: the ranks.
    """
    pieces = attended.unflatten(0, (line.count, -1))  # [ranks that get them, tokens of the slice, heads, size]
    exchanged: Tensor = _Exchange.apply(pieces, line)  # [ranks they are from, …]
    return exchanged.transpose(0, 1).flatten(1, 2)


def all_gather(
    columns: Sequence[Tensor], counts: Sequence[int], line: SequenceParallelGroup | None
) -> tuple[Tensor, ...]:
    """What the ranks have found for the tokens of their slices, for all tokens of the line, on each of them.

    From here on each of the ranks computes the same loss, and of its gradient each gets what concerns its own tokens:
    added up over all ranks, every token's is there once.

    Args:
        columns: each [own tokens].
        counts: tokens of each rank.
        line: the ranks; None = this one alone.

    Returns:
        As many, each [all tokens], and no view: an operation in place on one would drop FSDP2's hook.
    """
    if line is not None:
        columns = _Together.apply(torch.stack(tuple(columns)), tuple(counts), line).unbind()
    return tuple(column if column._base is None else column.clone() for column in columns)


class _Exchange(torch.autograd.Function):
    """[ranks that get it, …] to [ranks it is from, …]; the gradient goes the same way back."""

    @staticmethod
    def forward(ctx: Any, pieces: Tensor, line: SequenceParallelGroup) -> Tensor:
        ctx.line = line
        return _exchange(pieces, line)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _exchange(gradient, ctx.line), None


def _exchange(pieces: Tensor, line: SequenceParallelGroup) -> Tensor:
    given = pieces.contiguous()
    taken = torch.empty_like(given)
    dist.all_to_all_single(taken, given, group=line.group)
    return taken


class _Together(torch.autograd.Function):
    """[columns, own tokens] to [columns, all tokens]."""

    @staticmethod
    def forward(ctx: Any, own: Tensor, counts: tuple[int, ...], line: SequenceParallelGroup) -> Tensor:
        ctx.start, ctx.length = sum(counts[: line.index]), counts[line.index]
        padded = own.new_zeros((len(own), max(counts)))
        padded[:, : own.shape[1]] = own
        found = [torch.empty_like(padded) for _ in counts]
        dist.all_gather(found, padded, group=line.group)
        return torch.cat([part[:, :count] for part, count in zip(found, counts, strict=True)], dim=1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return gradient.narrow(1, ctx.start, ctx.length).contiguous(), None, None
