"""Estimators against their definitions: every draw counted, every equation solved."""

import math
from itertools import combinations
from statistics import stdev

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinyzero_sdk.scoring.statistics import (
    NORMAL_95,
    best_at_k,
    effective_size,
    interval_of_rate,
    majority_at_k,
    named_ranges,
    pass_at_k,
    standard_error,
    student_t,
    wilson,
)

ROWS = st.lists(st.tuples(st.integers(-1, 2), st.booleans()), min_size=1, max_size=6)
"""Completions of a prompt: answer (-1 = none) and whether it is correct."""


@given(rows=ROWS, k=st.integers(1, 6))
def test_values_at_k_are_means_over_all_draws(rows, k):
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


@given(st.lists(st.lists(st.booleans(), min_size=1, max_size=5), min_size=2, max_size=8))
def test_the_standard_error_is_that_of_the_prompts_means(prompts):
    correct, size = np.array([sum(prompt) for prompt in prompts]), np.array([len(prompt) for prompt in prompts])
    error = stdev(sum(prompt) / len(prompt) for prompt in prompts) / math.sqrt(len(prompts))
    assert standard_error(correct, size) == pytest.approx(error, abs=1e-12)
    assert standard_error(correct[:1], size[:1]) == 0.0  # unknown


def plain_majority(rows):
    """The definition: mean over the most frequent answers of how often each is correct."""
    votes: dict[int, list[bool]] = {}
    for answer, correct in rows:
        if answer >= 0:
            votes.setdefault(answer, []).append(correct)
    most = max(map(len, votes.values()), default=0)
    leaders = [flags for flags in votes.values() if len(flags) == most]
    return float(np.mean([np.mean(flags) for flags in leaders])) if leaders else 0.0


def test_prompts_are_apart_from_each_other():
    answers = np.array([[1, 1, 2], [2, 2, 1], [-1, -1, -1], [-1, -1, 5]])
    correct = np.array([[1, 1, 0], [0, 0, 1], [0, 0, 0], [0, 0, 1]], bool)
    assert majority_at_k(answers, correct, 3).tolist() == [1.0, 0.0, 0.0, 1.0]
    assert pass_at_k(correct.sum(1), np.full(4, 3), 1) == pytest.approx([2 / 3, 1 / 3, 0, 1 / 3])


def test_majority_of_a_large_group_is_close_to_its_hypergeometric_value():
    size, right, k = 20_000, 11_000, 21
    answers = np.repeat([0, 1], [right, size - right])[None]
    chances = [math.comb(right, n) * math.comb(size - right, k - n) / math.comb(size, k) for n in range(k + 1)]
    exact = sum(chances[k // 2 + 1 :])
    assert majority_at_k(answers, answers == 0, k)[0] == pytest.approx(exact, abs=0.01)
    alike = np.repeat(answers[:, ::100], 300, axis=0)
    many = majority_at_k(alike, alike == 0, k)
    assert (many == majority_at_k(alike, alike == 0, k)).all()
    assert len(set(many.tolist())) > 10  # prompts that are alike have each their own draws
    assert many.mean() == pytest.approx(exact, abs=0.01)


def test_many_completions_do_not_overflow():
    assert pass_at_k(np.array([1]), np.array([5000]), 1000)[0] == pytest.approx(0.2)
    assert best_at_k(np.arange(5000.0)[None] == 0, 1000)[0] == pytest.approx(0.2)


@given(right=st.integers(0, 50), size=st.integers(1, 50))
def test_wilson_bounds_solve_its_equation(right, size):
    share = min(right, size) / size
    low, high = wilson(share, size)
    assert 0 <= low <= share <= high <= 1
    assert wilson(0.0, 0) == (0.0, 1.0)
    for bound in (low, high):
        assert (bound - share) ** 2 == pytest.approx(NORMAL_95**2 * bound * (1 - bound) / size, abs=1e-12)


def test_completions_of_a_prompt_count_as_far_as_they_differ():
    fours = np.full(100, 4)
    assert effective_size(np.repeat([0, 1], 50), np.ones(100, int)) == 100
    assert effective_size(np.repeat([0, 4], 50), fours) == pytest.approx(99)  # all alike: one each
    assert effective_size(np.full(100, 2), fours) == 400  # as even as can be
    assert effective_size(fours, fours) == 100  # all correct: it cannot be told
    dice = np.random.default_rng(0)
    assert 330 < effective_size(dice.binomial(4, 0.5, 1000), np.full(1000, 4)) / 10 <= 400  # independent


def coverage(interval, prompts, trials):
    """How often the interval of 8 completions of each prompt covers the truth; a prompt's chance is uniform."""
    rng = np.random.default_rng(1)
    sizes = np.full(prompts, 8)
    bounds = [interval(rng.binomial(8, rng.random(prompts)), sizes) for _ in range(trials)]
    return sum(low <= 0.5 <= high for low, high in bounds) / trials


def clustered(correct, size):
    return wilson(correct.sum() / size.sum(), effective_size(correct, size))


def test_clustered_interval_covers_where_the_plain_one_does_not():
    assert coverage(lambda correct, size: wilson(correct.sum() / size.sum(), size.sum()), 50, 300) < 0.8
    assert 0.9 < coverage(clustered, 50, 300) < 0.99


def test_students_t_is_that_of_the_tables():
    # Abramowitz and Stegun (1964), table 26.10, at 0.975 one-sided.
    table = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 9: 2.262, 10: 2.228, 20: 2.086, 30: 2.042, 60: 2.0}
    assert {freedom: round(student_t(freedom), 3) for freedom in table} == table
    values = [student_t(freedom) for freedom in range(1, 200)]
    assert values == sorted(values, reverse=True)
    assert student_t(99) - student_t(100) == pytest.approx(
        student_t(100) - student_t(101), rel=0.05
    )  # where methods meet
    assert student_t(10**6) == pytest.approx(NORMAL_95, abs=1e-5)


@pytest.mark.parametrize("prompts", [3, 5, 10])
def test_interval_covers_the_truth_with_few_prompts(prompts):
    assert coverage(interval_of_rate, prompts, 1000) > 0.94 > coverage(clustered, prompts, 1000)


def test_interval_of_single_completions_is_wilsons():
    assert interval_of_rate(np.array([1, 0, 1]), np.ones(3, int)) == wilson(2 / 3, 3)
    assert interval_of_rate(np.array([4, 4]), np.array([4, 4])) == wilson(1.0, 2)  # no variance to tell
    assert interval_of_rate(np.array([2]), np.array([4])) == wilson(0.5, 1)


@given(values=st.lists(st.integers(0, 30), min_size=1, max_size=200))
def test_buckets_hold_every_value_and_none_is_empty(values):
    names, chosen = zip(*named_ranges(np.array(values, float)), strict=True)
    assert 1 <= len(names) <= 5
    assert (np.sum(chosen, axis=0) == 1).all()
    assert np.concatenate([np.sort(np.array(values)[one]) for one in chosen]).tolist() == sorted(values)
    if len(set(values)) <= 5:
        assert list(names) == [str(value) for value in sorted(set(values))]
