"""The difficulty curriculum: problems in buckets by difficulty, drawn by how often the model solves each bucket's.

Pure functions over the measured pass rates. Where problems wait until their bucket is drawn is in prompts.py.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import itemgetter
from statistics import fmean

from tinyzero_sdk.errors import SettingsError
from tinyzero_trainer.config import CurriculumConfig
from tinyzero_trainer.utils.ema import ema

SAMPLE = 1024
"""Problems whose difficulties decide where the buckets lie."""

PassRates = tuple[float | None, ...]
"""Average share of correct completions of each bucket; None = never sampled."""


def bucket_edges(difficulties: Sequence[float], buckets: int, *, task: str) -> tuple[float, ...]:
    """The least difficulty of each bucket but the first: quantiles, so that buckets are about equally large.

    Problems of equal difficulty are never parted: they go where the middle one of them belongs, so there may be fewer
    buckets than asked for.

    Args:
        difficulties: of a sample of the problems.
        buckets: how many are asked for.
        task: for the message.

    Raises:
        SettingsError: all difficulties are equal.

    Example:
        >>> bucket_edges([1.0, 1.0, 2.0, 2.0, 2.0, 3.0, 4.0], 3, task="t")
        (2.0, 3.0)
    """
    ordered = sorted(difficulties)
    if ordered[0] == ordered[-1]:
        raise SettingsError(
            f"curriculum.buckets={buckets}: all {len(ordered)} problems looked at of task {task!r} have the difficulty "
            f"{ordered[0]:g}, so there is nothing to choose between; set curriculum.buckets=0"
        )
    least: dict[int, float] = {}
    for level, equals in groupby(enumerate(ordered), key=itemgetter(1)):
        places = [place for place, _ in equals]
        bucket = (places[0] + places[-1] + 1) * buckets // (2 * len(ordered))
        least.setdefault(bucket, level)
    return tuple(least.values())[1:]


def bucket_of(difficulty: float, edges: Sequence[float]) -> int:
    """The bucket of a problem, from 0, the easiest."""
    return bisect_right(edges, difficulty)


def bucket_weights(pass_rates: PassRates, sizes: Sequence[int], config: CurriculumConfig) -> tuple[float, ...]:
    """The chance of each bucket to be drawn; they sum to 1 and none is below `config.floor`.

    What is above the floor is shared out among the problems, and so to buckets by their size, in proportion to
    (p/t)^2t · ((1-p)/(1-t))^(2-2t), where p is the bucket's pass rate and t the target. For t = ½ this is 4 p (1-p),
    the variance of a reward of 0 or 1, scaled: where all completions of a prompt earn the same, advantages are zero
    and nothing is learnt. Other targets move the peak to p = t and keep the zeros at 0 and 1. A bucket that was never
    sampled counts as one at the target, so that it is tried. The formula is ours.

    Args:
        pass_rates: of each bucket.
        sizes: problems in each, of a sample.
        config: target and floor.
    """
    interest = [1.0 if rate is None else _interest(rate, config.target_pass_rate) for rate in pass_rates]
    if not any(interest):
        interest = [1.0] * len(interest)
    wanted = [size * value for size, value in zip(sizes, interest, strict=True)]
    spare = 1 - len(wanted) * config.min_probability
    return tuple(config.min_probability + spare * value / sum(wanted) for value in wanted)


def _interest(rate: float, target: float) -> float:
    return float((rate / target) ** (2 * target) * ((1 - rate) / (1 - target)) ** (2 - 2 * target))


def updated_rates(
    pass_rates: PassRates, results: Iterable[tuple[int, bool]], config: CurriculumConfig
) -> tuple[float | None, ...]:
    """Exponential averages after a step; a bucket that was not sampled in it keeps its own.

    Args:
        pass_rates: before.
        results: bucket of the problem, and whether it was solved, of every completion sampled.
        config: the decay.
    """
    seen: dict[int, list[bool]] = {}
    for bucket, correct in results:
        seen.setdefault(bucket, []).append(correct)

    rates = {bucket: fmean(found) for bucket, found in seen.items()}
    return tuple(ema(average, rates.get(bucket), config.ema_decay) for bucket, average in enumerate(pass_rates))


def choose_bucket(weights: Sequence[float], available: Sequence[int], chance: float) -> int:
    """The bucket that a number in [0, 1) falls on, among those that still have problems.

    Args:
        weights: of all buckets.
        available: those to choose from, at least one.
        chance: uniform in [0, 1).
    """
    place = chance * sum(weights[bucket] for bucket in available)
    for bucket in available[:-1]:
        place -= weights[bucket]
        if place < 0:
            return bucket
    return available[-1]
