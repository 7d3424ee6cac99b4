"""The gate of an MLP between two products in float8, on a GPU: reads a row once, and rounds what the products take.

What PyTorch compiles by itself reads each row twice, since its scale depends on its largest element. Imported on a GPU
only: elsewhere there may be no Triton.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

FP8 = torch.float8_e4m3fn
LARGEST = tl.constexpr(torch.finfo(FP8).max)


def gate(gate_up: Tensor, smallest: float) -> tuple[Tensor, Tensor]:
    """See `float8.gate`."""
    rows, width = len(gate_up), gate_up.shape[1] // 2
    numbers = torch.empty(rows, width, dtype=FP8, device=gate_up.device)
    scales = torch.empty(rows, 1, dtype=torch.float32, device=gate_up.device)
    _gate[(rows,)](gate_up, numbers, scales, width, smallest, BLOCK=_block(width), num_warps=_warps(width))
    return numbers, scales


def gate_backward(gradient: Tensor, gate_up: Tensor, smallest: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """See `float8.gate_backward`."""
    rows, width = gradient.shape
    gated, of_gate_up = torch.empty_like(gradient), torch.empty_like(gate_up)
    numbers = torch.empty_like(gate_up, dtype=FP8)
    scales = torch.empty(rows, 1, dtype=torch.float32, device=gate_up.device)
    given = (gradient, gate_up, gated, of_gate_up, numbers, scales, width, smallest)
    # As few registers as let two programs of 16 warps be on a multiprocessor: one loads while the other stores.
    _gate_backward[(rows,)](*given, BLOCK=_block(width), num_warps=_warps(width), maxnreg=64)
    return gated, of_gate_up, numbers, scales


def _block(width: int) -> int:
    return int(triton.next_power_of_2(width))


def _warps(width: int) -> int:
    return min(32, max(4, _block(width) // 512))  # 16 numbers a thread, or some of them leave the registers


@triton.jit
def _gate(gate_up, numbers, scales, width, smallest, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    places = tl.arange(0, BLOCK)
    inside = places < width
    line = gate_up + row * 2 * width + places
    gate = tl.load(line, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(line + width, mask=inside, other=0.0).to(tl.float32)
    gated = gate * tl.sigmoid(gate) * up
    scale = tl.maximum(tl.max(tl.abs(gated), axis=0) / LARGEST, smallest)
    tl.store(numbers + row * width + places, (gated * (1.0 / scale)).to(tl.float8e4nv), mask=inside)
    tl.store(scales + row, scale)


@triton.jit
def _gate_backward(gradient, gate_up, gated, of_gate_up, numbers, scales, width, smallest, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    places = tl.arange(0, BLOCK)
    inside = places < width
    line = gate_up + row * 2 * width + places
    upstream = tl.load(gradient + row * width + places, mask=inside, other=0.0).to(tl.float32)
    gate = tl.load(line, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(line + width, mask=inside, other=0.0).to(tl.float32)
    chance = tl.sigmoid(gate)
    silu = gate * chance
    tl.store(gated + row * width + places, (silu * up).to(gated.dtype.element_ty), mask=inside)
    of_up = upstream * silu
    of_gate = upstream * up * (chance + silu * (1.0 - chance))
    scale = tl.maximum(tl.max(tl.maximum(tl.abs(of_gate), tl.abs(of_up)), axis=0) / LARGEST, smallest)
    out = of_gate_up + row * 2 * width + places
    tl.store(out, of_gate.to(of_gate_up.dtype.element_ty), mask=inside)
    tl.store(out + width, of_up.to(of_gate_up.dtype.element_ty), mask=inside)
    factor = 1.0 / scale
    rounded = numbers + row * 2 * width + places
    tl.store(rounded, (of_gate * factor).to(tl.float8e4nv), mask=inside)
    tl.store(rounded + width, (of_up * factor).to(tl.float8e4nv), mask=inside)
    tl.store(scales + row, scale)
