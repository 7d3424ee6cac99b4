"""Correction for the mismatch between engine and policy: weights and metrics. Pure functions.

An engine with other kernels or another precision samples from π_engine, not exactly from the policy π. Where the old
log-probabilities of the loss come from (`TrainConfig.old_logprobs_source`):

- `rollout.return_logprobs=always`, no correction: from the engine, so the ratio π/π_old covers the mismatch too.
- `never` and `sample`: from the policy, in a pass before the update, or, if one update takes the whole batch, in that
  update's own pass. In sampled steps the engine's are only for metrics.
- A correction (needs `always`): from the policy, in a pass before the update, and the loss of each token is weighted
  with π_old/π_engine.
"""

import math
from typing import Literal

import torch
from torch import Tensor

from tinyzero_trainer.algorithms.kl import bounded_ratio, k1, k3
from tinyzero_trainer.utils import jagged

ENGINE_DIVERGENCE = "rollout_corr/k3_kl"
"""The metric that estimates KL(π_engine ‖ π) with the least noise; never negative."""


def importance_weights(
    old_logprobs: Tensor,
    engine: Tensor,
    lengths: Tensor,
    *,
    level: Literal["token", "sequence"] | None,
    threshold: float = math.inf,
    bounds: tuple[float, float] | None = None,
) -> tuple[Tensor, dict[str, float]]:
    """[tokens] min(π_old/π_engine, threshold), 0 where the ratio is outside the rejection `bounds`; and metrics.

    Log-ratios are clamped to ±20. A rejected token still counts in the divisor of the loss, as in IcePop (arXiv
    2510.18855), so that the gradient of the others does not depend on it, and in the KL and entropy terms.
    Truncation: Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL training". The level
    `sequence` takes one ratio per completion, the product over its tokens; without a level tokens are only rejected.
    """
    log_ratio = old_logprobs - engine
    if level == "sequence":
        log_ratio = jagged.repeat_to_tokens(jagged.sums(log_ratio, lengths), lengths)
    ratio = bounded_ratio(log_ratio)
    weights, metrics = torch.ones_like(ratio), {}
    if level is not None:
        weights = ratio.clamp(max=threshold)
        metrics["rollout_corr/rollout_is_mean"] = weights.mean().item()
        metrics["rollout_corr/rollout_is_ratio_fraction_high"] = (ratio > threshold).float().mean().item()
    if bounds is not None:
        low, high = bounds
        outside = (ratio < low) | (ratio > high)
        weights = weights.masked_fill(outside, 0.0)
        metrics["rollout_corr/rollout_rs_masked_fraction"] = outside.float().mean().item()
    return weights, metrics


def mismatch_metrics(logprobs: Tensor, engine: Tensor) -> dict[str, float]:
    """Distance of the engine's log-probabilities from the policy's, [tokens]; `kl` and `k3_kl` are KL(π_engine ‖ π)."""
    gaps = (logprobs.exp() - engine.exp()).abs()
    return {
        "training/rollout_probs_diff_mean": gaps.mean().item(),
        "training/rollout_probs_diff_max": gaps.max().item(),
        "training/rollout_probs_diff_std": gaps.std(correction=0).item(),
        "training/rollout_logprobs_diff_mean": (logprobs - engine).abs().mean().item(),
        "rollout_corr/kl": k1(engine, logprobs).mean().item(),
        ENGINE_DIVERGENCE: k3(engine, logprobs).mean().item(),
    }
