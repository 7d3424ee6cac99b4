"""Whether a policy can learn from its completions.

Rewards teach by comparison: where all completions of a prompt get one reward, there is nothing to compare. Those
without an answer all get the same, and most that are cut off have none.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from tinyzero_sdk.scoring.statistics import wilson

Fault = Literal["no_answer", "truncated", "all_wrong", "all_right", "zero_std"]

NEARLY_ALL = 0.9
"""A fraction that surely exceeds this is a fault: of 32 groups, three or fewer then have anything to compare."""

USUAL_GROUP_SIZE = 8
"""Completions that training compares, where there is only one of each prompt to judge by."""

ONE_SIDED_95 = 1.6448536269514722  # the 95% quantile of the normal distribution


@dataclass(frozen=True, slots=True)
class LearningSignal:
    """What there is to learn from completions of some prompts."""

    completions: int
    accuracy: float
    no_answer_frac: float
    """Completions without an answer."""

    truncated_frac: float | None
    """Completions that are cut off; None where unknown."""

    zero_std_frac: float | None
    """Prompts whose completions all have one reward, of those with several completions; None if none has."""

    fault: Fault | None
    """Why there is hardly anything to learn; None also where too few completions leave it open."""


def measure(
    sizes: np.ndarray,
    rewards: np.ndarray,
    correct: np.ndarray,
    no_answer: np.ndarray,
    truncated: np.ndarray | None = None,
) -> LearningSignal:
    """What there is to learn from n completions of G prompts.

    Args:
        sizes: [G] completions of each prompt, at least one.
        rewards: [n] in the order of the prompts; `correct`, `no_answer` and `truncated` are [n] bool.
        truncated: None where unknown, or where it is intended.

    Example:
        >>> rewards = np.zeros(64)
        >>> measure(np.full(32, 2), rewards, correct=rewards > 0, no_answer=rewards == 0).fault
        'no_answer'
    """
    starts, several = np.cumsum(sizes) - sizes, sizes > 1
    uniform = np.minimum.reduceat(rewards, starts) == np.maximum.reduceat(rewards, starts)
    if several.any():
        has_uniform_groups = _is_nearly_all(uniform[several], several.sum())
        compared = correct[np.repeat(uniform & several, sizes)]
    else:
        # Where a fraction p of the completions have one reward, at least p^k of the groups of k have no other.
        values, counts = np.unique(rewards, return_counts=True)
        lowest = wilson(counts.max() / len(rewards), len(rewards), ONE_SIDED_95)[0]
        has_uniform_groups = lowest**USUAL_GROUP_SIZE >= NEARLY_ALL
        compared = correct[rewards == values[counts.argmax()]]
    fault: Fault | None = None  # the likely cause, not what follows from it
    if _is_nearly_all(no_answer, len(sizes)):
        fault = "no_answer"
    elif truncated is not None and _is_nearly_all(truncated, len(sizes)):
        fault = "truncated"
    elif has_uniform_groups:
        rate = compared.mean()
        fault = "all_right" if rate >= NEARLY_ALL else "all_wrong" if rate <= 1 - NEARLY_ALL else "zero_std"
    return LearningSignal(
        completions=len(rewards),
        accuracy=float(correct.mean()),
        no_answer_frac=float(no_answer.mean()),
        truncated_frac=None if truncated is None else float(truncated.mean()),
        zero_std_frac=float(uniform[several].mean()) if several.any() else None,
        fault=fault,
    )


def _is_nearly_all(chosen: np.ndarray, prompts: int) -> bool:
    """Whether the chosen are surely nearly all; completions of one prompt may be alike, so each prompt counts once."""
    return wilson(float(chosen.mean()), prompts, ONE_SIDED_95)[0] >= NEARLY_ALL
