"""Policy losses and how they are aggregated, as pure functions of log-probabilities.

A policy loss gives one value a completion token; `token_weights` turns the mini-batch's lengths into a weight for each
token, and the loss is the weighted sum. The weights know the whole mini-batch, so no split into micro-batches
changes the loss. A new loss is one function under `@policy_loss("name")` here, with its name in
`named_losses.BUILT_IN`, or one of the user's own elsewhere, which `algorithm.policy_loss` names by its file or module.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tinyzero_sdk.errors import SettingsError
from tinyzero_trainer.algorithms.kl import bounded_ratio
from tinyzero_trainer.config import Aggregation
from tinyzero_trainer.utils import jagged as ragged
from tinyzero_trainer.utils.import_object import load_function


@dataclass(frozen=True, slots=True)
class LossInputs:
    """What a policy loss is computed from, besides log π."""

    old_logprobs: Tensor
    """[tokens] log π of each token when it was sampled."""

    advantages: Tensor
    """[tokens]"""

    lengths: Tensor
    """[completions] tokens of each; completions stand one after another, none cut in two."""

    clip_low: float
    """The ratio counts down to 1 - clip_low."""

    clip_high: float
    """The ratio counts up to 1 + clip_high."""

    dual_clip: float | None = None
    """c of dual clip; None = without."""


@dataclass(frozen=True, slots=True)
class PolicyLoss:
    """A policy loss, with what the metrics need; all [tokens]."""

    loss: Tensor
    """To be minimised; carries the gradient."""

    ratio: Tensor
    """What the advantage was weighted with before any clip, detached."""

    clipped: Tensor
    """Bool: a clip changed the loss."""


LossFunction = Callable[[Tensor, LossInputs], PolicyLoss]
POLICY_LOSSES: dict[str, LossFunction] = {}


def policy_loss(name: str) -> Callable[[LossFunction], LossFunction]:
    """Register a policy loss: a function of log π [tokens], with gradient, and its `LossInputs`."""

    def register(function: LossFunction) -> LossFunction:
        POLICY_LOSSES[name] = function
        return function

    return register


def find_policy_loss(name: str) -> LossFunction:
    """The policy loss of this name: one registered here, or a user's own by `file.py:function` or `module:function`.

    Raises:
        SettingsError: there is none; or, on a few made-up tokens, it raises, or gives no `PolicyLoss` of the right
            shape, or none that is finite and has a gradient.
    """
    if name in POLICY_LOSSES:
        return POLICY_LOSSES[name]
    function = load_function(name)

    def checked(logprobs: Tensor, given: LossInputs) -> PolicyLoss:
        result = function(logprobs, given)
        if not isinstance(result, PolicyLoss):
            raise SettingsError(f"algorithm.policy_loss={name} returned {type(result).__name__}, expected a PolicyLoss")
        for field in ("loss", "ratio", "clipped"):
            shape = tuple(getattr(result, field).shape)
            if shape != tuple(logprobs.shape):
                raise SettingsError(
                    f"algorithm.policy_loss={name}: its {field} has the shape {shape}, expected one value for each of "
                    f"{len(logprobs)} tokens"
                )
        return result

    _try_out(name, checked)
    return checked


def _try_out(name: str, loss: LossFunction) -> None:
    """Call a user's own loss on five tokens, so that its faults are seen before a model is loaded."""
    logprobs = torch.tensor([-1.0, -2.0, -0.5, -3.0, -0.1], requires_grad=True)
    old_logprobs = logprobs.detach() + torch.tensor([0.0, 0.1, -0.1, 0.5, 0.0])
    advantages = torch.tensor([1.0, 1.0, -1.0, -1.0, -1.0])
    try:
        found = loss(logprobs, LossInputs(old_logprobs, advantages, torch.tensor([2, 3]), 0.2, 0.2, 3.0)).loss
        gradient = torch.autograd.grad(found.sum(), logprobs)[0] if found.requires_grad else torch.zeros(5)
    except SettingsError:
        raise
    except Exception as error:  # a user's function may raise anything
        raise SettingsError(f"algorithm.policy_loss={name} failed on a few made-up tokens: {error!r}") from error
    if not (found.isfinite().all() and gradient.isfinite().all()):
        raise SettingsError(f"algorithm.policy_loss={name} is not finite on a few made-up tokens")
    if not gradient.any():
        raise SettingsError(
            f"algorithm.policy_loss={name} has no gradient with respect to log π: nothing would be learnt; is there "
            "a detach() too many?"
        )


