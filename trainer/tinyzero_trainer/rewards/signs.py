"""Statistical signs that a reward may be gamed, from the completions alone: none of them proves anything.

Drifts compare a step with the steps before it by the median and the median absolute deviation, which a few odd steps
do not move.
"""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median

import numpy as np

from tinyzero_trainer.types import Rollout

FEWEST_STEPS = 8  # before a drift is measured
FEWEST_PROBLEMS = 5  # paid for, before a repeated answer says anything
TO_SIGMA = 1.4826  # of the median absolute deviation of a normal distribution
LEAST_SIGMA = 0.01  # relative: what never varied may vary by that much


@dataclass(frozen=True, slots=True)
class StepStatistics:
    """Statistics of a step's completions of one task."""

    length: float | None  # mean tokens of those that were rewarded
    entropy: float | None  # mean of the policy at their tokens, of all that were trained on
    reasons: dict[str, float] = field(default_factory=dict)  # fraction of each reason

    @classmethod
    def of(cls, rollouts: Sequence[Rollout], rewarded: Sequence[Rollout]) -> "StepStatistics":
        lengths = [len(rollout.generation.token_ids) for rollout in rewarded]
        entropies = [np.asarray(rollout.entropies).mean() for rollout in rollouts if rollout.entropies]
        reasons = [rollout.score.reason for rollout in rollouts]
        return cls(
            fmean(lengths) if lengths else None,
            float(np.mean(entropies)) if entropies else None,
            {reason: reasons.count(reason) / len(reasons) for reason in dict.fromkeys(reasons)},
        )


SIGNS: Mapping[str, tuple[float, str]] = {
    "length_drift": (8.0, "the length of rewarded completions has moved by {:.0f} standard deviations"),
    "entropy_drift": (8.0, "the policy's entropy has moved by {:.0f} standard deviations"),
    "reason_jump": (0.25, "the fraction of one reason has moved by {:.0%} of all completions"),
    "repeated_answer": (0.25, "one text was paid for {:.0%} of the problems that were solved, whose answers differ"),
}
"""By name: the value from which it is reported, and how."""


def signs(now: StepStatistics, before: Sequence[StepStatistics], rewarded: Sequence[Rollout]) -> dict[str, float]:
    """The signs of a step by name; without those for which there is too little to go by."""
    values = {"repeated_answer": repeated_answer(rewarded)}
    for name in ("length", "entropy"):
        earlier = [value for statistics in before if (value := getattr(statistics, name)) is not None]
        values[f"{name}_drift"] = drift(getattr(now, name), earlier)
    if len(before) >= FEWEST_STEPS:
        reasons = set(now.reasons).union(*(statistics.reasons for statistics in before))
        values["reason_jump"] = max(
            abs(now.reasons.get(reason, 0.0) - median(statistics.reasons.get(reason, 0.0) for statistics in before))
            for reason in reasons
        )
    return {name: value for name, value in values.items() if value is not None}


def drift(value: float | None, before: Sequence[float]) -> float | None:
    """How far a value is from those before it, in their robust standard deviations.

    Example:
        >>> round(drift(30.0, [10, 11, 9, 10, 12, 10, 9, 11]), 1)
        13.5
    """
    if value is None or len(before) < FEWEST_STEPS:
        return None
    middle = median(before)
    sigma = TO_SIGMA * median(abs(other - middle) for other in before)
    return abs(value - middle) / max(sigma, LEAST_SIGMA * abs(middle), 1e-9)


def repeated_answer(rewarded: Sequence[Rollout]) -> float | None:
    """The largest fraction of the solved problems that one text solved; those of one ground truth count as one."""
    truths: dict[str, set[str]] = defaultdict(set)
    for rollout in rewarded:
        truth = json.dumps(rollout.prompt.item.ground_truth, sort_keys=True)
        for text in {rollout.text, rollout.score.answer or rollout.text}:
            truths[text].add(truth)
    problems = len(set().union(*truths.values()))
    most = max(map(len, truths.values()), default=0)
    return None if problems < FEWEST_PROBLEMS else most / problems if most > 1 else 0.0
