"""Estimators of KL(π ‖ π_ref), one value per token, from the sampled token or from the whole distribution.

As a penalty in the reward, which batch.py subtracts, the value counts; in the loss the gradient does. They are not the
same (arXiv 2506.09477): in expectation over tokens sampled from π the gradient of k2 is KL(π ‖ π_ref)'s, that of k3 is
KL(π_ref ‖ π)'s, that of abs Σ|π − π_ref|'s, and that of k1 is 0. A name with `+` has the named estimator's value and
k2's gradient.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

LOG_RATIO_BOUND = 20.0  # log-ratios are clamped to this on both sides, so that exp stays finite

KL_BOUND = 10.0  # k3 is clamped to this on both sides: one outlier must not outweigh the batch

Divergence = Callable[[Tensor, Tensor], Tensor]


def bounded_ratio(log_ratio: Tensor) -> Tensor:
    """exp of a clamped log-ratio."""
    return log_ratio.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND).exp()


def k1(logprobs: Tensor, reference_logprobs: Tensor) -> Tensor:
    """log π − log π_ref: unbiased, high variance, negative for half of the tokens (Schulman 2020)."""
    return logprobs - reference_logprobs


def absolute(logprobs: Tensor, reference_logprobs: Tensor) -> Tensor:
    """|log π − log π_ref|."""
    return (logprobs - reference_logprobs).abs()


def k2(logprobs: Tensor, reference_logprobs: Tensor) -> Tensor:
    """½·(log π − log π_ref)²: biased value, low variance, correct gradient (Schulman 2020)."""
    return 0.5 * (logprobs - reference_logprobs).square()


def k3(logprobs: Tensor, reference_logprobs: Tensor) -> Tensor:
    """e^d − d − 1 with d = log π_ref − log π: never negative, unbiased, low variance (Schulman 2020)."""
    difference = (reference_logprobs - logprobs).clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    # expm1: near 0, e^d − 1 loses all digits.
    return (torch.expm1(difference) - difference).clamp(-KL_BOUND, KL_BOUND)


def _straight_through(value: Divergence) -> Divergence:
    def divergence(logprobs: Tensor, reference_logprobs: Tensor) -> Tensor:
        gradient = k2(logprobs, reference_logprobs)
        return gradient - gradient.detach() + value(logprobs, reference_logprobs).detach()

    return divergence


SAMPLED: Mapping[str, Divergence] = {
    "k1": k1,
    "abs": absolute,
    "k2": k2,
    "k3": k3,
    "k1+": _straight_through(k1),
    "abs+": _straight_through(absolute),
    "k3+": _straight_through(k3),
}
"""From [tokens] log π and log π_ref of the sampled tokens to [tokens]."""


def exact(log_distribution: Tensor, reference_log_distribution: Tensor) -> Tensor:
    """Σ_v π(v) · (log π(v) − log π_ref(v)), [tokens], from log π and log π_ref, [tokens, vocabulary] each."""
    probabilities, log_ratio = log_distribution.exp(), log_distribution - reference_log_distribution
    return (probabilities * log_ratio.masked_fill(probabilities == 0, 0)).sum(dim=-1)  # 0 · log 0 = 0


def entropy(log_distribution: Tensor) -> Tensor:
    """Entropy in nats, [tokens], of log π [tokens, vocabulary]."""
    # 0 · log 0 = 0: below the bound π is 0, also in float32.
    return -(log_distribution.exp() * log_distribution.clamp(min=-1e4)).sum(dim=-1)


def adapted_coefficient(coefficient: float, measured: float, *, target: float, horizon: int, count: int) -> float:
    """The adaptive KL coefficient after a batch (arXiv 1909.08593, §2.2).

    β·(1 + clip(measured/target − 1, ±0.2)·min(1, count/horizon)): raised while the mean KL per token, `measured`, is
    above `target`, lowered while it is below, by up to a fifth over `horizon` completions; the batch has `count`. The
    bound on count/horizon is ours: above 5, β could become negative.
    """
    error = min(0.2, max(-0.2, measured / target - 1))
    return coefficient * (1 + error * min(1.0, count / horizon))
