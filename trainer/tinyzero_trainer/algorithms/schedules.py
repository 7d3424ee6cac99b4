"""Schedules of the learning rate, the temperature and the KL coefficient, as functions of the step."""

import math
from dataclasses import dataclass
from typing import Literal

Decay = Literal["constant", "linear", "cosine"]


@dataclass(frozen=True, slots=True)
class StepSettings:
    """The scheduled settings of one step."""

    learning_rate: float  # of the policy
    temperature: float = 1.0
    """Completions are sampled at it; the policy is the distribution at this temperature."""

    kl_coefficient: float = 0.0  # weight of the KL, adapted if it adapts


def warmed_up(peak: float, step: int, warmup_steps: int) -> float:
    """Linear warm-up to `peak`, then constant. `step` counts from 1.

    Example:
        >>> [warmed_up(1.0, step, warmup_steps=4) for step in (1, 2, 4, 5)]
        [0.25, 0.5, 1.0, 1.0]
    """
    return peak * min(1.0, step / max(1, warmup_steps))


def decayed(start: float, end: float, step: int, steps: int, shape: Decay) -> float:
    """From `start` at step 1 to `end` at step `steps`, and `end` from there on; `start` before.

    Example:
        >>> [round(decayed(1.0, 0.0, step, 5, "cosine"), 2) for step in (0, 1, 2, 3, 4, 5, 6)]
        [1.0, 1.0, 0.85, 0.5, 0.15, 0.0, 0.0]
        >>> decayed(1.0, 0.5, 3, 5, "linear")
        0.75
    """
    if shape == "constant":
        return start
    progress = min(1.0, max(0.0, (step - 1) / max(1, steps - 1)))
    remaining = 1 - progress if shape == "linear" else 0.5 * (1 + math.cos(math.pi * progress))
    return end + (start - end) * remaining
