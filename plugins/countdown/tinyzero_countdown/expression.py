"""Reading an answer as an arithmetic expression, and evaluating it exactly.

An answer is cut into its numbers and what stands between them, its *shape*: `(17 + 1) - 3` has the shape
`(0 + 0) - 0`. Structure is parsed once per shape and remembered; the numbers are evaluated anew for every
answer, as integers and fractions. Nothing here runs text as code, and the length that is read bounds the work.
"""

import operator
import re
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import lru_cache, partial
from typing import NamedTuple

MAX_LENGTH = 256
"""Characters of the longest answer that is read, where the puzzle is not so long that an answer needs more."""

MAX_DIGITS = 4300
"""Digits of the longest number, as many as Python reads."""

Value = int | Fraction
Step = tuple[Callable[[Value, Value], Value], int, int]
"""(function, i, j): append function(values[i], values[j]) to the values, which start as the numbers."""


class Program(NamedTuple):
    """A parsed shape: what to do with the numbers of an answer."""

    steps: tuple[Step, ...]
    """In order; the last one gives the result."""

    claim: int
    """The sign of the number where the answer ends in `= number`, which is no part of the expression; 0 elsewhere."""


def read(answer: str, longest: int = MAX_LENGTH) -> tuple[Program, list[int]] | None:
    """The program and the numbers of an answer, or None if it is malformed.

    Example:
        >>> program, numbers = read("(17 + 1) ÷ 4")
        >>> numbers, evaluate(program, numbers)
        ([17, 1, 4], Fraction(9, 2))
    """
    if len(answer) > longest:
        return None
    text = answer.encode("utf-8", "surrogatepass")  # in bytes, all this takes half the time of a regular expression
    program = parse_shape(text.translate(_WITH_ZEROS).replace(b"00", b"0"))  # so numbers below 100 have one shape
    if program is None:
        return None
    numbers = text.translate(_WITHOUT_OTHERS).split()
    try:
        return program, list(map(_small, numbers))
    except KeyError:
        return None if any(map(_is_unreadable, numbers)) else (program, list(map(int, numbers)))


def evaluate(program: Program, numbers: Sequence[int]) -> Value:
    """The exact value of an expression.

    Raises:
        ZeroDivisionError: a divisor is zero.
    """
    values: list[Value] = [*numbers]
    for function, left, right in program.steps:
        values.append(function(values[left], values[right]))
    return values[-1]


def _divide(dividend: Value, divisor: Value) -> Value:
    # Integers wherever possible: they are ten times as fast as fractions.
    return Fraction(dividend, divisor) if dividend % divisor else dividend // divisor


FUNCTIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": _divide}

_DIGITS = b"0123456789"
_WITH_ZEROS = bytes.maketrans(_DIGITS, b"0" * 10)
_WITHOUT_OTHERS = bytes(byte if byte in _DIGITS else ord(" ") for byte in range(256))
_is_unreadable = re.compile(rb"0.|.{%d}" % (MAX_DIGITS + 1)).match  # a leading zero, or too many digits
_small = {b"%d" % number: number for number in range(1000)}.__getitem__  # in a third of the time of reading the digits
_find_lexemes = re.compile(
    r"\\(?:left|right)\s*[()\[\]] | \\[dt]?frac\s*\{ | \}\s*\{ | \\[A-Za-z]+ | \S", re.VERBOSE
).findall
_one_zero = partial(re.compile("0+").sub, "0")
_blank_latex_spaces = partial(re.compile(r"\\[,;:!]").sub, " ")
_WRAPPERS = ((r"\boxed{", "}"), ("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]"), ("**", "**"), ("`", "`"))

_FRACTION = ("fraction", "numerator")
_TOKENS = {lexeme: (lexeme,) for lexeme in "0+-*/()[]="} | {
    "×": ("*",), "·": ("*",), "⋅": ("*",), "∗": ("*",), "÷": ("/",), "−": ("-",),
    r"\times": ("*",), r"\cdot": ("*",), r"\div": ("/",),
    r"\left(": ("(",), r"\left[": ("[",), r"\right)": (")",), r"\right]": ("]",),
    r"\frac{": _FRACTION, r"\dfrac{": _FRACTION, r"\tfrac{": _FRACTION,
    "}{": ("end numerator", "/", "denominator"), "}": ("end denominator", "end fraction"),
}  # fmt: skip
_CLOSED_BY = {
    "start": "end", "(": ")", "[": "]",
    "fraction": "end fraction", "numerator": "end numerator", "denominator": "end denominator",
}  # fmt: skip
_STRENGTH = {"+": 1, "-": 1, "*": 2, "/": 2}


@lru_cache(maxsize=4096)  # a model uses some hundred shapes; hostile ones fill at most about 40 MB
def parse_shape(shape: bytes) -> Program | None:
    """The program of a shape, in UTF-8, or None if it is malformed; several zeros stand for one number."""
    text = _one_zero(shape.decode("utf-8", "surrogatepass"))
    tokens = _tokenize(_unwrap(_blank_latex_spaces(text)))
    claim = 1 if tokens[-2:] == ["=", "0"] else -1 if tokens[-3:] == ["=", "-", "0"] else 0
    steps = _parse(tokens[: -2 - (claim < 0)] if claim else tokens)
    return None if steps is None else Program(tuple(steps), claim)


def _unwrap(shape: str) -> str:
    """The shape without the marks that LaTeX and Markdown put around mathematics, and without a full stop."""
    while True:
        shape = shape.strip().removesuffix(".").rstrip()
        for left, right in _WRAPPERS:
            if len(shape) >= len(left + right) and shape.startswith(left) and shape.endswith(right):
                shape = shape[len(left) : -len(right)]
                break
        else:
            return shape


def _tokenize(shape: str) -> list[str]:
    lexemes = ("".join(lexeme.split()) for lexeme in _find_lexemes(shape))
    return [token for lexeme in lexemes for token in _TOKENS.get(lexeme, ("unknown",))]


def _parse(tokens: list[str]) -> list[Step] | None:
    """The steps, by operator precedence with explicit stacks (Dijkstra's shunting yard); None if malformed."""
    places: list[int] = []  # of the operands, among the values
    pending = ["start"]  # openings, and the operators that wait for their right operand
    steps: list[Step] = []
    number_count, numbers_seen, after_operand = tokens.count("0"), 0, False
    for token in [*tokens, "end"]:
        if token == "0" or token in _CLOSED_BY:
            if after_operand:
                return None  # implied multiplication
            if token == "0":
                places.append(numbers_seen)
                numbers_seen, after_operand = numbers_seen + 1, True
            else:
                pending.append(token)
            continue
        if not after_operand:
            return None  # an operator, a closing or the end, with no operand before it
        strength = _STRENGTH.get(token, 0)
        while _STRENGTH.get(pending[-1], -1) >= strength:
            right, left = places.pop(), places.pop()
            steps.append((FUNCTIONS[pending.pop()], left, right))
            places.append(number_count + len(steps) - 1)
        if strength:
            pending.append(token)
            after_operand = False
        elif _CLOSED_BY[pending.pop()] != token:
            return None  # brackets that do not match, or an unknown token
    return steps
