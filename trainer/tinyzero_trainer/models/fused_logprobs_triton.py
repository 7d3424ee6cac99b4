"""The two passes over a chunk of logits that fused_logprobs.py makes on a GPU, each reading them once.

What PyTorch compiles by itself reads them three times. Imported on a GPU only: elsewhere there may be no Triton.
"""

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096
LOG2_E = tl.constexpr(1.4426950408889634)


def measure(logits: Tensor, anchors: Tensor | None, targets: Tensor, temperature: float) -> Tensor:
    """[3, rows] log-probability of the target, entropy and log-sum-exp of logits [rows, vocabulary] / temperature.

    With the logits of a reference, of the same shape, [5, rows]: then KL(π ‖ π_ref), and the log-sum-exp of those.
    """
    rows, vocabulary = logits.shape
    columns = torch.empty((3 if anchors is None else 5, rows), dtype=torch.float32, device=logits.device)
    arguments = (logits, logits if anchors is None else anchors, targets, columns, rows, vocabulary, 1.0 / temperature)
    _measure[(rows,)](*arguments, ANCHORED=anchors is not None, BLOCK=_block(vocabulary), num_warps=8)
    return columns


def gradient(
    logits: Tensor,
    anchors: Tensor | None,
    targets: Tensor,
    columns: Tensor,
    upstream: Sequence[Tensor],
    temperature: float,
    rounded: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """[rows, vocabulary] gradient with respect to the logits, which it overwrites.

    Args:
        columns: the result of `measure`.
        upstream: gradients [rows] with respect to log-probability, entropy and, with `anchors`, divergence.
        rounded: where the gradient is also written in float8 [rows, vocabulary], and its scale [rows, 1].
    """
    rows, vocabulary = logits.shape
    scalars = torch.stack([columns[1], columns[2], *upstream[:2]])  # [4, rows]
    if anchors is not None:
        scalars = torch.cat([scalars, torch.stack([columns[3], columns[4], upstream[2]])])  # [7, rows]
    block = _block(vocabulary)
    grid = (rows, triton.cdiv(vocabulary, block))
    numbers, scales = (logits, scalars) if rounded is None else rounded
    arguments = (logits, logits if anchors is None else anchors, targets, scalars, numbers, scales, rows, vocabulary)
    settings = {"ANCHORED": anchors is not None, "ROUNDED": rounded is not None, "BLOCK": block}
    _gradient[grid](*arguments, 1.0 / temperature, **settings, num_warps=8)
    return logits


def _block(vocabulary: int) -> int:
    return min(BLOCK, max(256, int(triton.next_power_of_2(vocabulary))))


@triton.jit
def _measure(logits, anchors, targets, columns, rows, vocabulary, scale, ANCHORED: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0)
    line = logits + row.to(tl.int64) * vocabulary
    anchor_line = anchors + row.to(tl.int64) * vocabulary
    highest = -3e38  # finite, and below all logits but -inf, whose weight is 0 even if they come first
    total = 0.0  # Σ exp(z - highest)
    moment = 0.0  # Σ exp(z - highest) · (z - highest)
    anchor_highest = -3e38
    anchor_total = 0.0  # Σ exp(a - anchor_highest)
    apart = 0.0  # Σ exp(z - highest) · ((z - highest) - (a - anchor_highest)): term by term 0 where both are equal
    for start in range(0, vocabulary, BLOCK):
        places = start + tl.arange(0, BLOCK)
        inside = places < vocabulary
        z = tl.load(line + places, mask=inside, other=-float("inf")).to(tl.float32) * scale
        higher = tl.maximum(highest, tl.max(z, axis=0))
        shift = tl.exp2((highest - higher) * LOG2_E)
        shifted = tl.where(inside, z - higher, 0.0)
        weight = tl.where(inside, tl.exp2(shifted * LOG2_E), 0.0)
        # Seen from a higher point h': e^(z - h') (z - h') = shift · e^(z - h) ((z - h) + (h - h')).
        moment = tl.where(total > 0, shift * (moment + total * (highest - higher)), 0.0)
        moment += tl.sum(tl.where(weight == 0, 0.0, weight * shifted), axis=0)
        if ANCHORED:
            a = tl.load(anchor_line + places, mask=inside, other=-float("inf")).to(tl.float32) * scale
            anchor_higher = tl.maximum(anchor_highest, tl.max(a, axis=0))
            anchor_shifted = tl.where(inside, a - anchor_higher, 0.0)
            moved = (highest - higher) - (anchor_highest - anchor_higher)
            apart = tl.where(total > 0, shift * (apart + total * moved), 0.0)
            apart += tl.sum(tl.where(weight == 0, 0.0, weight * (shifted - anchor_shifted)), axis=0)
            anchor_total = anchor_total * tl.exp2((anchor_highest - anchor_higher) * LOG2_E)
            anchor_total += tl.sum(tl.where(inside, tl.exp2(anchor_shifted * LOG2_E), 0.0), axis=0)
            anchor_highest = anchor_higher
        total = total * shift + tl.sum(weight, axis=0)
        highest = higher
    log_total = tl.log(total)
    target = tl.load(line + tl.load(targets + row)).to(tl.float32) * scale
    tl.store(columns + row, target - highest - log_total)
    tl.store(columns + rows + row, log_total - moment / total)
    tl.store(columns + 2 * rows + row, highest + log_total)
    if ANCHORED:
        anchor_log_total = tl.log(anchor_total)
        tl.store(columns + 3 * rows + row, apart / total - (log_total - anchor_log_total))
        tl.store(columns + 4 * rows + row, anchor_highest + anchor_log_total)


@triton.jit
def _gradient(  # type: ignore[no-untyped-def]
    logits,
    anchors,
    targets,
    scalars,
    numbers,
    scales,
    rows,
    vocabulary,
    scale,
    ANCHORED: tl.constexpr,
    ROUNDED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    places = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = places < vocabulary
    line = logits + row.to(tl.int64) * vocabulary + places
    entropy = tl.load(scalars + row)
    log_total = tl.load(scalars + rows + row)
    grad_logprob = tl.load(scalars + 2 * rows + row)
    grad_entropy = tl.load(scalars + 3 * rows + row)
    target = tl.load(targets + row)
    logprob = tl.load(line, mask=inside, other=0.0).to(tl.float32) * scale - log_total
    pull = grad_logprob + grad_entropy * (logprob + entropy)
    if ANCHORED:
        divergence = tl.load(scalars + 4 * rows + row)
        anchor_log_total = tl.load(scalars + 5 * rows + row)
        grad_divergence = tl.load(scalars + 6 * rows + row)
        anchor_line = anchors + row.to(tl.int64) * vocabulary + places
        anchor = tl.load(anchor_line, mask=inside, other=0.0).to(tl.float32) * scale - anchor_log_total
        pull -= grad_divergence * ((logprob - anchor) - divergence)
    probability = tl.exp2(logprob * LOG2_E)
    pull = tl.where(probability == 0, 0.0, probability * pull)
    grad_logits = (tl.where(places == target, grad_logprob, 0.0) - pull) * scale
    tl.store(line, grad_logits.to(logits.dtype.element_ty), mask=inside)
    if ROUNDED:
        in_float8 = (grad_logits * (1.0 / tl.load(scales + row))).to(tl.float8e4nv)
        tl.store(numbers + row.to(tl.int64) * vocabulary + places, in_float8, mask=inside)
