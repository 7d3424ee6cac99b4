"""Losses by token, as pure functions of log-probabilities.

Every function takes and returns one value a completion token, [tokens]; the policy sums them and divides by
the number of completion tokens in the whole mini-batch, so that no split into micro-batches changes the loss.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

LOG_RATIO_BOUND = 20.0
"""Log-ratios are clamped to this on both sides, so that exp stays finite."""

KL_BOUND = 10.0
"""k3 is clamped to this on both sides: one outlier must not outweigh the batch."""


@dataclass(frozen=True, slots=True)
class PolicyLoss:
    """The clipped surrogate, with what the metrics need; all [tokens]."""

    loss: Tensor
    """To be minimised; carries the gradient."""

    ratio: Tensor
    """π / π_old, detached."""

    clipped: Tensor
    """Bool: the clip took the gradient away."""


def clipped_policy_loss(
    logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, *, clip_low: float, clip_high: float
) -> PolicyLoss:
    """PPO's clipped surrogate with separate bounds (arXiv 1707.06347 eq. 7; arXiv 2503.14476 eq. 10).

    Args:
        logprobs: log π of each token, with gradient.
        old_logprobs: log π of each token when it was sampled.
        advantages: advantage of the completion that each token belongs to.
        clip_low: the ratio counts down to 1 - clip_low.
        clip_high: the ratio counts up to 1 + clip_high.
    """
    ratio = (logprobs - old_logprobs).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND).exp()
    unclipped = -advantages * ratio
    clipped = -advantages * ratio.clamp(1 - clip_low, 1 + clip_high)
    return PolicyLoss(torch.maximum(unclipped, clipped), ratio.detach(), (clipped > unclipped).detach())


def k3_divergence(logprobs: Tensor, reference_logprobs: Tensor) -> Tensor:
    """Estimate of KL(π ‖ π_ref) from the sampled token: e^d − d − 1 with d = log π_ref − log π (Schulman 2020).

    Never negative, unbiased in value, of low variance. Minimising it draws π towards the reference.
    """
    difference = (reference_logprobs - logprobs).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    # expm1: close to 0, e^d − 1 loses all its digits.
    return (torch.expm1(difference) - difference).clamp(-KL_BOUND, KL_BOUND)


def exact_divergence(log_distribution: Tensor, reference_log_distribution: Tensor) -> Tensor:
    """KL(π ‖ π_ref) over the whole vocabulary: Σ_v π(v) · (log π(v) − log π_ref(v)).

    Args:
        log_distribution: [tokens, vocabulary] log π, with gradient.
        reference_log_distribution: [tokens, vocabulary] log π_ref.
    """
    return (log_distribution.exp() * (log_distribution - reference_log_distribution)).sum(dim=-1)


def entropy_of(log_distribution: Tensor) -> Tensor:
    """Entropy in nats, [tokens], of log π [tokens, vocabulary]."""
    return -(log_distribution.exp() * log_distribution).sum(dim=-1)
