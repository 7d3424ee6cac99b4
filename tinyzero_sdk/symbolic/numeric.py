"""The value of an expression at a point, to many digits, in bounded time: no sympy, and nothing beyond the limits.

Numbers can only tell expressions apart. That two agree, however many digits, is no proof that they are equal.
"""

import hashlib
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from tinyzero_sdk.symbolic.expression import Node
from tinyzero_sdk.symbolic.identity import UndefinedError

_DIGITS = 60  # beyond those that the constants of a text have themselves
_GUARD = 10  # of these, digits that the rounding of one operation may spoil
_SPARE = 30  # of these, digits that all rounding together may spoil
_MOST_DIGITS = 1500
_LARGEST_LOGARITHM = 20_000  # of a power
_LARGEST_ARGUMENT = 1e6  # of a function
Value = tuple[Any, Any]
"""A complex number, and how far from the truth rounding may have brought it."""


@dataclass
class Point:
    """A value for each letter, and what evaluating there needs."""

    seed: str
    """What the values are hashed from: positive numbers below 2."""

    digits: int
    """How many are reckoned with."""

    def __post_init__(self) -> None:
        self._mp = _context(self.digits)
        self._rounding = self._mp.mpf(10) ** (_GUARD - self.digits)

    def differ(self, left: Node, right: Node) -> bool:
        """Whether the two have different values here.

        Raises:
            UndefinedError: one of them has none, or one beyond the limits, or one that rounding has spoilt.
        """
        (a, slack_a), (b, slack_b) = self._evaluate(left), self._evaluate(right)
        slack = slack_a + slack_b
        if slack > (1 + abs(a) + abs(b)) * self._mp.mpf(10) ** (_SPARE - self.digits):
            raise UndefinedError
        return bool(abs(a - b) > slack)

    def _evaluate(self, node: Node) -> Value:
        value, slack = self._value(node)
        if not self._mp.isfinite(abs(value) + slack):
            raise UndefinedError
        return value, slack + abs(value) * self._rounding

    def _value(self, node: Node) -> Value:
        mp = self._mp
        if node.value is not None:
            return mp.mpc(node.value.numerator) / node.value.denominator, 0
        if node.kind == "symbol":
            digest = hashlib.blake2b(f"{self.seed} {node.name}".encode(), digest_size=16).digest()
            return mp.mpc(int.from_bytes(digest, "big") + 1) / 2**127, 0
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
        function = self._power if node.kind == "pow" else partial(self._call, node.name)
        value = function(*(value for value, _ in parts))
        return value, abs(function(*(value + slack for value, slack in parts)) - value)

    def _power(self, base: Any, exponent: Any) -> Any:
        mp = self._mp
        if abs(base) < self._rounding:  # nought, or so near that the digits do not tell
            raise UndefinedError
        if abs(exponent * mp.log(base)) > _LARGEST_LOGARITHM:
            raise UndefinedError
        return mp.power(base, exponent)

    def _call(self, name: str, argument: Any) -> Any:
        mp = self._mp
        if name == "abs":
            return mp.mpc(abs(argument))
        if abs(argument) > _LARGEST_ARGUMENT or (name == "factorial" and abs(argument) > 1000):
            raise UndefinedError
        try:
            return mp.mpc(getattr(mp, name)(argument))
        except (ValueError, ZeroDivisionError) as error:  # a pole
            raise UndefinedError from error


def digits_for(*nodes: Node) -> int:
    """How many digits tell the expressions apart as far as their constants go: x from x + 10^-100, say."""
    return min(_MOST_DIGITS, _DIGITS + sum(map(_digits, nodes)))


def _digits(node: Node) -> int:
    if node.value is not None:
        bits = max(node.value.numerator.bit_length(), node.value.denominator.bit_length())
        return 0 if bits < 16 else bits * 3 // 10
    return sum(map(_digits, node.parts))


@cache
def _context(digits: int) -> Any:
    """Arithmetic of that many digits, apart from mpmath's own context, which others may have set."""
    from mpmath import MPContext

    context = MPContext()
    context.dps = digits
    return context
