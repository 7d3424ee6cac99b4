"""Counting solutions by vectors, against trying everything one by one."""

import random
from fractions import Fraction
from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinyzero_countdown.catalogue import catalogue
from tinyzero_countdown.generator import generate
from tinyzero_countdown.hardness import column_difficulties
from tinyzero_countdown.options import CountdownOptions
from tinyzero_countdown.second_opinion import is_right
from tinyzero_countdown.solutions import solutions, survey
from tinyzero_sdk import Item, TinyZeroError, load_task

PRIME = 2**61 - 1


@pytest.mark.slow
@pytest.mark.parametrize(("length", "expressions"), [(2, 6), (3, 68), (4, 1170), (5, 27142)])
def test_there_are_as_many_expressions_as_is_known(length, expressions):
    assert sum(len(block.left) for block in catalogue(tuple(range(length))).wholes) == expressions  # OEIS A140606


def all_trees(leaves):
    """Every binary tree over the leaves in this order, as functions would nest: (operator, left, right)."""
    if len(leaves) == 1:
        return [leaves[0]]
    return [
        (operator, left, right)
        for at in range(1, len(leaves))
        for left, right in product(all_trees(leaves[:at]), all_trees(leaves[at:]))
        for operator in "+-*/"
    ]


def evaluate(tree, values, divide):
    """The value with values[leaf] for each leaf, and whether all values on the way are whole; None for no value."""
    if isinstance(tree, int):
        return values[tree], True
    operator, (left, left_whole), (right, right_whole) = tree[0], *(evaluate(side, values, divide) for side in tree[1:])
    if left is None or right is None or (operator == "/" and right == 0):
        return None, False
    value = (
        divide(left, right) if operator == "/" else {"+": left + right, "-": left - right, "*": left * right}[operator]
    )
    return value, left_whole and right_whole and getattr(value, "denominator", 1) == 1


def count_one_by_one(numbers, target):
    """(distinct solutions, is there one without division, is there one without a fraction).

    Two expressions are the same where they are the same function of their numbers, up to exchanging equal
    numbers; functions are told apart by their values at a random point of a large prime field.
    """
    rng = random.Random(0)
    point = [rng.randrange(1, PRIME) for _ in numbers]
    exchanges = [order for order in permutations(range(len(numbers))) if [numbers[i] for i in order] == list(numbers)]
    functions, without_division, without_fraction = set(), False, False
    for order in permutations(range(len(numbers))):
        for tree in all_trees(order):
            value, is_whole = evaluate(tree, [Fraction(number) for number in numbers], Fraction.__truediv__)
            if value == target:
                points = [[point[i] for i in exchange] for exchange in exchanges]
                by_prime = [evaluate(tree, values, lambda a, b: a * pow(b, -1, PRIME))[0] % PRIME for values in points]
                functions.add(frozenset(by_prime))
                without_division |= "/" not in str(tree)
                without_fraction |= is_whole
    return len(functions), without_division, without_fraction


def surveyed(numbers, target):
    found = survey(np.array([numbers]), np.array([target]))
    return int(found.solutions[0]), bool(found.without_division[0]), bool(found.without_fraction[0])


@pytest.mark.slow
@given(st.lists(st.integers(0, 12), min_size=2, max_size=3), st.integers(0, 24))
@settings(max_examples=150, deadline=None)
def test_survey_finds_what_trying_everything_finds(numbers, target):
    assert surveyed(numbers, target) == count_one_by_one(numbers, target)
    assert len(solutions(numbers, target)) == surveyed(numbers, target)[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("numbers", "target"), [([8, 3, 8, 3], 24), ([1, 2, 3, 4], 10), ([6, 6, 6, 5], 30), ([9, 2, 7, 0], 9)]
)
def test_survey_of_four_numbers(numbers, target):
    assert surveyed(numbers, target) == count_one_by_one(numbers, target)
    found = solutions(numbers, target)
    assert len(found) == len(set(found)) == surveyed(numbers, target)[0]
    assert all(is_right(text, {"target": target, "numbers": numbers}) for text in found)


def test_simple_solutions_come_first():
    assert solutions([17, 5, 3], 15) == ["17 + 3 - 5"]
    assert solutions([2, 2, 1], 4) == ["2 + 2 * 1", "2 * 2 * 1", "1 * (2 + 2)", "2 + 2 / 1", "2 * 2 / 1", "(2 + 2) / 1"]
    assert solutions([2, 3], 7) == []
    assert solutions([8, 3, 8, 3], 24) == ["8 / (3 - 8 / 3)"]


def test_difficulty_is_the_documented_formula():
    task = load_task("countdown")

    def difficulty(numbers, target):
        return task.difficulty(Item({"target": target, "numbers": numbers}))

    assert difficulty([17, 5, 3], 15) == 3 + 1
    assert difficulty([17, 5, 3], 4) == 3 + 1 / 2 + 1  # (17 - 5) / 3 and (17 + 3) / 5: every solution divides
    assert difficulty([8, 3, 8, 3], 24) == 4 + 1 + 1 + 1  # and meets a fraction
    assert difficulty([1, 2, 3, 4], 24) == 4 + 1 / 4
    assert difficulty([2, 3], 7) == 2 + 2 + 1 + 1  # no solution


@pytest.mark.slow
def test_difficulties_are_those_of_the_items_one_by_one():
    options = CountdownOptions(numbers=(2, 3, 4), number_range=(1, 9), target_range=(1, 30))
    items = generate("train", 300, 0, 0, options)
    assert column_difficulties(items).tolist() == [load_task("countdown").difficulty(item) for item in items]


def test_numbers_too_large_to_count_exactly_are_refused():
    with pytest.raises(TinyZeroError, match="expected 2 to 5 numbers"):
        survey(np.array([[10**6] * 4]), np.array([10]))
    with pytest.raises(TinyZeroError, match="of 6 numbers"):
        survey(np.ones((1, 6), int), np.array([10]))


def test_no_value_is_mistaken_for_a_neighbour():
    assert surveyed([100, 99, 98, 5], 5) == (0, False, False)  # 5 + 1 / (100 * 99 * 98) is within 1.1e-6
