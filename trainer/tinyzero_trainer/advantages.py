"""From the rewards of a batch to an advantage for each completion token. Pure functions; the loss is elsewhere.

An estimator takes an `Outcome` and returns [tokens]. A new one is a function and a line in `ESTIMATORS`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from tinyzero_trainer import ragged

STD_EPSILON = 1e-6
WHITENING_EPSILON = 1e-8


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a batch of completions earned; groups one after another, all of one size."""

    rewards: Tensor
    """[completions] the score of each, finite."""

    lengths: Tensor
    """[completions] tokens of each, at least 1."""

    group_size: int
    """Completions of a prompt."""

    penalties: Tensor | None = None
    """[tokens] taken off each token's reward, such as β·KL; None = nothing."""

    values: Tensor | None = None
    """[tokens] V(s_t), the critic's estimate before the token was drawn; GAE needs it."""

    greedy_rewards: Tensor | None = None
    """[groups] the score of the likeliest completion of each prompt; ReMax needs it."""

    discount: float = 1.0
    """γ, of a reward one token later."""

    trace_decay: float = 1.0
    """λ of GAE."""

    def groups(self) -> Tensor:
        """[groups, samples] what each completion earned, penalties included."""
        earned = self.rewards
        if self.penalties is not None:
            earned = earned - ragged.sums(self.penalties, self.lengths)
        return earned.view(-1, self.group_size)

    def token_rewards(self) -> Tensor:
        """[tokens] minus the penalty at each token, and the score at a completion's last one."""
        at_end = torch.zeros(int(self.lengths.sum()), dtype=self.rewards.dtype, device=self.rewards.device)
        at_end[ragged.last_tokens(self.lengths)] = self.rewards
        return at_end if self.penalties is None else at_end - self.penalties


def grpo(outcome: Outcome) -> Tensor:
    """How much better a completion did than its group, in standard deviations (arXiv 2402.03300, §4.1.2).

    (r − mean) / (std + 1e-6), with the unbiased std; a group of one keeps its reward; 0 throughout a group whose
    rewards are all equal.

    Example:
        >>> grpo(Outcome(torch.tensor([1.0, 0.0]), torch.tensor([2, 1]), group_size=2))
        tensor([ 0.7071,  0.7071, -0.7071])
    """
    groups = outcome.groups()
    if outcome.group_size == 1:
        return ragged.spread(groups.flatten(), outcome.lengths)
    scaled = _centred(groups) / (groups.std(dim=1, keepdim=True) + STD_EPSILON)
    return ragged.spread(scaled.flatten(), outcome.lengths)


def centred(outcome: Outcome) -> Tensor:
    """r − mean of the group: GRPO without its std, the advantage of Dr. GRPO (arXiv 2503.20783, §3.2)."""
    return ragged.spread(_centred(outcome.groups()).flatten(), outcome.lengths)


def rloo(outcome: Outcome) -> Tensor:
    """r − mean of the *others* of the group = n/(n−1)·(r − mean) (arXiv 2402.14740, eq. 8)."""
    size = outcome.group_size
    return centred(outcome) * (size / (size - 1))


def reinforce_pp(outcome: Outcome) -> Tensor:
    """REINFORCE++: the discounted return from each token on, whitened over the batch (arXiv 2501.03262, §3)."""
    return whiten(_discounted_returns(outcome))


def reinforce_pp_baseline(outcome: Outcome) -> Tensor:
    """REINFORCE++ with the group's mean as baseline: r − mean, then whitened over the batch's tokens."""
    return whiten(centred(outcome))


def remax(outcome: Outcome) -> Tensor:
    """The return from each token on, minus what the likeliest completion earned (arXiv 2310.10505, eq. 5)."""
    assert outcome.greedy_rewards is not None, "remax needs the greedy completions' rewards"
    baseline = outcome.greedy_rewards.repeat_interleave(outcome.group_size)
    return _discounted_returns(outcome) - ragged.spread(baseline, outcome.lengths)


def gae(outcome: Outcome) -> Tensor:
    """Generalised advantage estimation (arXiv 1506.02438, eq. 16), not yet whitened.

    δ_t = r_t + γ·V_{t+1} − V_t and A_t = δ_t + γλ·A_{t+1}; there is no value after the last token. The critic's
    target is A_t + V_t.
    """
    assert outcome.values is not None, "GAE needs a critic's values"
    rewards = ragged.to_matrix(outcome.token_rewards(), outcome.lengths)
    values = ragged.to_matrix(outcome.values, outcome.lengths)
    next_values = torch.cat([values[:, 1:], torch.zeros_like(values[:, :1])], dim=1)
    deltas = rewards + outcome.discount * next_values - values
    return ragged.from_matrix(_sum_back(deltas, outcome.discount * outcome.trace_decay), outcome.lengths)


Estimator = Callable[[Outcome], Tensor]

ESTIMATORS: Mapping[str, Estimator] = {
    "grpo": grpo,
    "dr_grpo": centred,
    "rloo": rloo,
    "reinforce_pp": reinforce_pp,
    "reinforce_pp_baseline": reinforce_pp_baseline,
    "remax": remax,
    "gae": gae,
}


def whiten(values: Tensor) -> Tensor:
    """[tokens] shifted and scaled to mean 0 and (unbiased) variance 1; a lone token only shifted."""
    shifted = values - values.mean()
    return shifted if len(values) < 2 else shifted * (values.var() + WHITENING_EPSILON).rsqrt()


def _centred(groups: Tensor) -> Tensor:
    # Equal rewards must give exactly 0: the rounding error of their mean would otherwise be a signal.
    varies = groups.amax(dim=1, keepdim=True) > groups.amin(dim=1, keepdim=True)
    return torch.where(varies, groups - groups.mean(dim=1, keepdim=True), 0.0)


def _discounted_returns(outcome: Outcome) -> Tensor:
    rewards = ragged.to_matrix(outcome.token_rewards(), outcome.lengths)
    return ragged.from_matrix(_sum_back(rewards, outcome.discount), outcome.lengths)


def _sum_back(values: Tensor, factor: float) -> Tensor:
    """S_t = v_t + factor·S_{t+1} along the last dimension."""
    sums, running = torch.empty_like(values), torch.zeros_like(values[:, 0])
    for place in reversed(range(values.shape[1])):
        running = values[:, place] + factor * running
        sums[:, place] = running
    return sums
