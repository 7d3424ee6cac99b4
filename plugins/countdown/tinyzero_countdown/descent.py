"""Numbers for given trees of operators: a target, then two operands for each operator, from the top down.

Every value on the way is positive. Most are whole; some are asked to be fractions where a division below can
give one, or else puzzles such as 8 / (3 - 8 / 3) would never be met.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from tinyzero_countdown.options import MAX_VALUE, CountdownOptions
from tinyzero_sdk.seeds import integers_from_bits

FRACTION_SHARE = 0.5
"""How often * and / ask an operand for a fraction, where that operand holds a division."""

IDLE_SHARE = 0.25
"""How many of the attempts that multiply or divide by 1 are kept."""


class Plan(NamedTuple):
    """Expressions for n puzzles of k numbers, without the numbers. Nodes are in preorder: [n, 2k - 1] each."""

    sizes: np.ndarray
    """How many numbers there are at and below the node."""

    operators: np.ndarray
    """The operator as a character code; 0 at a number."""

    least: np.ndarray
    """Least whole value the node may be asked for."""

    most: np.ndarray
    """Greatest whole value the node may be asked for; smaller than `least` where there is none."""

    divides: np.ndarray
    """Whether there is a division at or below the node, so that it may be asked for a fraction."""

    def take(self, rows: np.ndarray) -> "Plan":
        """The plans at `rows`."""
        return Plan(*(column[rows] for column in self))


def make_plan(sizes: np.ndarray, operators: np.ndarray, options: CountdownOptions) -> Plan:
    """A plan from its trees and operators."""
    low, high = options.number_range
    largest = largest_value(options)
    least, most = np.full(sizes.shape, low), np.full(sizes.shape, high)
    divides = operators == ord("/")
    for node in reversed(range(sizes.shape[1] - 1)):
        rows = np.flatnonzero(operators[:, node])
        left, right = (rows, node + 1), (rows, node + 2 * sizes[rows, node + 1])
        code = operators[rows, node]
        cases = [code == ord("+"), code == ord("-"), code == ord("*")]
        products = least[left] * least[right]
        least[rows, node] = np.select(cases, [least[left] + least[right], 1, products], 1)
        products, quotients = most[left] * most[right], most[left] // least[right]
        sums, differences = most[left] + most[right], most[left] - least[right]
        most[rows, node] = np.minimum(np.select(cases, [sums, differences, products], quotients), largest)
        divides[rows, node] |= divides[left] | divides[right]
    return Plan(sizes, operators, least, most, divides)


def largest_value(options: CountdownOptions) -> int:
    """The greatest value on the way: it leaves room for products of two numbers, and for the target."""
    return min(max(options.number_range[1] ** 2, 10_000, options.target_range[1]), MAX_VALUE)


def descend(plan: Plan, words: np.ndarray, options: CountdownOptions) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """One attempt for each plan.

    Args:
        plan: n expressions of k numbers.
        words: [n, 2k] random words.
        options: the ranges of numbers and targets.

    Returns:
        numbers [n, k] in the order of the expression, targets [n], and whether they fit, [n].
    """
    descent = _Descent(plan, words, options)
    for node in range(plan.sizes.shape[1] - 1):
        descent.split(node)
    return descent.result()


class _Split(NamedTuple):
    """Where one operator stands at one node, and its operands are to be asked for values."""

    operator: str
    node: int

    rows: np.ndarray
    """[m] the plans in question."""

    left: np.ndarray
    """[m] the left operand's node."""

    right: np.ndarray
    """[m] the right operand's node."""

    def take(self, chosen: np.ndarray) -> "_Split":
        return self._replace(rows=self.rows[chosen], left=self.left[chosen], right=self.right[chosen])


