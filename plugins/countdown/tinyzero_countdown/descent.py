"""Numbers for given trees of operators: a target, then two operands for each operator, from the top down.

Every value on the way is positive. Most are whole; some are asked to be fractions where a division below can
give one, or else puzzles such as 8 / (3 - 8 / 3) would never be met.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from tinyzero_countdown.options import CountdownOptions
from tinyzero_sdk.seeds import integers_from_bits

FRACTION_SHARE = 0.25
"""How often * and / ask an operand for a fraction, where that operand holds a division."""

IDLE_SHARE = 0.25
"""How many of the attempts that multiply or divide by 1 are kept."""

_LARGEST = 100_000
"""No value on the way is larger; the table of divisors ends here at the latest."""


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
        products, quotients = most[left] * most[right], most[left] // np.maximum(least[right], 1)
        sums, differences = most[left] + most[right], most[left] - least[right]
        most[rows, node] = np.minimum(np.select(cases, [sums, differences, products], quotients), largest)
        divides[rows, node] |= divides[left] | divides[right]
    return Plan(sizes, operators, least, most, divides)


def largest_value(options: CountdownOptions) -> int:
    """The greatest value on the way: room for a product of two numbers, and for the target."""
    return min(max(options.number_range[1] ** 2, 10_000, options.target_range[1]), _LARGEST)


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


class _Descent:
    def __init__(self, plan: Plan, words: np.ndarray, options: CountdownOptions) -> None:
        self._plan, self._words = plan, words
        self._low, self._high = options.number_range
        self._largest = largest_value(options)
        # What each node is asked for, as a reduced fraction. Once `fits` is False the values mean nothing.
        self._top, self._bottom = np.ones_like(plan.sizes), np.ones_like(plan.sizes)
        self._top[:, 0] = integers_from_bits(words[:, -1], *options.target_range)
        self._fits = np.ones(len(words), dtype=bool)

    def result(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        is_number = self._plan.sizes == 1
        numbers = self._top[is_number].reshape(len(self._fits), -1)
        whole = (self._bottom == 1) | ~is_number
        in_range = (numbers >= self._low) & (numbers <= self._high)
        return numbers, self._top[:, 0], self._fits & whole.all(axis=1) & in_range.all(axis=1)

    def split(self, node: int) -> None:
        """Ask the operands of `node` for values that give what it is asked for."""
        plan = self._plan
        for operator in "+-*/":
            rows = np.flatnonzero(plan.operators[:, node] == ord(operator))
            left, right = np.full(len(rows), node + 1), node + 2 * plan.sizes[rows, node + 1]
            # A fraction can come from a division only; a division gives it from whole operands.
            may = plan.divides[rows, left] | plan.divides[rows, right]
            by_chance = self._chance(rows, node, 0, FRACTION_SHARE if operator in "*/" else 0.0)
            by_need = self._bottom[rows, node] > 1 if operator != "/" else False
            ask_fraction = may & (by_chance | by_need)
            for rule, chosen in ((self._ask_whole, ~ask_fraction), (self._ask_fraction, ask_fraction)):
                if chosen.any():
                    rule(operator, rows[chosen], node, left[chosen], right[chosen])

    def _ask_whole(self, operator: str, rows: np.ndarray, node: int, left: np.ndarray, right: np.ndarray) -> None:
        """Two whole operands."""
        top, bottom = self._top[rows, node], self._bottom[rows, node]
        least_left, most_left = self._plan.least[rows, left], self._plan.most[rows, left]
        least_right, most_right = self._plan.least[rows, right], self._plan.most[rows, right]
        if operator == "+":
            x = self._draw(rows, node, np.maximum(least_left, top - most_right), np.minimum(most_left, top - least_right))
            y = top - x
        elif operator == "-":
            y = self._draw(rows, node, np.maximum(least_right, least_left - top), np.minimum(most_right, most_left - top))
            x = top + y
        elif operator == "*":
            x = self._divisor(rows, node)
            y = top // x
        else:  # top / bottom = (top * m) / (bottom * m)
            fewest = np.maximum(-(-least_left // top), -(-least_right // bottom))
            m = self._draw(rows, node, fewest, np.minimum(most_left // top, most_right // bottom))
            x, y = top * m, bottom * m
        if operator in "*/":
            is_idle = (y == 1) | (x == 1) if operator == "*" else y == 1
            self._fits[rows] &= ~is_idle | self._chance(rows, node, 8, IDLE_SHARE)
        self._ask(rows, left, x, np.ones_like(x))
        self._ask(rows, right, y, np.ones_like(y))

    def _ask_fraction(self, operator: str, rows: np.ndarray, node: int, left: np.ndarray, right: np.ndarray) -> None:
        """A whole number from one operand, whatever is left from the other, which has a division."""
        plan, top, bottom = self._plan, self._top[rows, node], self._bottom[rows, node]
        either = plan.divides[rows, left] & plan.divides[rows, right]
        solves_left = np.where(either, self._chance(rows, node, 16, 0.5), plan.divides[rows, left])
        solved, free = np.where(solves_left, left, right), np.where(solves_left, right, left)
        x = self._draw(rows, node, plan.least[rows, free], plan.most[rows, free])
        if operator == "+":
            new_top, new_bottom = top - x * bottom, bottom
        elif operator == "-":
            new_top, new_bottom = np.where(solves_left, top + x * bottom, x * bottom - top), bottom
        elif operator == "*":
            new_top, new_bottom = top, bottom * x
        else:
            new_top, new_bottom = np.where(solves_left, top * x, bottom * x), np.where(solves_left, bottom, top)
        common = np.gcd(new_top, new_bottom)
        self._ask(rows, free, x, np.ones_like(x))
        self._ask(rows, solved, new_top // common, new_bottom // common)

    def _ask(self, rows: np.ndarray, nodes: np.ndarray, top: np.ndarray, bottom: np.ndarray) -> None:
        self._fits[rows] &= (top > 0) & (top <= self._largest) & (bottom <= self._largest)
        self._top[rows, nodes] = top.clip(1, self._largest)
        self._bottom[rows, nodes] = bottom.clip(1, self._largest)

    def _chance(self, rows: np.ndarray, node: int, shift: int, share: float) -> np.ndarray:
        """True for a share of the rows; the low half of a node's word serves here, the high half for `_draw`."""
        return (self._words[rows, node] >> np.uint64(shift)) & np.uint64(255) < share * 256

    def _draw(self, rows: np.ndarray, node: int, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        self._fits[rows] &= low <= high
        # Far up in a wide range hardly anything fits below.
        return integers_from_bits(self._words[rows, node], low, np.clip(high, low, low + 2 * self._high))

    def _divisor(self, rows: np.ndarray, node: int) -> np.ndarray:
        """A divisor of what the node is asked for, 1 and itself only if it has no other."""
        divisors, starts = _divisors(self._largest)
        value = self._top[rows, node]
        first, count = starts[value], starts[value + 1] - starts[value]
        is_composite = count > 2
        place = integers_from_bits(self._words[rows, node], first + is_composite, first + count - 1 - is_composite)
        return divisors[place]


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
