"""Matrix products of a decoding step with few rows, in Triton.

cuBLAS has tiles for more rows, which keep few multiprocessors busy. The same in plain torch: `reference_ops.product`.
"""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from tinyzero_trainer.models.common_triton import early, wait

MOST_ROWS = 256

MOST_COLUMNS = 8192
"""With more, cuBLAS keeps a GPU busy."""

ENOUGH_PROGRAMS = 128
"""About one for each multiprocessor: there are no more parts than that takes."""

PART_BYTES = 1024
"""About what a program reads at least of each row of the weight, where a result may be in parts."""

ROWS = COLUMNS = 64
"""Of the result, in a program: as many as Hopper's tensor cores take at a time."""


def suits(states: Tensor, weight: Tensor) -> bool:
    """Whether `product` is faster than cuBLAS."""
    return len(states) <= MOST_ROWS and len(weight) <= MOST_COLUMNS


def product(
    states: Tensor, weight: Tensor, scale: Tensor | None, bias: Tensor | None, dtype: torch.dtype, *, in_parts: bool
) -> Tensor:
    """See `reference_ops.product`."""
    (rows, depth), width, item = states.shape, len(weight), weight.itemsize
    tiles = triton.cdiv(width, COLUMNS), triton.cdiv(rows, ROWS)
    parts = max(1, min(round(depth * item / PART_BYTES), ENOUGH_PROGRAMS // math.prod(tiles))) if in_parts else 1
    block = 128 // item
    part = triton.cdiv(triton.cdiv(depth, block), parts) * block
    parts = triton.cdiv(depth, part)
    shape = (parts, rows, width) if parts > 1 else (rows, width)
    out = torch.empty(shape, dtype=torch.float32 if parts > 1 else dtype, device=states.device)
    _product[(*tiles, parts)](
        states, weight, scale, bias, out, rows, width, depth, part,
        ROWS=ROWS, COLUMNS=COLUMNS, BLOCK=block, num_warps=4, num_stages=5, **early(out),
    )  # fmt: skip
    return out


@triton.jit(do_not_specialize=["rows"])
def _product(  # type: ignore[no-untyped-def]
    states, weight, scale, bias, out, rows, width, depth, part,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Columns are the rows of the tensor cores' product, which takes 64 of them, but any multiple of 8 of ours."""
    wait(EARLY)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    start = tl.program_id(2) * part
    known_columns, known_rows = column < width, row < rows
    total = tl.zeros((COLUMNS, ROWS), tl.float32)
    for first in range(start, tl.minimum(start + part, depth), BLOCK):
        k = first + tl.arange(0, BLOCK)
        inside = (k < depth)[None, :]
        left = tl.load(weight + column[:, None] * depth + k[None, :], mask=known_columns[:, None] & inside, other=0.0)
        right = tl.load(states + row[:, None] * depth + k[None, :], mask=known_rows[:, None] & inside, other=0.0)
        total = tl.dot(left, tl.trans(right), total)
    if scale is not None:
        total *= tl.load(scale)
    if bias is not None:  # in the first part alone
        known = known_columns & (start == 0)
        total += tl.load(bias + column, mask=known, other=0.0).to(tl.float32)[:, None]
    place = out + (tl.program_id(2) * rows + row)[None, :] * width + column[:, None]
    tl.store(place, total.to(out.dtype.element_ty), mask=known_rows[None, :] & known_columns[:, None])
