"""Statistics of scores: confidence intervals, pass@k, majority@k and best@k, as pure functions of arrays.

`correct` and `size` are [G]: the correct completions of each prompt, and all of them. "At k" means: for k of a
prompt's n completions, sampled without replacement, averaged over all samples.
"""

import math
from functools import cache
from itertools import combinations

import numpy as np

NORMAL_95 = 1.959963984540054  # the 97.5% quantile of the normal distribution
_MOST_COUNTED = 256  # up to this many draws of a prompt are all counted
_LEAST_DRAWN = 10_000  # draws of all prompts together; leaves an error below 0.5 points
_MOST_WORK = 1 << 22  # completions read to count all draws for one majority: about half a second
_USUAL_WORK = 1 << 20  # completions read for sampled draws, if these are enough draws
_TOGETHER = 1 << 20  # completions counted at a time
EXACT_FREEDOM = 100  # degrees of freedom from which an expansion gives Student's t to 10 digits


def wilson(rate: float, size: float, z: float = NORMAL_95) -> tuple[float, float]:
    """Wilson's interval for a proportion observed in `size` independent trials; (0, 1) for none.

    Source: Wilson, Probable inference, the law of succession, and statistical inference (1927): the rates p with
    (p - rate)² ≤ z² p (1 - p) / size.

    Example:
        >>> [round(bound, 4) for bound in wilson(0.5, 100)]
        [0.4038, 0.5962]
    """
    if size <= 0:
        return 0.0, 1.0
    center = rate + z * z / (2 * size)
    spread = z * math.sqrt(rate * (1 - rate) / size + z * z / (4 * size * size))
    scale = 1 + z * z / size
    # The rate lies within, in spite of rounding.
    return max(0.0, min(rate, (center - spread) / scale)), min(1.0, max(rate, (center + spread) / scale))


def effective_size(correct: np.ndarray, size: np.ndarray) -> float:
    """Effective sample size: how many independent completions are as informative as these clusters.

    The variance of the rate is estimated over prompts (clusters): G / (G - 1) · Σ (c_g - n_g rate)² / N². It is never
    taken to be more than N completions, nor less than one for each prompt where the variance is unknown.
    """
    total, prompts = float(size.sum()), len(size)
    if prompts == total:
        return total
    rate = float(correct.sum()) / total
    if prompts < 2 or rate in (0.0, 1.0):
        return float(prompts)
    variance = prompts / (prompts - 1) * float(((correct - rate * size) ** 2).sum()) / total**2
    return total if variance <= 0 else min(total, rate * (1 - rate) / variance)


def standard_error(correct: np.ndarray, size: np.ndarray) -> float:
    """Standard error of the accuracy, the mean over prompts; 0 for a single prompt, where it is unknown.

    Completions of one prompt are not independent: the prompts' rates are what varies.
    """
    return float(np.std(correct / size, ddof=1)) / math.sqrt(len(size)) if len(size) > 1 else 0.0


def interval_of_rate(correct: np.ndarray, size: np.ndarray) -> tuple[float, float]:
    """95% interval of the rate of correct completions, those of one prompt taken as alike.

    Wilson's, for `effective_size` completions; where the variance comes from few prompts it may itself be far off, so
    Student's t with G - 1 degrees of freedom stands in for the normal quantile (Korn and Graubard, Confidence intervals
    for proportions with small expected number of positive counts estimated from survey data, 1998).
    """
    total, prompts = float(size.sum()), len(size)
    rate = float(correct.sum()) / total
    has_variance = 1 < prompts < total and 0 < rate < 1
    return wilson(rate, effective_size(correct, size), student_t(prompts - 1) if has_variance else NORMAL_95)


def interval_of_mean_rate(rates: np.ndarray, size: np.ndarray) -> tuple[float, float]:
    """95% interval of the mean over prompts of a rate, such as pass@k, each estimated from `size` completions.

    As `interval_of_rate`, with every prompt counted as one of average size.
    """
    sizes = np.full(len(rates), size.mean())
    return interval_of_rate(rates * sizes, sizes)


