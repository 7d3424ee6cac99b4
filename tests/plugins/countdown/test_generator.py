"""Puzzles: solvable, the same however they are cut up, and without bias."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.plugins.countdown.expressions import leaves_of, value_of
from tinyzero_countdown.generator import build_puzzles, generate
from tinyzero_countdown.options import CountdownOptions
from tinyzero_sdk import Item, TinyZeroError, load_task
from tinyzero_sdk.errors import SettingsError

DEFAULT = CountdownOptions()
SLOW = pytest.mark.slow


def read_tree(sizes, operators, numbers, node=0, first=0):
    """The generating expression below a node as a tree of `expressions.py`."""
    if sizes[node] == 1:
        return int(numbers[first])
    left = int(sizes[node + 1])
    return (
        chr(operators[node]),
        read_tree(sizes, operators, numbers, node + 1, first),
        read_tree(sizes, operators, numbers, node + 2 * left, first + left),
    )


def expressions(options, size):
    """(tree, target) of the candidates in order."""
    found = {}
    for puzzles in build_puzzles("train", size, 0, 0, options):
        for row, index in enumerate(puzzles.indices):
            tree = read_tree(puzzles.plan.sizes[row], puzzles.plan.operators[row], puzzles.numbers[row])
            found[int(index)] = tree, int(puzzles.targets[row])
    return [found[index] for index in range(size)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        DEFAULT,
        CountdownOptions(numbers=(3,), number_range=(1, 20), target_range=(1, 50)),
        CountdownOptions(numbers=(2, 5)),
        CountdownOptions(numbers=(4,), operators="/", target_range=(1, 9)),
        CountdownOptions(numbers=(4,), operators="*", number_range=(2, 5)),
        CountdownOptions(numbers=(3,), number_range=(7, 7), target_range=(7, 56)),
        CountdownOptions(numbers=(3, 4), number_range=(100, 999), target_range=(100, 999), operators="-*/"),
        CountdownOptions(numbers=(3,), target_range=(13, 13)),
        CountdownOptions(numbers=(2,), number_range=(1, 100_000), target_range=(1, 100_000)),
    ],
    ids=str,
)
def test_expressions_reach_their_targets_with_the_items_numbers(options):
    items = generate("train", 100, 0, 0, options)
    for item, (tree, target) in zip(items, expressions(options, 100), strict=True):
        assert value_of(tree) == target == item.data["target"] == item.ground_truth["target"]
        assert sorted(leaves_of(tree)) == sorted(item.data["nums"])
        assert item.data["nums"] == item.ground_truth["numbers"]
        assert len(item.data["nums"]) in options.numbers
        assert all(options.number_range[0] <= number <= options.number_range[1] for number in item.data["nums"])
        assert options.target_range[0] <= target <= options.target_range[1]


def test_candidates_are_these_on_every_machine():
    items = [(item.data["nums"], item.data["target"]) for item in generate("train", 3, 0, 0, DEFAULT)]
    assert items == [([2, 52, 63, 61], 13), ([1, 19, 20, 76], 38), ([34, 2, 2, 6], 50)]


@pytest.mark.slow
def test_no_operator_shape_number_or_target_is_favoured():
    size = 32_768
    operators, shapes, targets, numbers = Counter(), Counter(), [], []
    for puzzles in build_puzzles("train", size, 0, 0, DEFAULT):
        operators.update(puzzles.plan.operators[puzzles.plan.operators > 0].tolist())
        shapes.update(map(tuple, puzzles.plan.sizes.tolist()))
        targets.append(puzzles.targets)
        numbers.append(puzzles.numbers.ravel())
    for code in map(ord, "+-*/"):
        assert operators[code] / operators.total() == pytest.approx(1 / 4, rel=0.02)
    for shape, count in shapes.items():
        assert count / size == pytest.approx({3: 1 / 4, 4: 1 / 10}[shape[0]], rel=0.05)
    by_tens = np.bincount(np.concatenate(targets) // 10)[1:10] / size  # targets 10 … 99
    assert by_tens.min() > 0.08
    assert by_tens.max() < 0.15
    shares = np.bincount(np.concatenate(numbers), minlength=100)[1:] / sum(map(len, numbers))
    assert shares.min() > 0.003
    assert shares[0] < 0.12  # ones: a product for a prime target needs them


def test_numbers_stand_in_random_order():
    puzzles = [item.data["nums"] for item in generate("train", 2000, 0, 0, CountdownOptions(numbers=(3,)))]
    largest_first = sum(nums[0] == max(nums) for nums in puzzles) / len(puzzles)
    assert 0.3 < largest_first < 0.42  # 1/3, and a little for equal numbers


def test_some_puzzles_need_a_fraction():
    items = generate("train", 4000, 0, 0, CountdownOptions(numbers=(4,)))
    assert sum(load_task("countdown").difficulties(items) > 6) >= 4


@pytest.mark.slow
def test_difficulty_range_is_kept():
    options = CountdownOptions(difficulty_range=(4.5, 5.5))
    items = generate("train", 300, 0, 0, options)
    levels = load_task("countdown").difficulties(items)
    assert len(items) == 300
    assert 4.5 <= min(levels) <= max(levels) <= 5.5
    assert list(items[100:150]) == list(generate("train", 50, 0, 100, options))


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        CountdownOptions(difficulty_range=(20, 30)),
        pytest.param(CountdownOptions(numbers=(3,), number_range=(7, 7), target_range=(31, 31)), marks=SLOW),
        pytest.param(CountdownOptions(operators="-", target_range=(100, 100)), marks=SLOW),  # 99 - (1 - 2) would do
    ],
    ids=str,
)
def test_options_that_fit_no_puzzle_are_refused(options):
    with pytest.raises(TinyZeroError, match=r"no puzzle fits .* positive; widen") as error:
        generate("train", 2000, 0, 0, options)
    assert "CountdownOptions" not in str(error.value)


few_numbers = st.lists(st.integers(1, 30), min_size=2, max_size=4)


@pytest.mark.slow
@given(few_numbers, few_numbers, st.integers(1, 3))
@settings(max_examples=50)
def test_keys_are_equal_for_permutations_only(first, second, target):
    key_of = load_task("countdown").item_key
    keys = [key_of(Item({"target": target, "numbers": numbers})) for numbers in (first, second, first[::-1])]
    assert (keys[0] == keys[1]) == (sorted(first) == sorted(second))
    assert keys[0] == keys[2] != key_of(Item({"target": target + 1, "numbers": first}))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"numbers": [1, 3]}, "expected counts from 2 to 5"), ({"numbers": [6]}, "expected counts from 2 to 5"),
        ({"numbers": [3, 3, 4]}, "none twice"), ({"number_range": [0, 9]}, "number_range: got"),
        ({"number_range": [9, 3]}, "the lesser first"), ({"target_range": [0, 9]}, "target_range: got"),
        ({"target_range": [1, 1_000_000]}, "from 1 to 100000"),
        ({"difficulty_range": [5, 4]}, "difficulty_range: got"), ({"operators": ""}, "expected some of"),
        ({"operators": "++"}, "none twice"), ({"guess_rate": 1.5}, "a share from 0 to 1"),
        ({"operators": "+", "number_range": [50, 99]}, "expected some of 150 to 297"),
        ({"operators": "*", "number_range": [5, 9], "numbers": [3]}, "expected some of 125 to 729"),
        ({"operators": "+-", "number_range": [1, 3], "numbers": [3]}, "expected some of 0 to 9,"),
        ({"numbers": [5], "number_range": [1, 999]}, "too large to count"),
        ({"number": [3]}, "numbers"),
    ],
)  # fmt: skip
def test_impossible_settings(values, message):
    with pytest.raises(SettingsError, match=message):
        load_task("countdown", options=values)
