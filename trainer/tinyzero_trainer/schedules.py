"""Quantities that change over a run, as functions of the step."""


def warmed_up(peak: float, step: int, warmup_steps: int) -> float:
    """Linear warm-up to `peak`, then constant. `step` counts from 1.

    Example:
        >>> [warmed_up(1.0, step, warmup_steps=4) for step in (1, 2, 4, 5)]
        [0.25, 0.5, 1.0, 1.0]
    """
    return peak * min(1.0, step / max(1, warmup_steps))