class _Descent:
    def __init__(self, plan: Plan, words: np.ndarray, options: CountdownOptions) -> None:
        self._plan, self._words = plan, words
        self._low, self._high = options.number_range
        self._largest = largest_value(options)
        # What each node is asked for, as a reduced fraction. Where `fits` is False the values mean nothing.
        self._top, self._bottom = np.ones_like(plan.sizes), np.ones_like(plan.sizes)
        self._top[:, 0] = integers_from_bits(words[:, -1], *options.target_range)
        self._fits = np.ones(len(words), dtype=bool)

    def result(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        is_number = self._plan.sizes == 1
        shape = len(self._fits), is_number.shape[1] // 2 + 1
        numbers, bottoms = self._top[is_number].reshape(shape), self._bottom[is_number].reshape(shape)
        fits = (numbers >= self._low) & (numbers <= self._high) & (bottoms == 1)
        return numbers, self._top[:, 0], self._fits & fits.all(axis=1)

    def split(self, node: int) -> None:
        """Ask the operands of `node` for values that give what it is asked for."""
        plan = self._plan
        for operator in "+-*/":
            rows = np.flatnonzero(plan.operators[:, node] == ord(operator))
            split = _Split(operator, node, rows, np.full(len(rows), node + 1), node + 2 * plan.sizes[rows, node + 1])
            # A fraction comes from a division alone, which makes it of whole operands.
            asks_fraction = self._bottom[rows, node] > 1 if operator != "/" else np.zeros(len(rows), dtype=bool)
            if operator in "*/":
                asks_fraction |= self._chance(split, 0, FRACTION_SHARE)
            asks_fraction &= plan.divides[rows, split.left] | plan.divides[rows, split.right]
            if asks_fraction.any():
                self._ask_fraction(split.take(asks_fraction))
            if not asks_fraction.all():
                self._ask_whole(split.take(~asks_fraction))

    def _ask_whole(self, split: _Split) -> None:
        """Two whole operands, x and y."""
        top, bottom = self._top[split.rows, split.node], self._bottom[split.rows, split.node]
        least_x, most_x = self._plan.least[split.rows, split.left], self._plan.most[split.rows, split.left]
        least_y, most_y = self._plan.least[split.rows, split.right], self._plan.most[split.rows, split.right]
        if split.operator == "+":
            x = self._draw(split, np.maximum(least_x, top - most_y), np.minimum(most_x, top - least_y))
            y = top - x
        elif split.operator == "-":
            y = self._draw(split, np.maximum(least_y, least_x - top), np.minimum(most_y, most_x - top))
            x = top + y
        elif split.operator == "*":
            x = self._divisor(split)
            y = top // x
            self._fits[split.rows] &= ((x > 1) & (y > 1)) | self._chance(split, 8, IDLE_SHARE)
        else:  # top / bottom = (top * factor) / (bottom * factor)
            fewest = np.maximum(-(-least_x // top), -(-least_y // bottom))
            factor = self._draw(split, fewest, np.minimum(most_x // top, most_y // bottom))
            x, y = top * factor, bottom * factor
            self._fits[split.rows] &= (y > 1) | self._chance(split, 8, IDLE_SHARE)
        self._ask(split.rows, split.left, x, np.ones_like(x))
        self._ask(split.rows, split.right, y, np.ones_like(y))

    def _ask_fraction(self, split: _Split) -> None:
        """A whole number from one operand; what is left, a fraction as a rule, from the other, which has a division."""
        rows, left, right = split.rows, split.left, split.right
        top, bottom = self._top[rows, split.node], self._bottom[rows, split.node]
        both = self._plan.divides[rows, left] & self._plan.divides[rows, right]
        solves_left = np.where(both, self._chance(split, 16, 0.5), self._plan.divides[rows, left])
        solved, free = np.where(solves_left, left, right), np.where(solves_left, right, left)
        number = self._draw(split, self._plan.least[rows, free], self._plan.most[rows, free])
        if split.operator == "+":
            top = top - number * bottom
        elif split.operator == "-":
            top = np.where(solves_left, number * bottom + top, number * bottom - top)
        elif split.operator == "*":
            bottom = bottom * number
        else:
            top, bottom = np.where(solves_left, top, bottom) * number, np.where(solves_left, bottom, top)
        common = np.gcd(top, bottom)
        self._ask(rows, free, number, np.ones_like(number))
        self._ask(rows, solved, top // common, bottom // common)

    def _ask(self, rows: np.ndarray, nodes: np.ndarray, top: np.ndarray, bottom: np.ndarray) -> None:
        self._fits[rows] &= (top > 0) & (top <= self._largest) & (bottom <= self._largest)
        self._top[rows, nodes] = top.clip(1, self._largest)
        self._bottom[rows, nodes] = bottom.clip(1, self._largest)

    def _chance(self, split: _Split, shift: int, share: float) -> np.ndarray:
        """[m] True for a share of the rows, by the word's 8 bits from `shift`; the upper 32 are for `_draw`."""
        bits = self._words[split.rows, split.node] >> np.uint64(shift) & np.uint64(255)
        return bits < share * 256

    def _draw(self, split: _Split, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        """[m] whole numbers from low to high, both included; the row does not fit if there are none."""
        self._fits[split.rows] &= low <= high
        # The upper reaches of a wide range are left alone: hardly any numbers below would give such values.
        return integers_from_bits(self._words[split.rows, split.node], low, np.clip(high, low, low + 2 * self._high))

    def _divisor(self, split: _Split) -> np.ndarray:
        """[m] a divisor of what the node is asked for; 1 and the value itself only if there are no others."""
        divisors, starts = _divisors(self._largest)
        value = self._top[split.rows, split.node]
        first, last = starts[value], starts[value + 1] - 1
        has_others = last - first > 1
        places = integers_from_bits(self._words[split.rows, split.node], first + has_others, last - has_others)
        return divisors[places]


@lru_cache(maxsize=4)
def _divisors(largest: int) -> tuple[np.ndarray, np.ndarray]:
    """All divisors of 1 … largest in one array, and where those of each value start: [largest + 2]."""
    candidates = np.arange(1, largest + 1)
    counts = largest // candidates
    divisors = np.repeat(candidates, counts)
    multiples = divisors * (np.arange(len(divisors)) - np.repeat(counts.cumsum() - counts, counts) + 1)
    order = multiples.argsort(kind="stable")
    starts = np.searchsorted(multiples[order], np.arange(largest + 2))
    return divisors[order], starts
