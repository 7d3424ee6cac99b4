"""The two passes over a chunk of logits that head.py makes on a GPU, each reading them once.

What PyTorch compiles by itself reads them three times. Imported on a GPU only: elsewhere there may be no Triton.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 4096
LOG2_E = tl.constexpr(1.4426950408889634)


def measure(logits: Tensor, targets: Tensor, temperature: float) -> Tensor:
    """[3, rows] log-probability of the target, entropy and log-sum-exp of logits [rows, vocabulary] / temperature."""
    rows, vocabulary = logits.shape
    columns = torch.empty((3, rows), dtype=torch.float32, device=logits.device)
    _measure[(rows,)](logits, targets, columns, rows, vocabulary, 1.0 / temperature, BLOCK=BLOCK, num_warps=8)
    return columns


def gradient(
    logits: Tensor, targets: Tensor, columns: Tensor, of_logprob: Tensor, of_entropy: Tensor, temperature: float
) -> Tensor:
    """[rows, vocabulary] gradient with respect to the logits, from that of log-probability and entropy, each [rows].

    Args:
        logits: as `measure` had them; overwritten.
        targets: [rows].
        columns: [3, rows] what `measure` found.
        of_logprob: gradient with respect to the log-probability.
        of_entropy: and to the entropy.
        temperature: as before.
    """
    rows, vocabulary = logits.shape
    scalars = torch.stack([columns[1], columns[2], of_logprob, of_entropy])  # [4, rows]
    grid = (rows, triton.cdiv(vocabulary, BLOCK))
    _gradient[grid](logits, targets, scalars, rows, vocabulary, 1.0 / temperature, BLOCK=BLOCK, num_warps=8)
    return logits


@triton.jit
def _measure(logits, targets, columns, rows, vocabulary, scale, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0)
    line = logits + row.to(tl.int64) * vocabulary
    highest = -float("inf")
    total = 0.0  # Σ exp(z - highest)
    moment = 0.0  # Σ exp(z - highest) · (z - highest)
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
        moment += tl.sum(weight * shifted, axis=0)
        total = total * shift + tl.sum(weight, axis=0)
        highest = higher
    log_total = tl.log(total)
    target = tl.load(line + tl.load(targets + row)).to(tl.float32) * scale
    tl.store(columns + row, target - highest - log_total)
    tl.store(columns + rows + row, log_total - moment / total)
    tl.store(columns + 2 * rows + row, highest + log_total)


@triton.jit
def _gradient(logits, targets, scalars, rows, vocabulary, scale, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0)
    places = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = places < vocabulary
    line = logits + row.to(tl.int64) * vocabulary + places
    entropy = tl.load(scalars + row)
    log_total = tl.load(scalars + rows + row)
    of_logprob = tl.load(scalars + 2 * rows + row)
    of_entropy = tl.load(scalars + 3 * rows + row)
    target = tl.load(targets + row)
    logprob = tl.load(line, mask=inside, other=0.0).to(tl.float32) * scale - log_total
    pull = tl.exp2(logprob * LOG2_E) * (of_logprob + of_entropy * (logprob + entropy))
    found = (tl.where(places == target, of_logprob, 0.0) - pull) * scale
    tl.store(line, found.to(logits.dtype.element_ty), mask=inside)
