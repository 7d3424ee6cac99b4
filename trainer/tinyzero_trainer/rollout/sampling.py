"""Drawing the next token: which number decides, and which token it decides for.

rollout/cuda_graph/triton_kernels.py has the same two laws for a GPU, in one pass over the logits.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from tinyzero_trainer.rollout.engine import SamplingParams

WEYL = 0x9E3779B97F4A7C15 - 2**64
"""Of splitmix64 (Steele, Lea, Flood 2014); here and below as signed numbers, since torch computes with no others."""

FACTORS = (0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64)

JUST_BELOW = 1 - 2**-52
"""Times a positive number, the largest float64 but one or two below it."""


def streams(seed: int, rows: Tensor) -> Tensor:
    """Where each row's random numbers start: an own splitmix64 for each, so that no row's depend on other rows.

    Args:
        seed: any number.
        rows: [rows] int64 numbers of the rows.
    """
    start = _mix(torch.tensor(_signed(seed + WEYL), dtype=torch.int64, device=rows.device))
    return _mix(start + (rows + 1) * WEYL)


def uniforms(starts: Tensor, index: int | Tensor) -> Tensor:
    """Numbers in [0, 1), float64, the same on every device.

    Args:
        starts: [rows] from `streams`.
        index: which number of the stream: one for all rows, or [rows] int64.
    """
    onward = _signed((index + 1) * WEYL) if isinstance(index, int) else (index + 1) * WEYL
    return _shift(_mix(starts + onward), 11).double() * 2.0**-53


def _mix(state: Tensor) -> Tensor:
    state = (state ^ _shift(state, 30)) * FACTORS[0]
    state = (state ^ _shift(state, 27)) * FACTORS[1]
    return state ^ _shift(state, 31)


def _shift(state: Tensor, places: int) -> Tensor:
    """To the right, with zeros from the left."""
    return (state >> places) & ((1 << (64 - places)) - 1)


def _signed(number: int) -> int:
    """The int64 of the same 64 bits."""
    return (number + 2**63) % 2**64 - 2**63


def block_size(vocabulary: int) -> int:
    """Tokens of a block: a power of two, about as many as there are blocks."""
    size = 16
    while size * size < vocabulary:
        size *= 2
    return size


def sample_tokens(
    logits: Tensor, uniform: Tensor, params: SamplingParams, knobs: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Draw one token a row, by inverting the cumulative distribution.

    One uniform number a row is much cheaper than one a token of the vocabulary, and makes a row's
    draw independent of which other rows are still in the batch.

    Args:
        logits: [batch, vocabulary], any float type.
        uniform: [batch] float64 numbers in [0, 1).
        params: temperature, top-p and top-k.
        knobs: [2] float32 temperature and top-p, to be read when the tokens are drawn rather than now; None = those
            of `params`.

    Returns:
        Tokens [batch] int64 and their log-probabilities [batch] float32 under softmax(logits / temperature):
        before top-p and top-k, as the policy will compute them. At temperature 0, under softmax(logits).
    """
    if params.temperature == 0:
        scaled = logits.float()
        tokens = scaled.argmax(dim=-1)
        return tokens, scaled.gather(1, tokens[:, None]).squeeze(1) - scaled.logsumexp(dim=-1)
    temperature, top_p = (params.temperature, params.top_p) if knobs is None else knobs.unbind()
    scaled = logits.float() / temperature  # [batch, vocabulary]
    if params.top_p >= 1 and not 0 < params.top_k < logits.shape[-1]:
        tokens, log_total = _invert(scaled, uniform)
    else:
        log_total = scaled.logsumexp(dim=-1)
        tokens, _ = _invert(_restrict(scaled, log_total, params, top_p), uniform)
    return tokens, scaled.gather(1, tokens[:, None]).squeeze(1) - log_total


def _invert(scaled: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens [batch] at which the cumulative distribution passes `uniform`, and the log-sum-exp [batch] float32.

    Sums are in float64, for a float32 sum over a large vocabulary is visibly biased; of blocks first and then within
    one, which reads the vocabulary only once.
    """
    size = block_size(scaled.shape[-1])
    blocks = F.pad(scaled, (0, -scaled.shape[-1] % size), value=-torch.inf).unflatten(1, (-1, size))
    # Of a block without a possible token the maximum is -inf, and so is nothing that is subtracted.
    highest = blocks.amax(dim=-1).clamp(min=torch.finfo(torch.float32).min)  # [batch, blocks]
    top = highest.amax(dim=-1, keepdim=True)
    scale = (highest - top).exp().double()
    sums = (blocks - highest[..., None]).exp_().sum(dim=-1, dtype=torch.float64) * scale
    cumulative = sums.cumsum(dim=-1)
    total = cumulative[:, -1:]
    threshold = torch.minimum(uniform[:, None] * total, total * JUST_BELOW)
    # right=True finds the first entry above the threshold, so a token of weight 0 is never drawn.
    # Bounded for logits that are not numbers: the log-probability says so, and the update that they end in is refused.
    block = torch.searchsorted(cumulative, threshold, right=True).clamp_(max=blocks.shape[1] - 1)  # [batch, 1]
    rest = threshold - F.pad(cumulative, (1, 0)).gather(1, block)
    chosen = blocks.gather(1, block[..., None].expand(-1, -1, size)).squeeze(1)  # [batch, size]
    inside = (chosen - highest.gather(1, block)).exp().double() * scale.gather(1, block)
    inside = inside.cumsum(dim=-1)
    rest = torch.minimum(rest, inside[:, -1:] * JUST_BELOW)
    tokens = block * size + torch.searchsorted(inside, rest, right=True)
    return tokens.squeeze(1).clamp_(max=scaled.shape[-1] - 1), (top.double() + total.log()).squeeze(1).float()


def _restrict(scaled: Tensor, log_total: Tensor, params: SamplingParams, top_p: float | Tensor) -> Tensor:
    """The same [batch, vocabulary] with -inf outside of top-k and top-p."""
    if params.top_k and params.top_k < scaled.shape[-1]:
        least = scaled.topk(params.top_k, dim=-1).values[:, -1:]
        scaled = scaled.masked_fill(scaled < least, -torch.inf)
    if params.top_p < 1.0:
        ordered, order = (scaled - log_total[:, None]).exp().sort(dim=-1, descending=True)
        # A token stays if what comes before it holds less than top_p of the remaining probability.
        before = ordered.cumsum(dim=-1) - ordered
        outside = before >= top_p * ordered.sum(dim=-1, keepdim=True)
        scaled = scaled.masked_fill(torch.zeros_like(outside).scatter(1, order, outside), -torch.inf)
    return scaled
