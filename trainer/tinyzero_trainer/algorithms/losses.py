"""Policy losses and how they are aggregated, as pure functions of log-probabilities.

A policy loss gives one value per completion token; `token_weights` gives each token a weight, and the loss is the
weighted sum. Weights are computed over the whole mini-batch, so no split into micro-batches changes the loss. A new
loss is a function here and a line in kinds.py, or a user's own.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tinyzero_sdk.errors import SettingsError
from tinyzero_trainer.algorithms.kinds import POLICY_LOSSES, Aggregation
from tinyzero_trainer.algorithms.kl import bounded_ratio
from tinyzero_trainer.algorithms.user_functions import call_own, load_function
from tinyzero_trainer.utils import jagged


@dataclass(frozen=True, slots=True)
class LossInputs:
    """Inputs of a policy loss besides log π."""

    old_logprobs: Tensor  # [tokens] log π of each token when it was sampled
    advantages: Tensor  # [tokens]
    lengths: Tensor  # [completions] tokens of each, one completion after another
    clip_ratio_low: float
    clip_ratio_high: float  # the ratio is clipped to 1 - clip_ratio_low … 1 + clip_ratio_high
    dual_clip_c: float | None = None  # c of dual clip; None = without


@dataclass(frozen=True, slots=True)
class PolicyLoss:
    """A policy loss and what its metrics need; all [tokens]."""

    loss: Tensor  # with gradient
    ratio: Tensor  # the advantage's factor before clipping, detached
    clipped: Tensor  # bool: clipping changed the loss


LossFunction = Callable[[Tensor, LossInputs], PolicyLoss]
"""From log π [tokens], with gradient, and the other inputs."""


def find_policy_loss(name: str) -> LossFunction:
    """The policy loss of this name: one of this file, or a user's own, which is tried on a few synthetic tokens."""
    if name in POLICY_LOSSES:
        return globals()[name]
    key = "algorithm.policy_loss"
    function = load_function(key, name)

    def checked(logprobs: Tensor, inputs: LossInputs) -> PolicyLoss:
        result = call_own(key, name, function, logprobs, inputs)
        if not isinstance(result, PolicyLoss):
            raise SettingsError(f"{key}={name} returned {type(result).__name__}, expected a PolicyLoss")
        for field in ("loss", "ratio", "clipped"):
            shape, tokens = tuple(getattr(result, field).shape), len(logprobs)
            if shape != (tokens,):
                raise SettingsError(
                    f"{key}={name}: its {field} has the shape {shape}, expected one value for each of {tokens} tokens"
                )
        return result

    logprobs = torch.tensor([-1.0, -2.0, -0.5, -3.0, -0.1], requires_grad=True)
    old_logprobs = logprobs.detach() + torch.tensor([0.0, 0.1, -0.1, 0.5, 0.0])
    inputs = LossInputs(old_logprobs, torch.tensor([1.0, 1.0, -1.0, -1.0, -1.0]), torch.tensor([2, 3]), 0.2, 0.2, 3.0)
    if not checked(logprobs, inputs).loss.requires_grad:
        raise SettingsError(f"{key}={name} has no gradient with respect to log π: is there a detach() too many?")
    return checked


def ppo(logprobs: Tensor, inputs: LossInputs) -> PolicyLoss:
    """PPO's clipped surrogate with separate bounds (arXiv 1707.06347 eq. 7; arXiv 2503.14476 eq. 10).

    With dual clip (arXiv 1912.09729, eq. 5) the loss of a token with A < 0 is at most c·|A|, whatever its ratio.
    """
    return _clipped(bounded_ratio(logprobs - inputs.old_logprobs), inputs)


def gspo(logprobs: Tensor, inputs: LossInputs) -> PolicyLoss:
    """GSPO: one ratio per completion, s = exp(mean over its tokens of Δ log π) (arXiv 2507.18071, eq. 7).

    The gradient of s is spread evenly over the tokens: with `seq-mean-token-mean` the loss is the paper's, and with an
    advantage per token its GSPO-token (eq. 14).
    """
    delta = logprobs - inputs.old_logprobs
    means = jagged.sums(delta.detach(), inputs.lengths) / inputs.lengths
    mean = jagged.repeat_to_tokens(means, inputs.lengths, len(delta))
    return _clipped(bounded_ratio(mean + logprobs - logprobs.detach()), inputs)


def cispo(logprobs: Tensor, inputs: LossInputs) -> PolicyLoss:
    """CISPO: −sg(clip(ratio))·A·log π; no token loses its gradient (arXiv 2506.13585, eq. 4)."""
    ratio = bounded_ratio(logprobs.detach() - inputs.old_logprobs)
    weight = ratio.clamp(1 - inputs.clip_ratio_low, 1 + inputs.clip_ratio_high)
    return PolicyLoss(-weight * inputs.advantages * logprobs, ratio, weight != ratio)


def reinforce(logprobs: Tensor, inputs: LossInputs) -> PolicyLoss:
    """REINFORCE: −A·log π, on-policy only (Williams 1992)."""
    ratio = bounded_ratio(logprobs.detach() - inputs.old_logprobs)
    return PolicyLoss(-inputs.advantages * logprobs, ratio, torch.zeros_like(ratio, dtype=torch.bool))


def _clipped(ratio: Tensor, inputs: LossInputs) -> PolicyLoss:
    clipped = ratio.clamp(1 - inputs.clip_ratio_low, 1 + inputs.clip_ratio_high)
    unclipped = -inputs.advantages * ratio
    loss = torch.maximum(unclipped, -inputs.advantages * clipped)
    if inputs.dual_clip_c is not None:
        bounded = torch.minimum(loss, -inputs.advantages * inputs.dual_clip_c)
        loss = torch.where(inputs.advantages < 0, bounded, loss)
    return PolicyLoss(loss, ratio.detach(), (loss != unclipped).detach())


def value_loss(values: Tensor, old_values: Tensor, returns: Tensor, *, clip: float) -> tuple[Tensor, Tensor]:
    """PPO's clipped value loss: ½·max((V − R)², (V_clip − R)²) with V_clip within `clip` of the old value; [tokens].

    Returns the loss, and bool: clipping removed the gradient.
    """
    bounded = old_values + (values - old_values).clamp(-clip, clip)
    unclipped, clipped = (values - returns).square(), (bounded - returns).square()
    return 0.5 * torch.maximum(unclipped, clipped), (clipped > unclipped).detach()


def token_weights(lengths: Tensor, mode: Aggregation, *, max_tokens: int) -> Tensor:
    """[completions] weight of each token of a completion in the mini-batch's loss.

    `lengths` are of the *whole* mini-batch. With `token-mean` (arXiv 2503.14476) long completions weigh more, with
    `seq-mean-token-mean` (arXiv 2402.03300) all weigh the same; `seq-mean-token-sum-norm` (arXiv 2503.20783) divides by
    `max_tokens`, the longest completion allowed, instead of the length.

    Example:
        >>> token_weights(torch.tensor([1, 3]), "token-mean", max_tokens=8)
        tensor([0.2500, 0.2500])
        >>> token_weights(torch.tensor([1, 4]), "seq-mean-token-mean", max_tokens=8)
        tensor([0.5000, 0.1250])
    """
    lengths = lengths.float()
    if mode == "token-mean":
        return torch.full_like(lengths, 1.0) / lengths.sum()
    sequence_weight = torch.full_like(lengths, 1 / len(lengths))
    if mode == "seq-mean-token-mean":
        return sequence_weight / lengths
    return sequence_weight if mode == "seq-mean-token-sum" else sequence_weight / max_tokens
