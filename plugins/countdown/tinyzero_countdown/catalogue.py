"""All distinct expressions over a few numbers, listed once and for all; nothing here knows a number's value.

Two expressions are the same if one becomes the other by reordering and regrouping sums (differences included)
and products (quotients included), or by turning differences around in pairs: 5 - (3 - 2) is 5 + 2 - 3, and
(5 - 3) * (2 - 1) is (3 - 5) * (1 - 2). Over n unequal numbers there are 1, 6, 68, 1170, 27142, … (OEIS A140606).
"""

from dataclasses import dataclass
from functools import cache
from itertools import combinations, groupby
from typing import NamedTuple

import numpy as np

Pattern = tuple[int, ...]
"""Which numbers are equal: a sorted multiset of symbols 0, 1, …; 9, 5, 5, 2 has the pattern (0, 1, 1, 2)."""

MAX_BLOCK = 512
"""Rows of the largest block; it keeps the vectors that evaluate a block in a processor's cache."""


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive rows of a catalogue that share their last operator."""

    operator: str

    rows: slice
    left: np.ndarray
    """[rows] the rows that are the left operands."""

    right: np.ndarray
    """[rows] the rows that are the right operands."""

    divides: np.ndarray
    """[rows] whether there is a division anywhere in the expression."""


@dataclass(frozen=True, slots=True)
class Catalogue:
    """The expressions over a pattern and over each part of it, one a row; operands stand before what uses them.

    They are written with few brackets: additions before subtractions, multiplications before divisions, and no
    right operand that is a sum in a sum or a product in a product.
    """

    symbol_count: int
    """Rows 0 … symbol_count - 1 are the numbers themselves."""

    parts: list[Block]
    """The other rows that leave a number out."""

    wholes: list[Block]
    """The rows that use all numbers, after all others."""


@cache  # there are 30 patterns of 2 to 5 numbers
def catalogue(pattern: Pattern) -> Catalogue:
    """The catalogue of a pattern. Making it takes 3 ms for four numbers, 0.1 s for five.

    Example:
        >>> sum(len(block.left) for block in catalogue((0, 1, 2)).wholes)
        68
    """
    return _Builder(pattern).build()


class _Form(NamedTuple):
    """What a row is, in whichever way it is written: equal expressions have equal `sign` and `identity`."""

    kind: str
    """number, sum or product."""

    operator: str
    """The last operator; empty for a number."""

    sign: int
    """-1 if the row is the opposite of what `over` and `under` say."""

    over: tuple[int, ...]
    """Identities of what is added, or multiplied; sorted."""

    under: tuple[int, ...]
    """Identities of what is subtracted, or divided by; sorted."""

    identity: int
    """Stands for the kind and what is over and under."""


class _Builder:
    def __init__(self, pattern: Pattern) -> None:
        self._pattern = pattern
        symbols = sorted(set(pattern))
        self._forms = [_Form("number", "", 1, (symbol,), (), symbol) for symbol in symbols]  # of each row
        self._rows_of: dict[Pattern, list[int]] = {(symbol,): [symbol] for symbol in symbols}
        self._identities: dict[tuple[str, tuple[int, ...], tuple[int, ...]], int] = {}
        self._symbol_count = len(symbols)
        self._divides = [False] * len(symbols)  # of each row

    def build(self) -> Catalogue:
        blocks: list[Block] = []
        for size in range(2, len(self._pattern)):
            blocks += self._add_size(size)
        return Catalogue(self._symbol_count, blocks, self._add_size(len(self._pattern)))

    def _add_size(self, size: int) -> list[Block]:
        """Append the rows that use `size` numbers, sorted by operator."""
        expressions = [
            (form, left, right, subset)
            for subset in sorted(set(combinations(self._pattern, size)))
            for form, left, right in self._expressions(subset)
        ]
        expressions.sort(key=lambda row: row[0].operator)
        blocks = []
        for operator, group in groupby(expressions, key=lambda row: row[0].operator):
            rows = list(group)
            for begin in range(0, len(rows), MAX_BLOCK):
                blocks.append(self._add_block(operator, rows[begin : begin + MAX_BLOCK]))
        return blocks

    def _add_block(self, operator: str, rows: list[tuple[_Form, int, int, Pattern]]) -> Block:
        forms, left, right, subsets = zip(*rows, strict=True)
        start = len(self._forms)
        self._forms += forms
        for index, subset in enumerate(subsets, start):
            self._rows_of.setdefault(subset, []).append(index)
        divides = [operator == "/" or self._divides[i] or self._divides[j] for i, j in zip(left, right, strict=True)]
        self._divides += divides
        return Block(operator, slice(start, len(self._forms)), np.array(left), np.array(right), np.array(divides))

    def _expressions(self, subset: Pattern) -> list[tuple[_Form, int, int]]:
        """The distinct expressions over `subset`, with the rows of their operands."""
        distinct: dict[tuple[int, int], tuple[_Form, int, int]] = {}
        for size in range(1, len(subset)):
            for part in sorted(set(combinations(subset, size))):
                rest = list(subset)
                for symbol in part:
                    rest.remove(symbol)
                for left in self._rows_of[part]:
                    for right in self._rows_of[tuple(rest)]:
                        for form in self._joined(self._forms[left], self._forms[right]):
                            distinct.setdefault((form.sign, form.identity), (form, left, right))
        return list(distinct.values())

    def _joined(self, left: _Form, right: _Form) -> list[_Form]:
        """The forms of `left` and `right` with an operator between, as far as the rules of writing allow it."""
        forms = []
        if right.kind != "sum":
            over, under = (left.over, left.under) if left.kind == "sum" else ((left.identity,), ())
            if left.sign < 0:
                over, under = under, over
            for operator in "+-" if left.operator != "-" else "-":
                if (operator == "+") == (right.sign > 0):
                    forms.append(self._sum(operator, (*over, right.identity), under))
                else:
                    forms.append(self._sum(operator, over, (*under, right.identity)))
        if right.kind != "product":
            over, under = (left.over, left.under) if left.kind == "product" else ((left.identity,), ())
            sign = left.sign * right.sign
            if left.operator != "/":
                forms.append(self._form("product", "*", sign, (*over, right.identity), under))
            forms.append(self._form("product", "/", sign, over, (*under, right.identity)))
        return forms

    def _sum(self, operator: str, over: tuple[int, ...], under: tuple[int, ...]) -> _Form:
        # A sum and its opposite share an identity: which of the two is positive is a matter of choice.
        if sorted(over) < sorted(under):
            return self._form("sum", operator, -1, under, over)
        return self._form("sum", operator, 1, over, under)

    def _form(self, kind: str, operator: str, sign: int, over: tuple[int, ...], under: tuple[int, ...]) -> _Form:
        over, under = tuple(sorted(over)), tuple(sorted(under))
        identity = self._identities.setdefault((kind, over, under), self._symbol_count + len(self._identities))
        return _Form(kind, operator, sign, over, under, identity)
