"""Sampling of the next token: random numbers for each sequence, and the token that each of them selects.

cuda_graph/triton_kernels.py computes the same on a GPU, in one pass over the logits.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from tinyzero_trainer.rollout.engine import SamplingParams

WEYL = 0x9E3779B97F4A7C15 - 2**64
"""The constants of splitmix64 (Steele, Lea, Flood 2014), as signed numbers here and below: torch has no others."""

FACTORS = (0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64)

JUST_BELOW = 1 - 2**-52  # multiplied by a positive float64, one that is slightly smaller


def streams(seed: int, rows: Tensor) -> Tensor:
    """[rows] states of one splitmix64 generator per row index [rows], so that no row depends on other rows."""
    signed = (seed + WEYL + 2**63) % 2**64 - 2**63  # the int64 of the same 64 bits
    start = _mix(torch.tensor(signed, dtype=torch.int64, device=rows.device))
    return _mix(start + (rows + 1) * WEYL)


def uniforms(starts: Tensor, index: Tensor) -> Tensor:
    """[rows] float64 numbers in [0, 1), the same on every device: number `index` [rows] of each stream."""
    return _shift(_mix(starts + (index + 1) * WEYL), 11).double() * 2.0**-53


def _mix(state: Tensor) -> Tensor:
    state = (state ^ _shift(state, 30)) * FACTORS[0]
    state = (state ^ _shift(state, 27)) * FACTORS[1]
    return state ^ _shift(state, 31)


def _shift(state: Tensor, places: int) -> Tensor:
    """Logical shift to the right."""
    return (state >> places) & ((1 << (64 - places)) - 1)


def block_size(vocabulary: int) -> int:
    """Tokens per block of the vocabulary: a power of two near its square root."""
    size = 16
    while size * size < vocabulary:
        size *= 2
    return size


def sample_tokens(logits: Tensor, uniform: Tensor, params: SamplingParams, knobs: Tensor) -> tuple[Tensor, Tensor]:
    """Sample one token per row, by inverting the cumulative distribution.

    One uniform number per row is much cheaper than one per token of the vocabulary, and makes a row's sample
    independent of the other rows in the batch.

    Args:
        logits: [batch, vocabulary], any float type.
        uniform: [batch] float64 numbers in [0, 1).
        params: top-k, and whether temperature and top-p apply.
        knobs: [2] float32 temperature and top-p; a CUDA graph reads them at each replay.

    Returns:
        Tokens [batch] int64 and their log-probabilities [batch] float32 under softmax(logits / temperature):
        before top-p and top-k, as the policy will compute them. At temperature 0, under softmax(logits).
    """
    if params.temperature == 0:
        scaled = logits.float()
        tokens = scaled.argmax(dim=-1)
        return tokens, scaled.gather(1, tokens[:, None]).squeeze(1) - scaled.logsumexp(dim=-1)
    temperature, top_p = knobs.unbind()
    scaled = logits.float() / temperature  # [batch, vocabulary]
    if params.top_p >= 1 and not 0 < params.top_k < logits.shape[-1]:
        tokens, log_total = _invert(scaled, uniform)
    else:
        log_total = scaled.logsumexp(dim=-1)
        tokens, _ = _invert(_restrict(scaled, log_total, params, top_p), uniform)
    return tokens, scaled.gather(1, tokens[:, None]).squeeze(1) - log_total


def _invert(scaled: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens [batch] at which the cumulative distribution passes `uniform`, and the log-sum-exp [batch] float32.

    Sums are in float64, because a float32 sum over a large vocabulary is visibly biased; over blocks first and then
    within one, which reads the vocabulary only once.
    """
    size = block_size(scaled.shape[-1])
    blocks = F.pad(scaled, (0, -scaled.shape[-1] % size), value=-torch.inf).unflatten(1, (-1, size))
    # Clamped, because -inf, the maximum of a block without a possible token, cannot be subtracted.
    highest = blocks.amax(dim=-1).clamp(min=torch.finfo(torch.float32).min)  # [batch, blocks]
    top = highest.amax(dim=-1, keepdim=True)
    scale = (highest - top).exp().double()
    sums = (blocks - highest[..., None]).exp_().sum(dim=-1, dtype=torch.float64) * scale
    cumulative = sums.cumsum(dim=-1)
    total = cumulative[:, -1:]
    threshold = torch.minimum(uniform[:, None] * total, total * JUST_BELOW)
    # right=True finds the first entry above the threshold, so a token of weight 0 is never sampled.
    # Clamped for NaN logits: the log-probability is NaN too, and the update with it is refused.
    block = torch.searchsorted(cumulative, threshold, right=True).clamp_(max=blocks.shape[1] - 1)  # [batch, 1]
    rest = threshold - F.pad(cumulative, (1, 0)).gather(1, block)
    chosen = blocks.gather(1, block[..., None].expand(-1, -1, size)).squeeze(1)  # [batch, size]
    inside = (chosen - highest.gather(1, block)).exp().double() * scale.gather(1, block)
    inside = inside.cumsum(dim=-1)
    rest = torch.minimum(rest, inside[:, -1:] * JUST_BELOW)
    tokens = block * size + torch.searchsorted(inside, rest, right=True)
    return tokens.squeeze(1).clamp_(max=scaled.shape[-1] - 1), (top.double() + total.log()).squeeze(1).float()


def _restrict(scaled: Tensor, log_total: Tensor, params: SamplingParams, top_p: Tensor) -> Tensor:
    """Logits [batch, vocabulary] with -inf outside of top-k and top-p."""
    if params.top_k and params.top_k < scaled.shape[-1]:
        least = scaled.topk(params.top_k, dim=-1).values[:, -1:]
        scaled = scaled.masked_fill(scaled < least, -torch.inf)
    if params.top_p < 1.0:
        ordered, order = (scaled - log_total[:, None]).exp().sort(dim=-1, descending=True)
        # A token stays if those before it have less than top_p of the remaining probability.
        before = ordered.cumsum(dim=-1) - ordered
        outside = before >= top_p * ordered.sum(dim=-1, keepdim=True)
        scaled = scaled.masked_fill(torch.zeros_like(outside).scatter(1, order, outside), -torch.inf)
    return scaled
