"""What a set of verdicts says of a model: intervals, and what several completions of a prompt are worth.

Pure functions of arrays; where the numbers come from is `summary.py`'s business. "At k" means: for k of a prompt's n
completions, drawn without replacement, on average over all draws.
"""

import math
from itertools import combinations

import numpy as np

NORMAL_95 = 1.959963984540054
"""Of a normal distribution, 95 % lies within so many standard deviations."""

_MOST_DRAWS = 256
_MOST_PAIRS = 1 << 22  # pairs of completions compared at a time
_MOST_WORK = 1 << 22  # completions looked at for one majority: about a second


def wilson(share: float, size: float, z: float = NORMAL_95) -> tuple[float, float]:
    """Wilson's interval for a share seen among `size` independent trials; (0, 1) for none.

    Source: Wilson, Probable inference, the law of succession, and statistical inference (1927): the shares p with
    (p - share)² ≤ z² p (1 - p) / size.

    Example:
        >>> [round(bound, 4) for bound in wilson(0.5, 100)]
        [0.4038, 0.5962]
    """
    if size <= 0:
        return 0.0, 1.0
    center = share + z * z / (2 * size)
    spread = z * math.sqrt(share * (1 - share) / size + z * z / (4 * size * size))
    scale = 1 + z * z / size
    # The share lies within, whatever rounding says.
    return max(0.0, min(share, (center - spread) / scale)), min(1.0, max(share, (center + spread) / scale))


def effective_size(correct: np.ndarray, size: np.ndarray) -> float:
    """How many independent completions tell as much as these, of which those of one prompt are alike.

    The variance of the share is estimated over prompts (clusters): G / (G - 1) · Σ (c_g - n_g share)² / N². It is never
    taken to be more than N completions, nor less than one for each prompt where the variance cannot be told.

    Args:
        correct: [G] correct completions of each prompt.
        size: [G] completions of each prompt.
    """
    total, prompts = float(size.sum()), len(size)
    if prompts == total:
        return total
    share = float(correct.sum()) / total
    if prompts < 2 or share in (0.0, 1.0):
        return float(prompts)
    variance = prompts / (prompts - 1) * float(((correct - share * size) ** 2).sum()) / total**2
    return total if variance <= 0 else min(total, share * (1 - share) / variance)


def pass_at_k(correct: np.ndarray, size: np.ndarray, k: int) -> np.ndarray:
    """[G] The chance that at least one of k completions is correct.

    Source: Chen et al., Evaluating large language models trained on code (2021), equation 1:
    1 - C(n - c, k) / C(n, k), as a product, which does not overflow.

    Args:
        correct: [G] correct completions c of each prompt.
        size: [G] its completions n, each at least k.
        k: how many are drawn.
    """
    none = np.ones(len(size))
    for drawn in range(k):
        none *= np.maximum(size - correct - drawn, 0) / (size - drawn)
    return 1 - none


def best_at_k(scores: np.ndarray, k: int) -> np.ndarray:
    """[G] The mean of the greatest score among k completions.

    The i-th least of n is the greatest of the draw in C(i - 1, k - 1) of C(n, k) cases: k of n for i = n, and
    (i - k) / (i - 1) times as many for each i before.

    Args:
        scores: [G, n] of each prompt, n at least k.
        k: how many are drawn.
    """
    size = scores.shape[1]
    ranks = np.arange(size, 1, -1)
    weights = k / size * np.cumprod(np.concatenate([[1.0], np.maximum(ranks - k, 0) / (ranks - 1)]))
    return np.sort(scores, axis=1)[:, ::-1] @ weights


def majority_at_k(answers: np.ndarray, correct: np.ndarray, k: int, *, seed: int = 0) -> np.ndarray:
    """[G] The chance that the answer given most often among k completions is correct.

    Among answers given equally often one is drawn; a completion without an answer has no vote, and where none of the k
    has one, the prompt is not solved. An answer given in several completions is as correct as they are on average.
    All draws are counted where there are few (at most 256 a prompt, fewer of very many prompts); else some are drawn,
    the same for every prompt of a size.

    Args:
        answers: [G, n] the answers of each prompt as integers, below 0 for none.
        correct: [G, n] whether the completions are correct.
        k: how many are drawn.
        seed: of the draws.
    """
    size = answers.shape[1]
    if k == 1:
        return np.where(answers >= 0, correct, 0.0).mean(axis=1)
    most = max(1, min(_MOST_DRAWS, _MOST_WORK // max(1, answers.size)))
    if math.comb(size, k) <= most:
        draws = [list(draw) for draw in combinations(range(size), k)]
    else:
        dice = np.random.default_rng(seed)
        draws = [dice.permutation(size)[:k].tolist() for _ in range(most)]
    total = np.zeros(len(answers))
    for draw in draws:
        total += _majority(answers[:, draw], correct[:, draw])
    return total / len(draws)


def _majority(answers: np.ndarray, correct: np.ndarray) -> np.ndarray:
    """[G] `majority_at_k` of all completions given: [G, k].

    Leading answers have equally many completions, so the mean over these is the mean over the answers.
    """
    prompts, drawn = answers.shape
    shares = np.empty(prompts)
    together = max(1, _MOST_PAIRS // drawn**2)
    for start in range(0, prompts, together):
        some = answers[start : start + together]
        votes = (some[:, :, None] == some[:, None, :]).sum(axis=2, dtype=np.int32)  # [g, k]
        votes[some < 0] = 0
        leads = (votes == votes.max(axis=1, keepdims=True)) & (votes > 0)
        right = (leads & correct[start : start + together].astype(bool)).sum(axis=1)
        shares[start : start + together] = right / np.maximum(leads.sum(axis=1), 1)
    return shares


def quantile_edges(values: np.ndarray, most: int = 5) -> list[float]:
    """Lower edges of at most `most` buckets of about equal size; each value is in the last one it reaches.

    Few different values have a bucket each.

    Args:
        values: [n] finite, n at least 1.
        most: number of buckets.
    """
    unique = np.unique(values)
    if len(unique) <= most:
        return unique.tolist()
    edges = np.quantile(values, np.arange(most) / most, method="higher")
    return np.unique(edges).tolist()