@policy_loss("ppo")
def ppo(logprobs: Tensor, given: LossInputs) -> PolicyLoss:
    """PPO's clipped surrogate with separate bounds (arXiv 1707.06347 eq. 7; arXiv 2503.14476 eq. 10).

    With dual clip (arXiv 1912.09729, eq. 5) the loss of a bad token stays below c times its advantage, however
    much likelier it has become.
    """
    return _clipped(bounded_ratio(logprobs - given.old_logprobs), given)


@policy_loss("gspo")
def gspo(logprobs: Tensor, given: LossInputs) -> PolicyLoss:
    """GSPO: one ratio a completion, s = exp(mean over its tokens of Δ log π) (arXiv 2507.18071, eq. 7).

    Each token carries the same share of the gradient of s, so that with `seq-mean-token-mean` the loss is the
    paper's, and a token-level advantage is allowed too (its GSPO-token, eq. 14).
    """
    delta = logprobs - given.old_logprobs
    mean = ragged.repeat_to_tokens(ragged.means(delta.detach(), given.lengths), given.lengths, len(delta))
    return _clipped(bounded_ratio(mean + logprobs - logprobs.detach()), given)


@policy_loss("cispo")
def cispo(logprobs: Tensor, given: LossInputs) -> PolicyLoss:
    """CISPO: the clipped ratio as a constant weight of REINFORCE, so that no token loses its gradient.

    −sg(clip(ratio))·A·log π (arXiv 2506.13585, eq. 4).
    """
    ratio = bounded_ratio(logprobs.detach() - given.old_logprobs)
    weight = ratio.clamp(1 - given.clip_low, 1 + given.clip_high)
    return PolicyLoss(-weight * given.advantages * logprobs, ratio, weight != ratio)


@policy_loss("reinforce")
def reinforce(logprobs: Tensor, given: LossInputs) -> PolicyLoss:
    """REINFORCE: −A·log π, on-policy only (Williams 1992)."""
    ratio = bounded_ratio(logprobs.detach() - given.old_logprobs)
    return PolicyLoss(-given.advantages * logprobs, ratio, torch.zeros_like(ratio, dtype=torch.bool))


def _clipped(ratio: Tensor, given: LossInputs) -> PolicyLoss:
    unclipped = -given.advantages * ratio
    loss = torch.maximum(unclipped, -given.advantages * ratio.clamp(1 - given.clip_low, 1 + given.clip_high))
    if given.dual_clip is not None:
        bounded = torch.minimum(loss, -given.advantages * given.dual_clip)
        loss = torch.where(given.advantages < 0, bounded, loss)
    return PolicyLoss(loss, ratio.detach(), (loss != unclipped).detach())


def value_loss(values: Tensor, old_values: Tensor, returns: Tensor, *, clip: float) -> tuple[Tensor, Tensor]:
    """PPO's clipped value loss: ½·max((V − R)², (V_clip − R)²) with V_clip within `clip` of the old value.

    Args:
        values: [tokens] V(s_t), with gradient.
        old_values: [tokens] V(s_t) before the update.
        returns: [tokens] the target, advantage plus old value.
        clip: the value counts within old_value ± clip.

    Returns:
        [tokens] the loss, and [tokens] bool: the clip took the gradient away.
    """
    bounded = old_values + (values - old_values).clamp(-clip, clip)
    unclipped, clipped = (values - returns).square(), (bounded - returns).square()
    return 0.5 * torch.maximum(unclipped, clipped), (clipped > unclipped).detach()


def token_weights(lengths: Tensor, mode: Aggregation, *, max_tokens: int) -> Tensor:
    """[completions] the weight of each token of a completion in the loss of the mini-batch.

    Args:
        lengths: [completions] tokens of every completion of the *whole* mini-batch that counts in the loss.
        mode: `token-mean` (arXiv 2503.14476: long completions weigh more), `seq-mean-token-mean` (arXiv 2402.03300:
            all completions weigh the same), `seq-mean-token-sum`, or `seq-mean-token-sum-norm` (arXiv 2503.20783:
            a constant divisor instead of the length).
        max_tokens: the constant divisor of the last, the longest completion allowed.

    Example:
        >>> token_weights(torch.tensor([1, 3]), "token-mean", max_tokens=8)
        tensor([0.2500, 0.2500])
        >>> token_weights(torch.tensor([1, 4]), "seq-mean-token-mean", max_tokens=8)
        tensor([0.5000, 0.1250])
    """
    lengths = lengths.float()
    if mode == "token-mean":
        return torch.full_like(lengths, 1.0) / lengths.sum()
    each = torch.full_like(lengths, 1 / len(lengths))
    if mode == "seq-mean-token-mean":
        return each / lengths
    return each if mode == "seq-mean-token-sum" else each / max_tokens
