"""Estimators against what they stand for: every draw counted, every equation solved."""

import math
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinyzero_sdk.estimators import (
    NORMAL_95,
    best_at_k,
    effective_size,
    majority_at_k,
    pass_at_k,
    quantile_edges,
    wilson,
)

ROWS = st.lists(st.tuples(st.integers(-1, 2), st.booleans()), min_size=1, max_size=6)
"""Completions of a prompt: answer (-1 = none) and whether it is correct."""


@given(rows=ROWS, k=st.integers(1, 6))
def test_figures_at_k_are_means_over_all_draws(rows: list[tuple[int, bool]], k: int) -> None:
    k = min(k, len(rows))
    answers, correct = np.array([[row[0] for row in rows]]), np.array([[row[1] for row in rows]])
    scores = np.array([[0.1 * answer + flag for answer, flag in rows]])
    draws = list(combinations(range(len(rows)), k))
    assert pass_at_k(correct.sum(1), np.array([len(rows)]), k)[0] == pytest.approx(
        np.mean([any(rows[place][1] for place in draw) for draw in draws])
    )
    assert best_at_k(scores, k)[0] == pytest.approx(np.mean([scores[0, list(draw)].max() for draw in draws]))
    assert majority_at_k(answers, correct, k)[0] == pytest.approx(
        np.mean([plain_majority([rows[place] for place in draw]) for draw in draws])
    )


def plain_majority(rows: list[tuple[int, bool]]) -> float:
    """The definition: mean over the most frequent answers of how often each is correct."""
    votes: dict[int, list[bool]] = {}
    for answer, correct in rows:
        if answer >= 0:
            votes.setdefault(answer, []).append(correct)
    most = max(map(len, votes.values()), default=0)
    leaders = [flags for flags in votes.values() if len(flags) == most]
    return float(np.mean([np.mean(flags) for flags in leaders])) if leaders else 0.0


def test_prompts_are_apart_from_each_other() -> None:
    answers = np.array([[1, 1, 2], [2, 2, 1], [-1, -1, -1], [-1, -1, 5]])
    correct = np.array([[1, 1, 0], [0, 0, 1], [0, 0, 0], [0, 0, 1]], bool)
    assert majority_at_k(answers, correct, 3).tolist() == [1.0, 0.0, 0.0, 1.0]
    assert pass_at_k(correct.sum(1), np.full(4, 3), 1) == pytest.approx([2 / 3, 1 / 3, 0, 1 / 3])


def test_drawn_majority_is_close_to_the_whole_and_the_same_each_time() -> None:
    dice = np.random.default_rng(0)
    correct = dice.random((40, 24)) < 0.6
    answers = np.where(correct, 0, dice.integers(1, 4, (40, 24)))
    drawn = majority_at_k(answers, correct, 3)
    exact = [
        np.mean([plain_majority([(answers[g, i], correct[g, i]) for i in draw]) for draw in combinations(range(24), 3)])
        for g in range(4)
    ]
    assert drawn[:4] == pytest.approx(exact, abs=0.1)
    assert (drawn == majority_at_k(answers, correct, 3)).all()


def test_many_completions_do_not_overflow() -> None:
    assert pass_at_k(np.array([1]), np.array([5000]), 1000)[0] == pytest.approx(0.2)
    assert best_at_k(np.arange(5000.0)[None] == 0, 1000)[0] == pytest.approx(0.2)


@given(right=st.integers(0, 50), size=st.integers(1, 50))
def test_wilson_bounds_solve_its_equation(right: int, size: int) -> None:
    share = min(right, size) / size
    low, high = wilson(share, size)
    assert 0 <= low <= share <= high <= 1
    for bound in (low, high):
        assert (bound - share) ** 2 == pytest.approx(NORMAL_95**2 * bound * (1 - bound) / size, abs=1e-12)


def test_wilson_covers_the_truth_19_times_of_20() -> None:
    size, truth = 40, 0.3
    chances = [math.comb(size, n) * truth**n * (1 - truth) ** (size - n) for n in range(size + 1)]
    covered = sum(
        chance for n, chance in enumerate(chances) if wilson(n / size, size)[0] <= truth <= wilson(n / size, size)[1]
    )
    assert 0.93 < covered < 0.97
    assert wilson(0.0, 0) == (0.0, 1.0)


def test_completions_of_a_prompt_count_as_far_as_they_differ() -> None:
    fours = np.full(100, 4)
    assert effective_size(np.repeat([0, 1], 50), np.ones(100, int)) == 100
    assert effective_size(np.repeat([0, 4], 50), fours) == pytest.approx(99)  # all alike: one each
    assert effective_size(np.full(100, 2), fours) == 400  # as even as can be
    assert effective_size(fours, fours) == 100  # all correct: it cannot be told
    dice = np.random.default_rng(0)
    assert 330 < effective_size(dice.binomial(4, 0.5, 1000), np.full(1000, 4)) / 10 <= 400  # independent


def test_clustered_interval_covers_where_the_plain_one_does_not() -> None:
    dice = np.random.default_rng(1)
    plain = clustered = 0
    for _ in range(300):
        chance = dice.random(50)  # the mean over prompts is 1/2
        solved, sizes = dice.binomial(8, chance), np.full(50, 8)
        share = solved.sum() / 400
        for size, low_high in ((400.0, "plain"), (effective_size(solved, sizes), "clustered")):
            low, high = wilson(share, size)
            plain += low_high == "plain" and low <= 0.5 <= high
            clustered += low_high == "clustered" and low <= 0.5 <= high
    assert plain / 300 < 0.8
    assert 0.9 < clustered / 300 < 0.99


@given(values=st.lists(st.integers(0, 30), min_size=1, max_size=200))
def test_buckets_hold_every_value_and_none_is_empty(values: list[int]) -> None:
    edges = quantile_edges(np.array(values, float))
    assert 1 <= len(edges) <= 5
    assert edges[0] == min(values)
    assert edges == sorted(set(edges))
    if len(set(values)) <= 5:
        assert edges == sorted(set(values))
