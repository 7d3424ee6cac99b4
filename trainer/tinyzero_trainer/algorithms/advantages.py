"""From the rewards of a batch to an advantage for each completion token. Pure functions; the loss is elsewhere.

An estimator takes `AdvantageInputs` and returns [tokens]. A new one is a function, a line in `ESTIMATORS` and its name
in `config.Advantage`; which settings it makes use of, config/unused.py says.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from tinyzero_trainer.utils import jagged as ragged

STD_EPSILON = 1e-6
WHITENING_EPSILON = 1e-8


@dataclass(frozen=True, slots=True)
class AdvantageInputs:
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

    gamma: float = 1.0
    """γ, of a reward one token later."""

    gae_lambda: float = 1.0
    """λ of GAE."""

    counted: Tensor | None = None
    """[completions] bool: counts in the loss; the others' scores still count in the mean of their group. None = all."""

    def counted_tokens(self) -> Tensor | None:
        """[tokens] bool: belongs to a completion that counts in the loss; None = all."""
        return None if self.counted is None else ragged.repeat_to_tokens(self.counted, self.lengths)

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


def grpo(given: AdvantageInputs) -> Tensor:
    """How much better a completion did than its group, in standard deviations (arXiv 2402.03300, §4.1.2).

    (r − mean) / (std + 1e-6), with the unbiased std; a group of one keeps its reward; 0 throughout a group whose
    rewards are all equal.

    Example:
        >>> grpo(AdvantageInputs(torch.tensor([1.0, 0.0]), torch.tensor([2, 1]), group_size=2))
        tensor([ 0.7071,  0.7071, -0.7071])
    """
    groups = given.groups()
    if given.group_size == 1:
        return ragged.repeat_to_tokens(groups.flatten(), given.lengths)
    scaled = _centred(groups) / (groups.std(dim=1, keepdim=True) + STD_EPSILON)
    return ragged.repeat_to_tokens(scaled.flatten(), given.lengths)


def dr_grpo(given: AdvantageInputs) -> Tensor:
    """r − mean of the group: GRPO without its std, the advantage of Dr. GRPO (arXiv 2503.20783, §3.2)."""
    return ragged.repeat_to_tokens(_centred(given.groups()).flatten(), given.lengths)


def rloo(given: AdvantageInputs) -> Tensor:
    """r − mean of the *others* of the group = n/(n−1)·(r − mean) (arXiv 2402.14740, eq. 8)."""
    size = given.group_size
    return dr_grpo(given) * (size / (size - 1))


def reinforce_pp(given: AdvantageInputs) -> Tensor:
    """REINFORCE++: the discounted return from each token on, whitened over the batch (arXiv 2501.03262, §3)."""
    return whiten(_discounted_returns(given), given.counted_tokens())


def reinforce_pp_baseline(given: AdvantageInputs) -> Tensor:
    """REINFORCE++ with the group's mean as baseline: r − mean, then whitened over the batch's tokens."""
    return whiten(dr_grpo(given), given.counted_tokens())


def remax(given: AdvantageInputs) -> Tensor:
    """The return from each token on, minus what the likeliest completion earned (arXiv 2310.10505, eq. 5)."""
    assert given.greedy_rewards is not None, "remax needs the greedy completions' rewards"
    baseline = given.greedy_rewards.repeat_interleave(given.group_size)
    return _discounted_returns(given) - ragged.repeat_to_tokens(baseline, given.lengths)


def gae(given: AdvantageInputs) -> Tensor:
    """Generalised advantage estimation (arXiv 1506.02438, eq. 16), not yet whitened.

    δ_t = r_t + γ·V_{t+1} − V_t and A_t = δ_t + γλ·A_{t+1}; there is no value after the last token. The critic's
    target is A_t + V_t.
    """
    assert given.values is not None, "GAE needs a critic's values"
    rewards = ragged.to_matrix(given.token_rewards(), given.lengths)
    values = ragged.to_matrix(given.values, given.lengths)
    next_values = torch.cat([values[:, 1:], torch.zeros_like(values[:, :1])], dim=1)
    deltas = rewards + given.gamma * next_values - values
    return ragged.from_matrix(_sum_back(deltas, given.gamma * given.gae_lambda), given.lengths)


AdvantageFunction = Callable[[AdvantageInputs], Tensor]

ESTIMATORS: Mapping[str, AdvantageFunction] = {
    "grpo": grpo,
    "dr_grpo": dr_grpo,
    "rloo": rloo,
    "reinforce_pp": reinforce_pp,
    "reinforce_pp_baseline": reinforce_pp_baseline,
    "remax": remax,
    "gae": gae,
}


def whiten(values: Tensor, counted: Tensor | None = None) -> Tensor:
    """[tokens] shifted and scaled to mean 0 and (unbiased) variance 1; a lone token only shifted.

    Args:
        values: [tokens]
        counted: [tokens] bool: what the mean and the variance are of; the rest becomes 0. None = all.
    """
    if counted is not None:
        return torch.zeros_like(values).masked_scatter(counted, whiten(values[counted]))
    shifted = values - values.mean()
    return shifted if len(values) < 2 else shifted * (values.var() + WHITENING_EPSILON).rsqrt()


def _centred(groups: Tensor) -> Tensor:
    # Equal rewards must give exactly 0: the rounding error of their mean would otherwise be a signal.
    varies = groups.amax(dim=1, keepdim=True) > groups.amin(dim=1, keepdim=True)
    return torch.where(varies, groups - groups.mean(dim=1, keepdim=True), 0.0)


def _discounted_returns(given: AdvantageInputs) -> Tensor:
    rewards = ragged.to_matrix(given.token_rewards(), given.lengths)
    return ragged.from_matrix(_sum_back(rewards, given.gamma), given.lengths)


def _sum_back(values: Tensor, factor: float) -> Tensor:
    """S_t = v_t + factor·S_{t+1} along the last dimension."""
    sums, running = torch.empty_like(values), torch.zeros_like(values[:, 0])
    for place in reversed(range(values.shape[1])):
        running = values[:, place] + factor * running
        sums[:, place] = running
    return sums
