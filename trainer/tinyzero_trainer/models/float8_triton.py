"""The gate of an MLP between two products in float8, on a GPU: reads a row once, and rounds what the products take.

What PyTorch compiles by itself reads each row twice, since its scale depends on its largest element. Imported on a GPU
only: elsewhere there may be no Triton.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from tinyzero_trainer.models.common_triton import LARGEST_FP8, LEAST_SCALE, early, wait
from tinyzero_trainer.models.float8_format import FP8

MANY_ROWS = 4096
"""Rows of an update; a decoding step has fewer, which keep a GPU busy only with more warps for each."""


def gate(gate_up: Tensor) -> tuple[Tensor, Tensor]:
    """A fused kernel for `float8.gate`."""
    rows, width = len(gate_up), gate_up.shape[1] // 2
    numbers = torch.empty(rows, width, dtype=FP8, device=gate_up.device)
    scales = torch.empty(rows, 1, dtype=torch.float32, device=gate_up.device)
    block, rest = _blocks(width)
    warps = min(32, max(4, block // (1024 if rows > MANY_ROWS else 512)))
    options = {"num_warps": warps, **early(numbers)}
    _gate[(rows,)](gate_up, numbers, scales, width, BLOCK=block, REST=rest, **options)
    return numbers, scales


def gate_backward(gradient: Tensor, gate_up: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A fused kernel for `float8.gate_backward`."""
    rows, width = gradient.shape
    gated, grad_gate_up = torch.empty_like(gradient), torch.empty_like(gate_up)
    numbers = torch.empty_like(gate_up, dtype=FP8)
    scales = torch.empty(rows, 1, dtype=torch.float32, device=gate_up.device)
    block, rest = _blocks(width)
    # As few registers as let four programs of 8 warps be on a multiprocessor: some load while others store.
    options = {"num_warps": min(32, max(4, block // 512)), "maxnreg": 64, **early(numbers)}
    arguments = (gradient, gate_up, gated, grad_gate_up, numbers, scales, width)
    _gate_backward[(rows,)](*arguments, BLOCK=block, REST=rest, **options)
    return gated, grad_gate_up, numbers, scales


def _blocks(width: int) -> tuple[int, int]:
    """The largest power of two that a row holds, and one that holds the rest of it."""
    block = int(triton.next_power_of_2(width + 1)) // 2
    return block, int(triton.next_power_of_2(width - block)) if width > block else 0


@triton.jit
def _gate(  # type: ignore[no-untyped-def]
    gate_up, numbers, scales, width, BLOCK: tl.constexpr, REST: tl.constexpr, EARLY: tl.constexpr
):
    wait(EARLY)
    row = tl.program_id(0).to(tl.int64)
    line, result, places = gate_up + row * 2 * width, numbers + row * width, tl.arange(0, BLOCK)
    gated, largest = _gated(line, width, places, None)
    if REST:
        others = BLOCK + tl.arange(0, REST)
        rest, largest_of_rest = _gated(line, width, others, others < width)
        largest = tl.maximum(largest, largest_of_rest)
    scale = tl.maximum(largest / LARGEST_FP8, LEAST_SCALE)
    tl.store(scales + row, scale)
    tl.store(result + places, (gated * (1.0 / scale)).to(tl.float8e4nv))
    if REST:
        tl.store(result + others, (rest * (1.0 / scale)).to(tl.float8e4nv), mask=others < width)


@triton.jit
def _gated(line, width, places, inside):  # type: ignore[no-untyped-def]
    """SiLU of gate times up in some places of a row, and the largest of them."""
    gate, up = _two(line, width, places, inside)
    gated = gate * tl.sigmoid(gate) * up
    return gated, tl.max(tl.abs(gated), axis=0)


@triton.jit
def _gate_backward(  # type: ignore[no-untyped-def]
    gradient, gate_up, gated, grad_gate_up, numbers, scales, width,
    BLOCK: tl.constexpr, REST: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    wait(EARLY)
    row = tl.program_id(0).to(tl.int64)
    line, upstream, result = gate_up + row * 2 * width, gradient + row * width, gated + row * width
    places = tl.arange(0, BLOCK)
    grad_gate, grad_up, largest = _gradients(line, upstream, result, width, places, None)
    if REST:
        others = BLOCK + tl.arange(0, REST)
        inside = others < width
        rest_of_gate, rest_of_up, largest_of_rest = _gradients(line, upstream, result, width, others, inside)
        largest = tl.maximum(largest, largest_of_rest)
    scale = tl.maximum(largest / LARGEST_FP8, LEAST_SCALE)
    tl.store(scales + row, scale)
    exact, rounded = grad_gate_up + row * 2 * width, numbers + row * 2 * width
    _store(exact, rounded, grad_gate, grad_up, 1.0 / scale, width, places, None)
    if REST:
        _store(exact, rounded, rest_of_gate, rest_of_up, 1.0 / scale, width, others, inside)


@triton.jit
def _gradients(line, upstream, result, width, places, inside):  # type: ignore[no-untyped-def]
    """Gradients of gate and up in some places of a row, and the largest of them; stores what `_gated` gives."""
    upstream = _load(upstream + places, inside)
    gate, up = _two(line, width, places, inside)
    chance = tl.sigmoid(gate)
    silu = gate * chance
    tl.store(result + places, (silu * up).to(result.dtype.element_ty), mask=inside)
    grad_gate, grad_up = upstream * up * (chance + silu * (1.0 - chance)), upstream * silu
    return grad_gate, grad_up, tl.max(tl.maximum(tl.abs(grad_gate), tl.abs(grad_up)), axis=0)


@triton.jit
def _two(line, width, places, inside):  # type: ignore[no-untyped-def]
    return _load(line + places, inside), _load(line + width + places, inside)


@triton.jit
def _load(place, inside):  # type: ignore[no-untyped-def]
    return tl.load(place, mask=inside, other=None if inside is None else 0.0).to(tl.float32)


@triton.jit
def _store(exact, rounded, grad_gate, grad_up, factor, width, places, inside):  # type: ignore[no-untyped-def]
    tl.store(exact + places, grad_gate.to(exact.dtype.element_ty), mask=inside)
    tl.store(exact + width + places, grad_up.to(exact.dtype.element_ty), mask=inside)
    tl.store(rounded + places, (grad_gate * factor).to(tl.float8e4nv), mask=inside)
    tl.store(rounded + width + places, (grad_up * factor).to(tl.float8e4nv), mask=inside)