def interval_of_mean(values: np.ndarray) -> tuple[float, float] | None:
    """95% interval of the mean of n independent values, by Student's t; None for a single one.

    For the difference of two models, the values are their problems' differences: Miller, Adding error bars to evals
    (arXiv 2411.00640, 2024).
    """
    if len(values) < 2:
        return None
    mean = float(values.mean())
    spread = student_t(len(values) - 1) * float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return mean - spread, mean + spread


def bootstrap_interval(values: np.ndarray, resamples: int, *, seed: int = 0) -> tuple[float, float] | None:
    """As `interval_of_mean`, from the quantiles of the means of samples drawn with replacement.

    Source: Efron, Bootstrap methods: another look at the jackknife (1979). Of problems' differences this is the paired
    bootstrap of Koehn, Statistical significance tests for machine translation evaluation (2004).
    """
    if len(values) < 2:
        return None
    dice, means = np.random.default_rng(seed), list[np.ndarray]()
    together = max(1, _TOGETHER // len(values))
    for start in range(0, resamples, together):
        draws = dice.integers(0, len(values), (min(together, resamples - start), len(values)))
        means.append(values[draws].mean(axis=1))
    low, high = np.quantile(np.concatenate(means), [0.025, 0.975]).tolist()
    return low, high


@cache
def student_t(freedom: int) -> float:
    """The 97.5% quantile of Student's t distribution.

    Source: Abramowitz and Stegun, Handbook of mathematical functions (1964): 26.7.3 and 26.7.4, the distribution as a
    finite sum, solved by bisection; for many degrees of freedom 26.7.5, an expansion about the normal quantile.

    Example:
        >>> [round(student_t(freedom), 3) for freedom in (1, 4, 30, 1000)]
        [12.706, 2.776, 2.042, 1.962]
    """
    if freedom >= EXACT_FREEDOM:
        z = NORMAL_95
        first = (z**3 + z) / 4
        second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
        third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
        fourth = (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / 92160
        return z + first / freedom + second / freedom**2 + third / freedom**3 + fourth / freedom**4
    low, high = 0.0, 20.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if _probability_within(middle, freedom) > 0.95 else (middle, high)
    return high


def _probability_within(t: float, freedom: int) -> float:
    """Probability that Student's t lies between -t and t."""
    angle = math.atan(t / math.sqrt(freedom))
    odd = freedom % 2
    term = math.cos(angle) if odd else 1.0
    total = 0.0
    for step in range(2 + odd, freedom + 1, 2):  # the term of cos^(step - 2)
        total += term
        term *= (step - 1) / step * math.cos(angle) ** 2
    total *= math.sin(angle)
    return (angle + total) * 2 / math.pi if odd else total


def pass_at_k(correct: np.ndarray, size: np.ndarray, k: int) -> np.ndarray:
    """[G] Probability that at least one of k completions is correct; sizes are at least k.

    Source: Chen et al., Evaluating large language models trained on code (2021), equation 1:
    1 - C(n - c, k) / C(n, k), as a product, which does not overflow.
    """
    none = np.ones(len(size))
    for drawn in range(k):
        none *= np.maximum(size - correct - drawn, 0) / (size - drawn)
    return 1 - none


def best_at_k(scores: np.ndarray, k: int) -> np.ndarray:
    """[G] The mean of the greatest score among k completions, of [G, n] scores, n at least k.

    The i-th least of n is the greatest of the draw in C(i - 1, k - 1) of C(n, k) cases: k of n for i = n, and
    (i - k) / (i - 1) times as many for each i before.
    """
    size = scores.shape[1]
    ranks = np.arange(size, 1, -1)
    weights = k / size * np.cumprod(np.concatenate([[1.0], np.maximum(ranks - k, 0) / (ranks - 1)]))
    return np.sort(scores, axis=1)[:, ::-1] @ weights


def draws_each(prompts: int, k: int) -> int:
    """How many draws of each prompt `majority_at_k` takes, where not all are counted."""
    return math.ceil(max(_LEAST_DRAWN, _USUAL_WORK // k) / max(1, prompts))


def majority_at_k(
    answers: np.ndarray, correct: np.ndarray, k: int, *, draws: int | None = None, seed: int = 0
) -> np.ndarray:
    """[G] Probability that the most frequent answer among k completions is correct.

    Among answers given equally often one is drawn; a completion without an answer has no vote, and where none of the k
    has one, the prompt is not solved. An answer given in several completions is as correct as they are on average.
    All draws are counted where there are few; else `draws` of each prompt are drawn (None = `draws_each`), for every
    prompt its own: its completions are shuffled, and cut into draws.

    Args:
        answers: [G, n] the answers of each prompt as integers, below 0 for none.
        correct: [G, n] whether the completions are correct.
    """
    prompts, size = answers.shape
    if k == 1:
        return np.where(answers >= 0, correct, 0.0).mean(axis=1)
    draws = draws_each(prompts, k) if draws is None else draws
    votes = np.where(answers < 0, -1, answers.astype(np.int64) * 2 + correct.astype(bool))
    if math.comb(size, k) <= min(_MOST_COUNTED, max(draws, _MOST_WORK // max(1, answers.size))):
        every = combinations(range(size), k)
        return np.mean([_majority(votes[:, list(draw)]) for draw in every], axis=0)
    dice = np.random.default_rng([seed, size, k])
    total, left = np.zeros(prompts), draws
    while left > 0:
        cut = min(size // k, left)
        times = min(left // cut, max(1, _TOGETHER // votes.size))
        shuffled = dice.permuted(np.repeat(votes, times, axis=0), axis=1)[:, : cut * k]
        total += _majority(shuffled.reshape(-1, k)).reshape(prompts, times * cut).sum(axis=1)
        left -= times * cut
    return total / draws


def _majority(votes: np.ndarray) -> np.ndarray:
    """[G] `majority_at_k` of all completions given: [G, k] twice the answer, and 1 more for a correct one.

    Leading answers have equally many completions, so the mean over these is the mean over the answers.
    """
    prompts, drawn = votes.shape
    together = max(1, _TOGETHER // drawn)
    if prompts > together:
        return np.concatenate([_majority(votes[start : start + together]) for start in range(0, prompts, together)])
    votes = np.sort(votes, axis=1)
    answers = votes >> 1  # -1 stays below 0
    begins = np.ones(votes.shape, bool)  # of a run of one answer
    begins[:, 1:] = answers[:, 1:] != answers[:, :-1]
    starts = np.flatnonzero(begins)
    answered = answers.ravel()[starts] >= 0
    counts = np.diff(starts, append=votes.size) * answered
    right = np.add.reduceat((votes & 1).ravel(), starts)
    prompt = starts // drawn
    most = np.maximum.reduceat(counts, np.flatnonzero(starts % drawn == 0))
    leads = (counts == most[prompt]) & answered
    leading = np.bincount(prompt, counts * leads, prompts)
    return np.bincount(prompt, right * leads, prompts) / np.maximum(leading, 1)


def named_ranges(values: np.ndarray) -> list[tuple[str, np.ndarray]]:
    """At most five ranges of the values, the least first: each its name and the [n] values in it; NaN is in none.

    The ranges hold about equally many values, or one value each where there are no more than five different ones.

    Example:
        >>> [(name, chosen.tolist()) for name, chosen in named_ranges(np.array([3.5, 3.0, np.nan, 3.5]))]
        [('3', [False, True, False, False]), ('3.5', [True, False, False, True])]
    """
    known = np.isfinite(values)
    if not known.any():
        return []
    edges = np.unique(values[known])
    if len(edges) > 5:
        edges = np.unique(np.quantile(values[known], np.arange(5) / 5, method="higher"))
    bins = np.where(known, np.searchsorted(edges, values, side="right"), 0)
    ranges = []
    for index in np.unique(bins[known]).tolist():
        chosen = bins == index
        low, high = (f"{round(float(bound), 3):g}" for bound in (values[chosen].min(), values[chosen].max()))
        ranges.append((low if low == high else f"{low} to {high}", chosen))
    return ranges
