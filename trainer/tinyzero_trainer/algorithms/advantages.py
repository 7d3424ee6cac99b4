"""From the rewards of a batch to an advantage for each completion token. Pure functions; the loss is elsewhere.

An estimator takes a `TrainingBatch` and returns [tokens]. A new one is a function here and a line in kinds.py, or a
user's own.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tinyzero_sdk.errors import SettingsError
from tinyzero_trainer.algorithms.batch import TrainingBatch
from tinyzero_trainer.algorithms.kinds import ESTIMATORS, estimator_of
from tinyzero_trainer.algorithms.user_functions import call_own, load_function
from tinyzero_trainer.utils import jagged

STD_EPSILON = 1e-6
WHITENING_EPSILON = 1e-8

AdvantageFunction = Callable[[TrainingBatch], Tensor]


def find_estimator(name: str) -> AdvantageFunction:
    """The estimator of this name: one of this file, or a user's own, which is tried on a few synthetic tokens."""
    if name in ESTIMATORS:
        return globals()[name]
    key = "algorithm.advantage_estimator"
    function, needs = load_function(key, name), estimator_of(name).needs

    def checked(batch: TrainingBatch) -> Tensor:
        advantages, tokens = call_own(key, name, function, batch), int(batch.lengths.sum())
        if getattr(advantages, "shape", None) != (tokens,) or not advantages.is_floating_point():
            returned = f"{key}={name} returned {advantages!r:.60}"
            raise SettingsError(f"{returned}, expected a float tensor with an advantage for each of {tokens} tokens")
        return advantages

    lengths, tokens = torch.tensor([2, 1, 1, 3]), torch.linspace(-2.0, -0.5, 7)
    batch = TrainingBatch(torch.tensor([1.0, 0.0, 0.5, 0.0]), lengths, group_size=2, gamma=0.9, gae_lambda=0.9)
    columns: dict[str, dict[str, Any]] = {
        "critic": {"values": tokens},
        "teacher": {"teacher_logprobs": tokens / 2},
        "greedy": {"greedy_rewards": torch.tensor([1.0, 0.0])},
        "parts": {"reward_parts": batch.rewards[:, None], "part_weights": torch.ones(4, 1)},
        "old_logprobs": {"old_logprobs": tokens},
    }
    for need in needs:
        batch = replace(batch, **columns[need])
    if not (advantages := checked(batch)).isfinite().all():
        raise SettingsError(f"{key}={name} is not finite on a few synthetic tokens: {advantages}")
    return checked


def grpo(batch: TrainingBatch) -> Tensor:
    """(r − mean of the group) / (std + 1e-6), with the unbiased std (arXiv 2402.03300, §4.1.2).

    A group of one keeps its reward; a group of equal rewards has 0.

    Example:
        >>> grpo(TrainingBatch(torch.tensor([1.0, 0.0]), torch.tensor([2, 1]), group_size=2))
        tensor([ 0.7071,  0.7071, -0.7071])
    """
    groups = batch.group_rewards()
    if batch.group_size > 1:
        groups = _of_known(_normalised, groups, batch.known)
    return jagged.repeat_to_tokens(groups.flatten(), batch.lengths)


def dr_grpo(batch: TrainingBatch) -> Tensor:
    """r − mean of the group: GRPO without its std, the advantage of Dr. GRPO (arXiv 2503.20783, §3.2)."""
    centred = _of_known(_centred, batch.group_rewards(), batch.known)
    return jagged.repeat_to_tokens(centred.flatten(), batch.lengths)


def rloo(batch: TrainingBatch) -> Tensor:
    """r − mean of the *others* of the group = n/(n−1)·(r − mean) (arXiv 2402.14740, eq. 8)."""
    scaled = _of_known(
        lambda groups: _centred(groups) * (groups.shape[1] / (groups.shape[1] - 1)), batch.group_rewards(), batch.known
    )
    return jagged.repeat_to_tokens(scaled.flatten(), batch.lengths)


def gdpo(batch: TrainingBatch) -> Tensor:
    """GRPO's advantage of each part of the reward, added up by weight, over their std in the batch (arXiv 2601.05242).

    That is, Σ_k w_k·(r_k − mean of the group) / (std of the group + 1e-6); the sum's mean over the batch is 0 already.
    A part that is equal in a group counts nothing there.
    """
    assert batch.reward_parts is not None, "GDPO needs the parts of the rewards"
    assert batch.part_weights is not None, "GDPO needs the weights of the parts"
    parts, weights = (
        column.view(-1, batch.group_size, column.shape[1]) for column in (batch.reward_parts, batch.part_weights)
    )
    summed = (weights * _of_known(_normalised, parts, batch.known)).sum(dim=2).view(1, -1)
    scaled = _of_known(lambda sums: sums / (sums.std() + STD_EPSILON), summed, batch.known)
    return jagged.repeat_to_tokens(scaled.flatten(), batch.lengths)


