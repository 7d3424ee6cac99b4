"""The graph engine's kernels on a GPU: gating, norms in fp8, and sampling here, others in *_triton.py.

Imported only on a GPU: elsewhere Triton may be missing. Sampling in plain torch: ../sampling.py and ../batch_state.py.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from tinyzero_trainer.models import float8_triton
from tinyzero_trainer.models.common_triton import early, round_to_fp8, wait
from tinyzero_trainer.models.float8_format import FP8, FP8_MAX
from tinyzero_trainer.rollout.torch.batch_state import BatchState
from tinyzero_trainer.rollout.torch.cuda_graph.attention_triton import attend, split, store_contexts
from tinyzero_trainer.rollout.torch.cuda_graph.products_triton import product
from tinyzero_trainer.rollout.torch.sampling import FACTORS, JUST_BELOW, WEYL, block_size

__all__ = ["attend", "gated", "gated_fp8", "normalize_fp8", "product", "sample", "split", "store_contexts"]

TILE = 4096  # logits that one program reads

_WEYL = tl.constexpr(WEYL)
_FIRST = tl.constexpr(FACTORS[0])
_SECOND = tl.constexpr(FACTORS[1])
_GAP = tl.constexpr(1 - JUST_BELOW)
_UNIT = tl.constexpr(2.0**-53)
_LOWEST = tl.constexpr(torch.finfo(torch.float32).min)


def gated(gate_up: Tensor) -> Tensor:
    """silu(gate) · up of [rows, 2 × width]."""
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty((rows, width), dtype=gate_up.dtype, device=gate_up.device)
    _gated[(rows, triton.cdiv(width, 1024))](gate_up, out, width, BLOCK=1024, **early(out))
    return out


def gated_fp8(gate_up: Tensor) -> tuple[Tensor, Tensor]:
    """`gated` in fp8 [rows, width], and what each row is to be multiplied by: scales [rows] float32."""
    numbers, scales = float8_triton.gate(gate_up)
    return numbers, scales.flatten()


def normalize_fp8(hidden: Tensor, eps: float, added: Tensor | None = None, scales: Tensor | None = None) -> Tensor:
    """Divide each row of [rows, width] by its root mean square, and round it to fp8.

    Args:
        eps: added to the mean square.
        added: what is to be added to `hidden` before, as `product` gives it; `hidden` is overwritten.
        scales: [rows] by which `added` is multiplied.

    Returns:
        [rows, width], multiplied by FP8_MAX / √width: no number of a row is larger than √width times its root mean
        square, so none is cut off.
    """
    rows, width = hidden.shape
    out = torch.empty((rows, width), dtype=FP8, device=hidden.device)
    block, parts = triton.next_power_of_2(width), 0 if added is None else added.numel() // hidden.numel()
    _normalize_fp8[(rows,)](
        hidden, added, scales, out, rows, width, eps, FP8_MAX / math.sqrt(width),
        PARTS=parts, BLOCK=block, num_warps=min(32, max(4, block // 1024)), **early(out),  # up to 32 numbers a thread
    )  # fmt: skip
    return out


def sample(logits: Tensor, state: BatchState, rows: int, *, ends: bool) -> None:
    """`BatchState.sample` at temperatures above 0, without top-p and top-k; `ends`: whether end tokens end."""
    vocabulary = logits.shape[1]
    size = block_size(vocabulary)
    blocks = triton.cdiv(vocabulary, size)
    tile = min(triton.next_power_of_2(blocks), max(1, TILE // size))
    highest = torch.empty((rows, blocks), dtype=torch.float32, device=logits.device)
    sums = torch.empty((rows, blocks), dtype=torch.float32, device=logits.device)
    _measure[(rows, triton.cdiv(blocks, tile))](
        logits, highest, sums, state.knobs, vocabulary, blocks,
        SIZE=size, BLOCKS=tile, num_warps=2, **early(logits),  # with few warps, more programs read side by side
    )  # fmt: skip
    _sample[(rows,)](
        logits, highest, sums, state.knobs, state.slot_ids, state.streams, state.counts, state.positions,
        state.last_token, state.tokens, state.logprobs, state.lengths, state.finished, state.eos_ids,
        vocabulary, blocks, state.tokens.shape[1],
        SIZE=size, BLOCKS=triton.next_power_of_2(blocks), ENDS=len(state.eos_ids) if ends else 0, **early(logits),
    )  # fmt: skip


@triton.jit
def _gated(gate_up, out, width, BLOCK: tl.constexpr, EARLY: tl.constexpr):  # type: ignore[no-untyped-def]
    wait(EARLY)
    row = tl.program_id(0).to(tl.int64)
    offsets = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = offsets < width
    gate = tl.load(gate_up + row * 2 * width + offsets, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up + row * 2 * width + width + offsets, mask=inside, other=0.0).to(tl.float32)
    dtype = out.dtype.element_ty
    silu = (gate / (1.0 + tl.exp(-gate))).to(dtype).to(tl.float32)
    tl.store(out + row * width + offsets, (silu * up).to(dtype), mask=inside)


@triton.jit(do_not_specialize=["rows"])
def _normalize_fp8(  # type: ignore[no-untyped-def]
    hidden, added, scales, out, rows, width, eps, factor, PARTS: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr
):
    wait(EARLY)
    row = tl.program_id(0).to(tl.int64)
    offsets = tl.arange(0, BLOCK)
    inside = offsets < width
    states = tl.load(hidden + row * width + offsets, mask=inside, other=0.0)
    if PARTS > 0:
        more = tl.zeros((BLOCK,), tl.float32)
        for part in tl.static_range(PARTS):
            more += tl.load(added + (part * rows + row) * width + offsets, mask=inside, other=0.0).to(tl.float32)
        if scales is not None:
            more *= tl.load(scales + row)
        states = (states.to(tl.float32) + more).to(hidden.dtype.element_ty)
        tl.store(hidden + row * width + offsets, states, mask=inside)
    states = states.to(tl.float32)
    shrink = factor * tl.rsqrt(tl.sum(states * states, axis=0) / width + eps)
    tl.store(out + row * width + offsets, round_to_fp8(states * shrink, 1.0), mask=inside)


@triton.jit
def _measure(  # type: ignore[no-untyped-def]
    logits, highest, sums, knobs, vocabulary, blocks, SIZE: tl.constexpr, BLOCKS: tl.constexpr, EARLY: tl.constexpr
):
    """For each block of the vocabulary the maximum, and the sum of exp(z - maximum)."""
    wait(EARLY)
    row = tl.program_id(0).to(tl.int64)
    b = tl.program_id(1) * BLOCKS + tl.arange(0, BLOCKS)
    offsets = b[:, None] * SIZE + tl.arange(0, SIZE)[None, :]
    z = tl.load(logits + row * vocabulary + offsets, mask=offsets < vocabulary, other=-float("inf"))
    z = _divided(z.to(tl.float32), tl.load(knobs))
    most = tl.maximum(tl.max(z, axis=1), _LOWEST)
    sum_of = tl.sum(tl.exp(z - most[:, None]), axis=1)  # of so few, float32 is as good
    tl.store(highest + row * blocks + b, most, mask=b < blocks)
    tl.store(sums + row * blocks + b, sum_of, mask=b < blocks)


@triton.jit
def _sample(  # type: ignore[no-untyped-def]
    logits, highest, sums, knobs, slot_ids, streams, counts, positions, last_token, tokens, logprobs, lengths, finished,
    eos_ids, vocabulary, blocks, wide,
    SIZE: tl.constexpr, BLOCKS: tl.constexpr, ENDS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Choose a block and a token in it, and record the token; nearly the sums of `sampling._invert`."""
    wait(EARLY)
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slot_ids + row)
    count = tl.load(counts + slot)
    uniform = _shift(_mix(tl.load(streams + slot) + (count + 1) * _WEYL), 11).to(tl.float64) * _UNIT
    b = tl.arange(0, BLOCKS)
    most = tl.load(highest + row * blocks + b, mask=b < blocks, other=_LOWEST)
    top = tl.max(most, axis=0)
    scale = tl.exp(most - top).to(tl.float64)
    mass = tl.load(sums + row * blocks + b, mask=b < blocks, other=0.0).to(tl.float64) * scale
    cumulative = tl.cumsum(mass, axis=0)
    total = tl.max(cumulative, axis=0)
    threshold = tl.minimum(uniform * total, total - total * _GAP)
    block = tl.sum((cumulative <= threshold).to(tl.int32), axis=0)
    before = tl.max(tl.where(b < block, cumulative, 0.0), axis=0)
    scale_here = tl.sum(tl.where(b == block, scale, 0.0), axis=0)
    most_here = tl.max(tl.where(b == block, most, _LOWEST), axis=0)
    i = tl.arange(0, SIZE)
    offsets = block * SIZE + i
    z = tl.load(logits + row * vocabulary + offsets, mask=offsets < vocabulary, other=-float("inf"))
    z = _divided(z.to(tl.float32), tl.load(knobs))
    inside = tl.cumsum(tl.exp(z - most_here).to(tl.float64) * scale_here, axis=0)
    here = tl.max(inside, axis=0)
    rest = tl.minimum(threshold - before, here - here * _GAP)
    index = tl.sum((inside <= rest).to(tl.int32), axis=0)
    token = (block * SIZE + index).to(tl.int64)
    logprob = tl.sum(tl.where(i == index, z, 0.0), axis=0) - (top.to(tl.float64) + tl.log(total)).to(tl.float32)
    going = count < tl.load(lengths + slot)  # a sequence that has ended stays as it is
    ended = token < 0
    for end in tl.static_range(ENDS):
        ended = ended | (token == tl.load(eos_ids + end))
    tl.store(lengths + slot, count + 1, mask=going & ended)
    tl.store(finished + slot, 1, mask=going & ended)
    tl.store(tokens + count * wide + slot, token, mask=going)
    tl.store(logprobs + count * wide + slot, logprob, mask=going)
    tl.store(last_token + slot, token, mask=going)
    tl.store(counts + slot, count + 1, mask=going)
    tl.store(positions + slot, tl.load(positions + slot) + 1, mask=going)


@triton.jit
def _divided(z, temperature):  # type: ignore[no-untyped-def]
    """A division takes about as long as all else that is done with a logit."""
    if temperature != 1.0:
        z = z / temperature
    return z


@triton.jit
def _mix(state):  # type: ignore[no-untyped-def]
    state = (state ^ _shift(state, 30)) * _FIRST
    state = (state ^ _shift(state, 27)) * _SECOND
    return state ^ _shift(state, 31)


@triton.jit
def _shift(state, places: tl.constexpr):  # type: ignore[no-untyped-def]
    return (state >> places) & ((1 << (64 - places)) - 1)
