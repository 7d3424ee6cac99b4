"""From the rewards of a batch to one advantage a completion. Pure functions; masking and loss are elsewhere."""

import torch
from torch import Tensor

STD_EPSILON = 1e-6


def group_advantages(rewards: Tensor, *, normalize_by_std: bool) -> Tensor:
    """GRPO: how much better a completion did than the others of its prompt (arXiv 2402.03300, §4.1.2).

    Args:
        rewards: [groups, samples], finite.
        normalize_by_std: divide by the group's standard deviation (unbiased) plus 1e-6; without it,
            Dr. GRPO's advantage (arXiv 2503.20783).

    Returns:
        [groups, samples]; 0 throughout a group whose rewards are all equal.

    Example:
        >>> group_advantages(torch.tensor([[1.0, 0.0], [1.0, 1.0]]), normalize_by_std=False)
        tensor([[ 0.5000, -0.5000],
                [ 0.0000,  0.0000]])
    """
    # Equal rewards must give exactly 0: the rounding error of their mean would otherwise be a signal.
    varies = rewards.amax(dim=1, keepdim=True) > rewards.amin(dim=1, keepdim=True)
    centred = torch.where(varies, rewards - rewards.mean(dim=1, keepdim=True), 0.0)
    if not normalize_by_std:
        return centred
    return centred / (rewards.std(dim=1, keepdim=True) + STD_EPSILON)
