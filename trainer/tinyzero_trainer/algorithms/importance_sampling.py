"""What the engine says it sampled from, against what the policy says: old log-probabilities, weights, metrics.

An engine with kernels or a precision of its own samples from π_engine, not quite from the policy π. Pure functions;
the forward passes they need are the policy's business. Where the old log-probabilities of the loss come from
(`TrainConfig.old_logprobs_source`):

- `rollout.return_logprobs=always`, no correction: from the engine. No pass is needed, and the ratio π/π_old covers the
  mismatch too.
- `never` and `sample`: they are the policy's own, from a pass before the update, or, where one update takes the whole
  batch, from that update's own pass. In sampled steps the engine's are for the metrics alone, so what is learnt does
  not depend on which steps are sampled.
- A correction (`rollout_correction.is_level`, `rollout_correction.rejection_bounds`; needs `always`): the policy's
own, from a pass before the update,
  and the loss of each token is weighted with π_old/π_engine.
"""

import torch
from torch import Tensor

from tinyzero_trainer.algorithms.kl import bounded_ratio, k1, k3
from tinyzero_trainer.config import RolloutCorrectionConfig, TrainConfig
from tinyzero_trainer.utils import jagged

SAMPLE_EVERY = 10
"""With `rollout.return_logprobs=sample` the engine is asked in the first step of so many."""


ENGINE_DIVERGENCE = "rollout_corr/k3_kl"
"""The metric that estimates KL(π_engine ‖ π) with the least noise, and is never below 0."""


def asks_engine(config: TrainConfig, step: int) -> bool:
    """Whether the engine shall return log-probabilities in a step, counted from 1."""
    mode = config.rollout.return_logprobs
    return mode == "always" or (mode == "sample" and step % SAMPLE_EVERY == 1)


def importance_weights(
    old_logprobs: Tensor, engine: Tensor, lengths: Tensor, settings: RolloutCorrectionConfig
) -> tuple[Tensor, dict[str, float]]:
    """Truncated weights min(π_old/π_engine, cap), and 0 where the ratio lies outside the mask.

    Log-ratios are clamped to ±20. A token that is left out still counts in the divisor of the loss, as in IcePop
    (arXiv 2510.18855), so that the gradient of the others does not depend on it; the KL and entropy terms keep it.
    Truncation: Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL training".

    Args:
        old_logprobs: [tokens] the policy's, before the update.
        engine: [tokens] the engine's.
        lengths: [completions]
        settings: `weights=sequence` takes one ratio a completion, the product over its tokens, for the mask too.

    Returns:
        [tokens] weights without gradient, and the metrics `rollout_corr/*`, of which the mean is before the mask.
    """
    log_ratio = old_logprobs - engine
    if settings.is_level == "sequence":
        log_ratio = jagged.repeat_to_tokens(jagged.sums(log_ratio, lengths), lengths)
    ratio = bounded_ratio(log_ratio)
    weights, metrics = torch.ones_like(ratio), {}
    if settings.is_level is not None:
        weights = ratio.clamp(max=settings.is_threshold)
        metrics["rollout_corr/rollout_is_mean"] = weights.mean().item()
        metrics["rollout_corr/rollout_is_ratio_fraction_high"] = (ratio > settings.is_threshold).float().mean().item()
    if settings.rejection_bounds is not None:
        low, high = settings.rejection_bounds
        outside = (ratio < low) | (ratio > high)
        weights = weights.masked_fill(outside, 0.0)
        metrics["rollout_corr/rollout_rs_masked_fraction"] = outside.float().mean().item()
    return weights, metrics


def mismatch_metrics(logprobs: Tensor, engine: Tensor) -> dict[str, float]:
    """How far the engine's log-probabilities lie from the policy's, under verl's names.

    Both [tokens], before any update. `kl` and `k3_kl` estimate KL(π_engine ‖ π) from the sampled tokens.
    """
    gaps = (logprobs.exp() - engine.exp()).abs()
    return {
        "training/rollout_probs_diff_mean": gaps.mean().item(),
        "training/rollout_probs_diff_max": gaps.max().item(),
        "training/rollout_probs_diff_std": gaps.std(correction=0).item(),
        "training/rollout_logprobs_diff_mean": (logprobs - engine).abs().mean().item(),
        "rollout_corr/kl": k1(engine, logprobs).mean().item(),
        ENGINE_DIVERGENCE: k3(engine, logprobs).mean().item(),
    }


def notes(config: TrainConfig) -> list[str]:
    """What a user should know at the start of a run."""
    rollout = config.rollout
    cuts = [f"rollout.top_p={rollout.top_p:g}"] * (rollout.top_p < 1) + [f"rollout.top_k={rollout.top_k}"] * (
        rollout.top_k > 0
    )
    if not cuts:
        return []
    return [
        f"{' and '.join(cuts)}: tokens come from a cut distribution, ratios from the whole one; the gradient is biased"
    ]
