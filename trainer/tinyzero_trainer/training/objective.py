"""The policy's objective: surrogate, importance weights, KL and entropy bonus. Pure; the models run in policy.py."""

from torch import Tensor

from tinyzero_trainer.algorithms.losses import LossFunction, LossInputs
from tinyzero_trainer.training.logprobs import TokenStatistics


def policy_objective(
    statistics: TokenStatistics,
    inputs: LossInputs,
    *,
    policy_loss: LossFunction,
    entropy_coefficient: float,
    kl_coefficient: float,
    is_weights: Tensor | None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """[tokens] loss of each completion token, to be weighted and summed, and metrics, [tokens] each.

    `is_weights` [tokens] multiply the surrogate alone; the product is the metric `pg_loss`.
    """
    surrogate = policy_loss(statistics.logprobs, inputs)
    loss = surrogate.loss if is_weights is None else is_weights * surrogate.loss
    outside = (surrogate.ratio < 1 - inputs.clip_ratio_low) | (surrogate.ratio > 1 + inputs.clip_ratio_high)
    metrics = {
        "pg_loss": loss,
        "pg_clipfrac": surrogate.clipped.float(),
        "entropy": statistics.entropy,
        "ratio/outside_clip_frac": outside.float(),
        "log_ratio": statistics.logprobs.detach() - inputs.old_logprobs,
        "ratio": surrogate.ratio,
    }
    if statistics.divergence is not None:
        metrics["kl_loss"] = statistics.divergence
        # Added: minimising the loss pulls the policy towards the reference.
        loss = loss + kl_coefficient * statistics.divergence
    if entropy_coefficient:
        loss = loss - entropy_coefficient * statistics.entropy
    return loss, metrics
