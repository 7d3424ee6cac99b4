"""Matrix products of few rows, in Triton: cuBLAS has tiles for more rows, which keep few multiprocessors busy."""

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from tinyzero_trainer.models.common_triton import early, wait
from tinyzero_trainer.rollout.torch.cuda_graph.fp8_products import plain_product

MOST_ROWS = 256  # with more, cuBLAS is faster
MOST_BYTES = 16e6  # of the weight, times how often it is read, once for each tile of rows: with more, cuBLAS is faster
ENOUGH_PROGRAMS = 128  # about one for each multiprocessor: there are no more parts than that takes
PART_BYTES = 1024  # about what a program reads at least of each row of the weight, where a result may be in parts
COLUMNS = 64  # of the result in a program: as many as Hopper's tensor cores take at a time
BLOCK_BYTES = 128  # of each row of states and weight in one product of the tensor cores


def suits(states: Tensor, weight: Tensor) -> bool:
    """Whether the kernel is for these sizes, and faster than cuBLAS."""
    (rows, depth), width = states.shape, len(weight)
    whole = width % COLUMNS == 0 and depth * weight.itemsize % BLOCK_BYTES == 0
    return whole and rows <= MOST_ROWS and weight.nbytes * triton.cdiv(rows, _rows_of_tile(rows)) <= MOST_BYTES


def product(
    states: Tensor, weight: Tensor, scale: Tensor | None, bias: Tensor | None, dtype: torch.dtype, *, in_parts: bool
) -> Tensor:
    """`plain_product`; with `in_parts`, perhaps in parts to be added up, float32 [parts, rows, out]."""
    if not suits(states, weight):
        return plain_product(states, weight, scale, bias, dtype)
    (rows, depth), width, item = states.shape, len(weight), weight.itemsize
    block, tile = BLOCK_BYTES // item, _rows_of_tile(rows)
    tiles = width // COLUMNS, triton.cdiv(rows, tile)
    parts = max(1, min(round(depth * item / PART_BYTES), ENOUGH_PROGRAMS // math.prod(tiles))) if in_parts else 1
    part = triton.cdiv(depth // block, parts) * block
    parts = triton.cdiv(depth, part)  # perhaps fewer, of whole blocks
    shape, dtype = ((parts, rows, width), torch.float32) if parts > 1 else ((rows, width), dtype)
    out = torch.empty(shape, dtype=dtype, device=states.device)
    _product[(*tiles, parts)](
        states, weight, scale, bias, out, rows, width, depth, part,
        ROWS=tile, COLUMNS=COLUMNS, BLOCK=block, num_warps=4, num_stages=5, **early(out),
    )  # fmt: skip
    return out


def _rows_of_tile(rows: int) -> int:
    return min(64, max(16, triton.next_power_of_2(rows)))


@triton.jit(do_not_specialize=["rows"])
def _product(  # type: ignore[no-untyped-def]
    states, weight, scale, bias, out, rows, width, depth, part,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """A tile of a part, transposed: a product of the tensor cores has 64 rows, here the weight's, but few columns."""
    wait(EARLY)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    start = tl.program_id(2) * part
    inside = row < rows
    total = tl.zeros((COLUMNS, ROWS), tl.float32)
    for first in range(start, tl.minimum(start + part, depth), BLOCK):
        k = first + tl.arange(0, BLOCK)[None, :]
        left = tl.load(weight + column[:, None] * depth + k)  # not masked, which would take time
        right = tl.load(states + row[:, None] * depth + k, mask=inside[:, None], other=0.0)
        total = tl.dot(left, tl.trans(right), total)
    if scale is not None:
        total *= tl.load(scale)
    if bias is not None:
        total += tl.where(start == 0, tl.load(bias + column).to(tl.float32), 0.0)[:, None]
    place = out + (tl.program_id(2) * rows + row)[None, :] * width + column[:, None]
    tl.store(place, total.to(out.dtype.element_ty), mask=inside[None, :])
