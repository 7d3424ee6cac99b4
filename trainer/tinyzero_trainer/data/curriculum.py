"""The difficulty curriculum: problems in buckets by difficulty, sampled by the model's pass rate on each bucket.

Pure functions over the measured pass rates. Problems wait in prompts.py until their bucket is sampled.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from itertools import groupby
from math import isnan
from operator import itemgetter
from statistics import fmean

from tinyzero_sdk.errors import SettingsError
from tinyzero_trainer.config import CurriculumConfig
from tinyzero_trainer.utils.ema import ema

SAMPLE = 1024
"""Problems whose difficulties set the edges of the buckets."""

PassRates = tuple[float | None, ...]
"""Average fraction of correct completions of each bucket; None = never sampled."""


def bucket_edges(difficulties: Sequence[float], buckets: int, *, task: str) -> tuple[float, ...]:
    """The lowest difficulty of each bucket but the first: quantiles, so that buckets are about equally large.

    Problems of equal difficulty stay together, in the bucket of the middle one, so there may be fewer buckets than
    requested, and where all are equal there is one.

    Raises:
        SettingsError: a difficulty is unknown (NaN).

    Example:
        >>> bucket_edges([1.0, 1.0, 2.0, 2.0, 2.0, 3.0, 4.0], 3, task="t")
        (2.0, 3.0)
    """
    if any(map(isnan, difficulties)):
        raise SettingsError(
            f"curriculum.buckets={buckets} needs the difficulty of each problem of task {task!r}; give it as "
            "extra_info.difficulty in data.path, or set curriculum.buckets=0"
        )
    ordered = sorted(difficulties)
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
    """The probability of each bucket; they sum to 1 and none is below `config.min_probability`.

    What is above that minimum is divided among the problems, and so among buckets by size, in proportion to
    (p/t)^2t · ((1-p)/(1-t))^(2-2t), where p is the bucket's pass rate and t the target. For t = ½ this is 4 p (1-p),
    the variance of a reward of 0 or 1, scaled: where all completions of a prompt score the same, advantages are zero
    and train nothing. Other targets move the peak to p = t and keep the zeros at 0 and 1. A bucket that was never
    sampled counts as one at the target, so that it is tried. The formula is this project's own.
    """
    t = config.target_pass_rate
    interest = [1.0 if p is None else (p / t) ** (2 * t) * ((1 - p) / (1 - t)) ** (2 - 2 * t) for p in pass_rates]
    if not any(interest):
        interest = [1.0] * len(interest)
    wanted = [size * value for size, value in zip(sizes, interest, strict=True)]
    spare = 1 - len(wanted) * config.min_probability
    return tuple(config.min_probability + spare * value / sum(wanted) for value in wanted)


def updated_rates(
    pass_rates: PassRates, results: Iterable[tuple[int, bool]], config: CurriculumConfig
) -> tuple[float | None, ...]:
    """Exponential averages after a step; a bucket that was not sampled in it keeps its own."""
    seen: dict[int, list[bool]] = {}
    for bucket, correct in results:
        seen.setdefault(bucket, []).append(correct)
    rates = {bucket: fmean(outcomes) for bucket, outcomes in seen.items()}
    return tuple(ema(average, rates.get(bucket), config.ema_decay) for bucket, average in enumerate(pass_rates))


def choose_bucket(weights: Sequence[float], available: Sequence[int], chance: float) -> int:
    """The bucket that a number in [0, 1) falls on, among those that still have problems."""
    place = chance * sum(weights[bucket] for bucket in available)
    for bucket in available[:-1]:
        place -= weights[bucket]
        if place < 0:
            return bucket
    return available[-1]
