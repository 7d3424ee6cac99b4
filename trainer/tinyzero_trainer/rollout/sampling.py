"""Drawing the next token."""

import torch
from torch import Tensor

from tinyzero_trainer.rollout.engine import SamplingParams


def sample_tokens(logits: Tensor, uniform: Tensor, params: SamplingParams) -> tuple[Tensor, Tensor]:
    """Draw one token a row, by inverting the cumulative distribution.

    One uniform number a row is much cheaper than one a token of the vocabulary, and makes a row's
    draw independent of which other rows are still in the batch.

    Args:
        logits: [batch, vocabulary], any float type.
        uniform: [batch] float64 numbers in [0, 1).
        params: temperature, top-p and top-k.

    Returns:
        Tokens [batch] int64 and their log-probabilities [batch] float32 under softmax(logits / temperature):
        before top-p and top-k, as the policy will compute them. At temperature 0, under softmax(logits).
    """
    logprobs = torch.log_softmax(logits.float() / (params.temperature or 1.0), dim=-1)  # [batch, vocabulary]
    if params.temperature == 0:
        tokens = logprobs.argmax(dim=-1)
    else:
        weights = _restrict(logprobs, params).double()
        cumulative = weights.cumsum(dim=-1)  # float64: a float32 sum over a large vocabulary is visibly biased
        threshold = uniform[:, None] * cumulative[:, -1:]
        # right=True finds the first entry above the threshold, so a token of weight 0 is never drawn.
        tokens = torch.searchsorted(cumulative, threshold, right=True).squeeze(1)
        tokens = tokens.clamp_(max=logits.shape[-1] - 1)
    return tokens, logprobs.gather(1, tokens[:, None]).squeeze(1)


def _restrict(logprobs: Tensor, params: SamplingParams) -> Tensor:
    """Probabilities [batch, vocabulary] (not normalised) with those outside top-k and top-p set to 0."""
    probabilities = logprobs.exp()
    if params.top_k and params.top_k < logprobs.shape[-1]:
        least = logprobs.topk(params.top_k, dim=-1).values[:, -1:]
        probabilities = probabilities.masked_fill(logprobs < least, 0.0)
    if params.top_p < 1.0:
        ordered, order = probabilities.sort(dim=-1, descending=True)
        # A token stays if what comes before it holds less than top_p of the remaining probability.
        before = ordered.cumsum(dim=-1) - ordered
        outside = before >= params.top_p * ordered.sum(dim=-1, keepdim=True)
        probabilities = probabilities.masked_fill(torch.zeros_like(outside).scatter(1, order, outside), 0.0)
    return probabilities