def reinforce_pp(batch: TrainingBatch) -> Tensor:
    """REINFORCE++: discounted return at each token, whitened over the batch (arXiv 2501.03262, §3)."""
    return whiten(_discounted_returns(batch), batch.token_mask())


def reinforce_pp_baseline(batch: TrainingBatch) -> Tensor:
    """REINFORCE++ with the group's mean as baseline: r − mean, whitened over the batch's tokens."""
    return whiten(dr_grpo(batch), batch.token_mask())


def remax(batch: TrainingBatch) -> Tensor:
    """Return at each token, minus the reward of the greedy completion (arXiv 2310.10505, eq. 5)."""
    assert batch.greedy_rewards is not None, "remax needs the greedy completions' rewards"
    baseline = batch.greedy_rewards.repeat_interleave(batch.group_size)
    return _discounted_returns(batch) - jagged.repeat_to_tokens(baseline, batch.lengths)


def gae(batch: TrainingBatch) -> Tensor:
    """Generalised advantage estimation (arXiv 1506.02438, eq. 16), not yet whitened.

    δ_t = r_t + γ·V_{t+1} − V_t and A_t = δ_t + γλ·A_{t+1}; the value after the last token is 0. The critic's target
    is A_t + V_t.
    """
    assert batch.values is not None, "GAE needs a critic's values"
    rewards = jagged.to_matrix(batch.token_rewards(), batch.lengths)
    values = jagged.to_matrix(batch.values, batch.lengths)
    next_values = torch.cat([values[:, 1:], torch.zeros_like(values[:, :1])], dim=1)
    deltas = rewards + batch.gamma * next_values - values
    return jagged.from_matrix(_discounted_sums(deltas, batch.gamma * batch.gae_lambda), batch.lengths)


def raft(batch: TrainingBatch) -> Tensor:
    """1: with wrong completions masked, −A·log π is supervised fine-tuning on the right ones (arXiv 2304.06767)."""
    return torch.ones(int(batch.lengths.sum()))


def on_policy_distillation(batch: TrainingBatch) -> Tensor:
    """log π_teacher − log π_old: its policy gradient is that of KL(π ‖ π_teacher) (arXiv 2306.08543, §2.2).

    Only of each token's own KL: the discount is 0.
    """
    assert batch.teacher_logprobs is not None, "distillation needs the teacher's log-probabilities"
    assert batch.old_logprobs is not None, "distillation needs the policy's log-probabilities before the update"
    return batch.teacher_logprobs - batch.old_logprobs


def whiten(values: Tensor, counted: Tensor | None = None) -> Tensor:
    """[tokens] shifted and scaled to mean 0 and unbiased variance 1, of those `counted` (bool); others become 0."""
    if counted is not None:
        return torch.zeros_like(values).masked_scatter(counted, whiten(values[counted]))
    shifted = values - values.mean()
    return shifted if len(values) < 2 else shifted * (values.var() + WHITENING_EPSILON).rsqrt()


def _of_known(function: Callable[[Tensor], Tensor], groups: Tensor, known: Tensor | None) -> Tensor:
    """`function` of groups, [groups, group_size, …], as if those whose score is unknown were not there; they get 0."""
    if known is None:
        return function(groups)
    result = torch.zeros_like(groups)
    for place, some in enumerate(known.view(groups.shape[:2])):
        if some.sum() > 1:  # one alone has nothing to be compared with
            result[place, some] = function(groups[place, some][None])[0]
    return result


def _normalised(groups: Tensor) -> Tensor:
    return _centred(groups) / (groups.std(dim=1, keepdim=True) + STD_EPSILON)


def _centred(groups: Tensor) -> Tensor:
    # Equal rewards must give exactly 0: the rounding error of their mean would otherwise be a signal.
    varies = groups.amax(dim=1, keepdim=True) > groups.amin(dim=1, keepdim=True)
    return torch.where(varies, groups - groups.mean(dim=1, keepdim=True), 0.0)


def _discounted_returns(batch: TrainingBatch) -> Tensor:
    rewards = jagged.to_matrix(batch.token_rewards(), batch.lengths)
    return jagged.from_matrix(_discounted_sums(rewards, batch.gamma), batch.lengths)


def _discounted_sums(values: Tensor, factor: float) -> Tensor:
    """S_t = v_t + factor·S_{t+1} along the last dimension."""
    sums, running = torch.empty_like(values), torch.zeros_like(values[:, 0])
    for position in reversed(range(values.shape[1])):
        running = values[:, position] + factor * running
        sums[:, position] = running
    return sums
