"""What the parser gives: trees of plain data, and the constructors that keep them small.

A rational constant is always one node with its exact value, so that whatever a text may make grow (a power of a
power, a factorial) is bounded or refused where it is read. No sympy in here.
"""

from dataclasses import dataclass
from fractions import Fraction
from math import factorial
from typing import Literal

MAX_LENGTH = 1000  # characters of a text
MAX_DEPTH = 32  # expressions inside one another
MAX_DIGITS = 100  # digits of one number in a text
MAX_BITS = 4096  # of the numerator and of the denominator of a constant
MAX_EXPONENT = 1000  # of a power, and the numerator and the denominator of a fraction there
MAX_FACTORIAL = 300

MAX_PARTS = 16  # parts of a list, a set or a tuple
Kind = Literal["number", "symbol", "constant", "add", "mul", "pow", "call"]

Shape = Literal["value", "equation", "set", "()", "[]", "(]", "[)"]
"""One expression; two with `=` between them; several whose order is of no importance (`{a, b}`, or bare `a, b`);
several in order, in brackets: a pair in any of them may be an interval."""


class ExpressionError(ValueError):
    """A text is no expression, or exceeds a limit; the message says which."""


@dataclass(frozen=True, slots=True)
class Node:
    """One expression."""

    kind: Kind
    parts: tuple["Node", ...] = ()
    """What it is made of: terms, factors, base and exponent, or arguments."""

    name: str = ""
    """Name of a symbol, a constant or a function."""

    value: Fraction | None = None
    """Value of a number."""


@dataclass(frozen=True, slots=True)
class Expression:
    """The content of a text: an expression, or several in a shape."""

    shape: Shape
    """How the parts stand together."""

    parts: tuple[Node, ...]
    """One for a value, two for an equation."""


def number(value: Fraction | int) -> Node:
    """A rational constant.

    Raises:
        ExpressionError: it is too large.
    """
    value = Fraction(value)
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
        raise ExpressionError(f"a constant of more than {MAX_BITS} bits")
    return Node("number", value=value)


MINUS_ONE = number(-1)
INFINITY = Node("constant", name="infinity")


def add(terms: list[Node]) -> Node:
    return _fold("add", terms)


def multiply(factors: list[Node]) -> Node:
    return _fold("mul", factors)


def negative(node: Node) -> Node:
    if node == INFINITY:
        return Node("constant", name="-infinity")
    return multiply([MINUS_ONE, node])


def _fold(kind: Literal["add", "mul"], parts: list[Node]) -> Node:
    """The sum or product, its rational constants made one."""
    total, others = Fraction(kind == "mul"), []
    for part in parts:
        if part.value is None:
            others.append(part)
        else:
            total = number(total + part.value if kind == "add" else total * part.value).value or Fraction(0)
    if not others:
        return number(total)
    if total != (kind == "mul"):
        others.append(number(total))
    return others[0] if len(others) == 1 else Node(kind, tuple(others))


def divide(left: Node, right: Node) -> Node:
    return multiply([left, power(right, MINUS_ONE)])


def power(base: Node, exponent: Node) -> Node:
    """base ^ exponent.

    Raises:
        ExpressionError: a division by zero, 0^0, or more than the limits allow.
    """
    if exponent.value is None:
        return Node("pow", (base, exponent))
    value = exponent.value
    if max(abs(value.numerator), value.denominator) > MAX_EXPONENT:
        raise ExpressionError(f"an exponent of more than {MAX_EXPONENT}")
    if value == 1:
        return base
    if base.value is None:
        return Node("pow", (base, exponent))
    if base.value == 0 and value <= 0:
        raise ExpressionError("a division by zero" if value < 0 else "0^0, which has no value")
    if value.denominator != 1:
        return base if base.value in (0, 1) else Node("pow", (base, exponent))
    if max(base.value.numerator.bit_length(), base.value.denominator.bit_length()) * abs(value) > 2 * MAX_BITS:
        raise ExpressionError(f"a constant of more than {MAX_BITS} bits")
    return number(base.value ** int(value))


def root(radicand: Node, index: Node) -> Node:
    """The index-th root; of a negative constant the real one, where the index is odd."""
    odd = index.value is not None and index.value.denominator == 1 and index.value % 2 == 1
    if odd and radicand.value is not None and radicand.value < 0:
        return negative(root(number(-radicand.value), index))
    return power(radicand, divide(number(1), index))


def call(name: str, argument: Node) -> Node:
    """A function of one argument.

    Raises:
        ExpressionError: a factorial of something else than a natural number up to `MAX_FACTORIAL`.
    """
    value = argument.value
    if name == "exp":
        return power(Node("constant", name="e"), argument)
    if name == "sqrt":
        return root(argument, number(2))
    if name == "ln" and value == 1:
        return number(0)
    if name == "abs" and value is not None:
        return number(abs(value))
    if name == "factorial" and value is not None:
        if value.denominator != 1 or not 0 <= value <= MAX_FACTORIAL:
            raise ExpressionError(f"a factorial of something else than a natural number up to {MAX_FACTORIAL}")
        return number(factorial(int(value)))
    return Node("call", (argument,), name)


def symbols(node: Node) -> set[str]:
    """The names of the letters in it."""
    if node.kind == "symbol":
        return {node.name}
    return set().union(*map(symbols, node.parts))
