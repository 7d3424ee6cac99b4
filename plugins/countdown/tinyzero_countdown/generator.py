"""Puzzles by the hundred thousand, each built from a random expression, so that each has a solution.

The tree and its operators are drawn first, every choice equally likely, and stay while numbers are drawn until
they fit. To draw numbers and hope for a target in range would hardly ever end for a * b * c * d, and whoever
gave up would starve the products; so numbers come from the top down (`descent.py`).
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from tinyzero_countdown.descent import Plan, descend, make_plan
from tinyzero_countdown.hardness import difficulties
from tinyzero_countdown.options import CountdownOptions
from tinyzero_sdk import ItemColumns, TinyZeroError
from tinyzero_sdk.seeds import derive_seed, integers_from_bits, random_bits

ROUNDS = 7
"""Round r makes 2**r attempts to find numbers for a plan; after the last one the plan is replaced."""

PLANS = 500
"""Plans an index may use up; by default nearly all need one, with a narrow difficulty_range many."""

_BLOCK = 16384
_HOPELESS = 5_000  # so many plans without a single puzzle show that the options fit none


class Puzzles(NamedTuple):
    """n puzzles of k numbers, with the expressions they were built from."""

    indices: np.ndarray
    """[n] which candidates they are."""

    plan: Plan

    numbers: np.ndarray
    """[n, k] in the order of the expression."""

    targets: np.ndarray
    """[n]"""

    def take(self, rows: np.ndarray) -> "Puzzles":
        """The puzzles at `rows`."""
        return Puzzles(self.indices[rows], self.plan.take(rows), self.numbers[rows], self.targets[rows])


def generate(split: str, size: int, seed: int, start: int, options: CountdownOptions) -> ItemColumns:
    """Candidates start … start + size - 1, each a function of the split, the seed and its index alone.

    Raises:
        TinyZeroError: no puzzle fits the options, or hardly any.
    """
    targets, lengths = np.empty(size, np.int64), np.empty(size, np.int64)
    shuffled = np.empty((size, max(options.numbers)), np.int64)
    for puzzles in build_puzzles(split, size, seed, start, options):
        rows, length = puzzles.indices - start, puzzles.numbers.shape[1]
        order = random_bits(derive_seed("countdown order", split, seed), puzzles.indices, length).argsort(axis=1)
        shuffled[rows, :length] = np.take_along_axis(puzzles.numbers, order, axis=1)
        lengths[rows], targets[rows] = length, puzzles.targets
    flat = shuffled[np.arange(shuffled.shape[1]) < lengths[:, None]]
    lists = pa.ListArray.from_arrays(np.append(0, lengths.cumsum()).astype(np.int32), flat)
    return ItemColumns(
        ground_truth=pa.StructArray.from_arrays([pa.array(targets), lists], ["target", "numbers"]),
        data=pa.StructArray.from_arrays([lists, pa.array(targets)], ["nums", "target"]),
    )


def build_puzzles(split: str, size: int, seed: int, start: int, options: CountdownOptions) -> Iterator[Puzzles]:
    """The same candidates with their expressions, in groups of one length and in no particular order.

    Raises:
        TinyZeroError: no puzzle fits the options, or hardly any.
    """
    for begin in range(start, start + size, _BLOCK):
        block = pending = np.arange(begin, min(begin + _BLOCK, start + size))
        for trial in range(PLANS):
            groups = _try_plans(pending, derive_seed("countdown", split, seed, trial), options)
            yield from groups
            pending = np.setdiff1d(pending, np.concatenate([puzzles.indices for puzzles in groups]))
            is_hopeless = len(pending) == len(block) and (trial + 1) * len(block) >= _HOPELESS
            if is_hopeless or not len(pending):
                break
        if len(pending):
            raise TinyZeroError(
                "no puzzle fits the task's options, or hardly any, with every value on the way to the target positive;"
                " widen difficulty_range, target_range, number_range or operators"
            )


def _try_plans(indices: np.ndarray, seed: int, options: CountdownOptions) -> list[Puzzles]:
    """The puzzles that come of one plan for each of `indices`, where one does and its difficulty is asked for."""
    lengths = _choose(options.numbers, random_bits(derive_seed("length", seed), indices, 1)[:, 0])
    groups = []
    for length in options.numbers:
        for puzzles in _fit(indices[lengths == length], length, seed, options):
            if options.difficulty_range is not None:
                levels, (least, most) = difficulties(puzzles.numbers, puzzles.targets), options.difficulty_range
                puzzles = puzzles.take((levels >= least) & (levels <= most))
            groups.append(puzzles)
    return groups


def _fit(indices: np.ndarray, length: int, seed: int, options: CountdownOptions) -> Iterator[Puzzles]:
    """One plan for each of `indices`, and the first numbers that fit it; a plan that none fits is left out."""
    plan = _draw_plan(random_bits(derive_seed("plan", seed), indices, length), options)
    number_seed = derive_seed("numbers", seed)
    for round_ in range(ROUNDS):
        attempts = indices[:, None] * 2**ROUNDS + np.arange(2**round_, 2 ** (round_ + 1))  # [n, 2**round]
        words = random_bits(number_seed, attempts.ravel(), 2 * length)
        numbers, targets, fits = descend(plan.take(np.arange(len(indices)).repeat(2**round_)), words, options)
        first = fits.reshape(attempts.shape).argmax(axis=1) + np.arange(len(indices)) * 2**round_  # that fits, if any
        solved = fits[first]
        yield Puzzles(indices, plan, numbers[first], targets[first]).take(solved)
        if solved.all():
            return
        indices, plan = indices[~solved], plan.take(~solved)


def _draw_plan(words: np.ndarray, options: CountdownOptions) -> Plan:
    """Trees and operators for words [n, k], uniformly."""
    length = words.shape[1]
    trees = np.array(_trees(length))
    sizes = trees[integers_from_bits(words[:, 0], 0, len(trees) - 1)]
    operators = np.zeros_like(sizes)
    operators[sizes > 1] = _choose([ord(operator) for operator in options.operators], words[:, 1:]).ravel()
    return make_plan(sizes, operators, options)


def _choose(values: Sequence[int], words: np.ndarray) -> np.ndarray:
    return np.array(values)[integers_from_bits(words, 0, len(values) - 1)]


@lru_cache
def _trees(leaves: int) -> list[tuple[int, ...]]:
    """All binary trees, each as the leaf counts of its nodes in preorder."""
    if leaves == 1:
        return [(1,)]
    splits = range(1, leaves)
    return [(leaves, *left, *right) for at in splits for left in _trees(at) for right in _trees(leaves - at)]
