"""The value of an expression at a point, to many digits, in bounded time: no sympy, and nothing beyond the limits.

Numbers can only tell expressions apart. That two agree, however many digits, is no proof that they are equal; but the
points are of both signs and of several sizes, so that |x| does not pass for x.
"""

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache, partial
from typing import Any

from mpmath import MPContext

from tinyzero_symbolic.expression import Node, symbols
from tinyzero_symbolic.identity import UndefinedError

_DIGITS = 60  # beyond those that the constants of a text have themselves
_GUARD = 10  # of these, digits that the rounding of one operation may spoil
_SPARE = 30  # of these, digits that all rounding together may spoil
_MOST_DIGITS = 1500
_LARGEST_LOGARITHM = 20_000  # of a power
_LARGEST_ARGUMENT = 1e6  # of a function
_BITS = 4  # of a point's number: 16 points have every sign of four letters, and every size with either sign
_CUT = {"ln", "asin", "acos"}  # functions that jump where they cross the real axis
Value = tuple[Any, Any]
"""A complex number, and how far from the truth rounding may have brought it."""


class BeyondError(UndefinedError):
    """An expression may have a value at a point, but not within the limits, or rounding has spoilt it."""


@dataclass
class Point:
    """A value for each letter, and what evaluating there needs."""

    values: dict[str, Fraction]
    digits: int
    """Digits of the arithmetic."""

    _mp: Any = field(init=False)
    _rounding: Any = field(init=False)

    def __post_init__(self) -> None:
        self._mp = _context(self.digits)
        self._rounding = self._mp.mpf(10) ** (_GUARD - self.digits)

    def evaluate(self, node: Node) -> Value:
        """The value of an expression here.

        Raises:
            UndefinedError: it has none.
            BeyondError: it has none within the limits, or rounding has spoilt it.
        """
        value, slack = self._evaluate(node)
        if slack > (1 + abs(value)) * self._mp.mpf(10) ** (_SPARE - self.digits):
            raise BeyondError
        return value, slack

    def _evaluate(self, node: Node) -> Value:
        value, slack = self._value(node)
        if not self._mp.isfinite(abs(value) + slack):
            raise BeyondError
        return value, slack + abs(value) * self._rounding

    def _value(self, node: Node) -> Value:
        mp = self._mp
        if node.value is not None:
            return mp.mpc(node.value.numerator) / node.value.denominator, 0
        if node.kind == "symbol":
            value = self.values[node.name]
            return mp.mpc(value.numerator) / value.denominator, 0
        if node.kind == "constant":
            constants = {"pi": mp.pi, "e": mp.e, "i": mp.j}
            if node.name not in constants:
                raise UndefinedError
            return mp.mpc(constants[node.name]), 0
        parts = [self._evaluate(part) for part in node.parts]
        if node.kind == "add":
            return mp.fsum(value for value, _ in parts), mp.fsum(slack for _, slack in parts)
        if node.kind == "mul":
            product, slack = mp.mpc(1), mp.mpf(0)
            for value, value_slack in parts:
                product, slack = product * value, abs(product) * value_slack + slack * (abs(value) + value_slack)
            return product, slack
        exponent = node.parts[1].value if node.kind == "pow" else Fraction(1)
        is_root = exponent is None or exponent.denominator != 1  # it jumps where its base crosses the negative numbers
        if is_root or node.name in _CUT:
            base, slack = parts[0]
            if base.imag and abs(base.imag) <= slack + abs(base) * self._rounding:
                raise BeyondError  # rounding may have put it on the wrong side of the real axis
        function = self._power if node.kind == "pow" else partial(self._call, node.name)
        value = function(*(value for value, _ in parts))
        return value, abs(function(*(value + slack for value, slack in parts)) - value)

    def _power(self, base: Any, exponent: Any) -> Any:
        mp = self._mp
        if abs(base) < self._rounding:  # zero, or too close to it for these digits
            raise UndefinedError
        if abs(exponent * mp.log(base)) > _LARGEST_LOGARITHM:
            raise BeyondError
        return mp.power(base, exponent)

    def _call(self, name: str, argument: Any) -> Any:
        mp = self._mp
        if name == "abs":
            return mp.mpc(abs(argument))
        if abs(argument) > _LARGEST_ARGUMENT or (name == "factorial" and abs(argument) > 1000):
            raise BeyondError
        try:
            return mp.mpc(getattr(mp, name)(argument))
        except (ValueError, ZeroDivisionError) as error:  # a pole
            raise UndefinedError from error


def points_for(seed: str, *nodes: Node) -> Iterator[Point]:
    """Points hashed from a seed: without letters one; else 16, of both signs, below 1, around the constants and beyond.

    Up to four letters have every pattern of signs, and each has every size with either sign.
    """
    digits = digits_for(*nodes)
    letters = sorted(set().union(*map(symbols, nodes)))
    constants = sorted({abs(value) for node in nodes for value in _constants(node)} | {Fraction(1)})
    for number in range(2**_BITS if letters else 1):
        values = {}
        for place, letter in enumerate(letters):
            digest = hashlib.blake2b(f"{seed} {number} {letter}".encode(), digest_size=32).digest()
            pattern = number if place < _BITS else digest[-1]
            values[letter] = _coordinate(pattern, place % _BITS, constants, int.from_bytes(digest[:24], "big"))
        yield Point(values, digits)


def _coordinate(pattern: int, place: int, constants: list[Fraction], chance: int) -> Fraction:
    """A number whose sign is the bit of a pattern at `place`, and whose size is given by the next two."""
    negative, size = pattern >> place & 1, sum((pattern >> (place + n) % _BITS & 1) << n - 1 for n in (1, 2))
    chosen = constants[chance % len(constants)]
    share = Fraction((chance >> 64) + 1, 2**128 + 1)
    value = (
        share,  # between 0 and 1
        1 + 7 * share,
        abs(chosen + 2 * share - 1),  # near a constant, where an absolute value may turn
        (8 + constants[-1]) * (1 + share),  # beyond all of them
    )[size]
    return -value if negative else value


def _constants(node: Node) -> Iterable[Fraction]:
    if node.value is not None:
        yield node.value
    for part in node.parts:
        yield from _constants(part)


def digits_for(*nodes: Node) -> int:
    """Digits that distinguish the expressions as far as their constants do: x from x + 10^-100, say."""
    return min(_MOST_DIGITS, _DIGITS + sum(map(_digits, nodes)))


def _digits(node: Node) -> int:
    if node.value is not None:
        bits = max(node.value.numerator.bit_length(), node.value.denominator.bit_length())
        return 0 if bits < 16 else bits * 3 // 10
    return sum(map(_digits, node.parts))


@cache
def _context(digits: int) -> Any:
    """Arithmetic of that many digits, apart from mpmath's own context, which others may have set."""
    context = MPContext()
    context.dps = digits
    return context
