"""Puzzles by the hundred thousand, each built from a random expression, so that each has a solution.

The tree and its operators are drawn first, every choice equally likely, and stay while numbers are drawn until
they fit. To draw numbers and hope for a target in range would hardly ever end for a * b * c * d, and whoever
gave up would starve the products; so numbers come from the top down (`descent.py`).
"""

from collections.abc import Generator, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from tinyzero_countdown.descent import Plan, descend, make_plan
from tinyzero_countdown.difficulty import difficulties
from tinyzero_countdown.options import CountdownOptions
from tinyzero_sdk import ItemColumns, TinyZeroError
from tinyzero_sdk.seeds import derive_seed, integers_from_bits, random_bits

ROUNDS = 7
"""Round r makes 2**r attempts to find numbers for a plan; after the last one the plan is replaced."""

PLANS = 16
"""Plans an index may use up before it is left without a puzzle, which the default options never come near."""

_BLOCK = 8192
_HOPELESS = 1000  # so many plans without a single puzzle show that the options fit none


class Puzzles(NamedTuple):
    """n puzzles of k numbers, with the expressions they were built from."""

    indices: np.ndarray
    """[n] which candidates they are."""

    plan: Plan

    numbers: np.ndarray
    """[n, k] in the order of the expression."""

    targets: np.ndarray
    """[n]"""


def generate(split: str, size: int, seed: int, start: int, options: CountdownOptions) -> ItemColumns:
    """Candidates start … start + size - 1, each a function of the split, the seed and its index alone.

    An index is left out if its puzzle is outside `options.difficulty_range`, or if none was found for it.

    Raises:
        TinyZeroError: no puzzle fits the options.
    """
    targets, lengths = np.zeros(size, np.int64), np.zeros(size, np.int64)  # a length of 0: left out
    shuffled = np.zeros((size, max(options.numbers)), np.int64)
    for puzzles in build_puzzles(split, size, seed, start, options):
        rows, length = puzzles.indices - start, puzzles.numbers.shape[1]
        order = random_bits(derive_seed("countdown order", split, seed), puzzles.indices, length).argsort(axis=1)
        shuffled[rows, :length] = np.take_along_axis(puzzles.numbers, order, axis=1)
        lengths[rows], targets[rows] = length, puzzles.targets
        if options.difficulty_range is not None:
            least, most = options.difficulty_range
            levels = difficulties(puzzles.numbers, puzzles.targets)
            lengths[rows[(levels < least) | (levels > most)]] = 0
    flat = shuffled[np.arange(shuffled.shape[1]) < lengths[:, None]]
    targets, lengths = targets[lengths > 0], lengths[lengths > 0]
    lists = pa.ListArray.from_arrays(np.append(0, lengths.cumsum()).astype(np.int32), flat)
    return ItemColumns(
        ground_truth=pa.StructArray.from_arrays([pa.array(targets), lists], ["target", "numbers"]),
        data=pa.StructArray.from_arrays([lists, pa.array(targets)], ["nums", "target"]),
    )


def build_puzzles(split: str, size: int, seed: int, start: int, options: CountdownOptions) -> Iterator[Puzzles]:
    """The same candidates of whatever difficulty, in groups of one length, in no particular order.

    Raises:
        TinyZeroError: no puzzle fits the options.
    """
    for begin in range(start, start + size, _BLOCK):
        block = pending = np.arange(begin, min(begin + _BLOCK, start + size))
        for trial in range(PLANS):
            trial_seed = derive_seed("countdown", split, seed, trial)
            lengths = _choose(options.numbers, random_bits(trial_seed, pending, 1)[:, 0])
            unfit = []
            for length in sorted(set(options.numbers)):
                rest = yield from _fit(pending[lengths == length], length, derive_seed("length", trial_seed), options)
                unfit.append(rest)
            pending = np.sort(np.concatenate(unfit))
            if len(pending) == len(block) >= _HOPELESS:
                raise TinyZeroError(f"no puzzle fits {options}; widen number_range, target_range or operators")


def _fit(
    indices: np.ndarray, length: int, seed: int, options: CountdownOptions
) -> Generator[Puzzles, None, np.ndarray]:
    """One plan for each of `indices`; yields the puzzles found and returns the indices without one."""
    plan = _draw_plan(random_bits(derive_seed("plan", seed), indices, length), options)
    number_seed = derive_seed("numbers", seed)
    for round_ in range(ROUNDS):
        if not len(indices):
            break
        attempts = indices[:, None] * 2**ROUNDS + np.arange(2**round_, 2 ** (round_ + 1))  # [n, attempts]
        words = random_bits(number_seed, attempts.ravel(), 2 * length)
        numbers, targets, fits = descend(plan.take(np.arange(len(indices)).repeat(2**round_)), words, options)
        fits = fits.reshape(attempts.shape)
        found, first = fits.any(axis=1), fits.argmax(axis=1)
        chosen = np.flatnonzero(found) * 2**round_ + first[found]
        yield Puzzles(indices[found], plan.take(found), numbers[chosen], targets[chosen])
        indices, plan = indices[~found], plan.take(~found)
    return indices


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
