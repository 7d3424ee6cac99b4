"""Reading an answer as one whole number, alone or as the result of `a * b = c`.

Reading is exact: what is not plainly one number, or such an equation, is not read at all. Nothing in here knows
the task's numbers; `scoring.py` compares them.
"""

import re
from itertools import accumulate
from typing import NamedTuple

MAX_LENGTH = 128
"""Characters of the longest answer that is read, where the product is not so long that an equation needs more."""

MOST_MARKS = 8
"""Pairs of marks, one within another, that are taken off."""

WRAPPERS = (
    *(("$$", "$$"), ("$", "$"), (r"\(", r"\)"), (r"\[", r"\]")),
    *((f"\\{command}{{", "}") for command in ("boxed", "text", "textbf", "mathbf", "mathrm")),
    *(("```", "```"), ("`", "`"), ("**", "**"), ("*", "*")),
)
"""Marks that LaTeX and Markdown put around a number or an equation."""

SEPARATORS = (",", " ", "\u00a0", "\u2009", "\u202f", "'", "\u2019", "{,}", r"\,", r"\;", r"\:", "\\ ", r",\!")
"""Between groups of three digits, the same throughout: commas, spaces, apostrophes, and LaTeX's ways to write them."""

TIMES = ("*", "×", "·", "⋅", "∗", "x", "X", r"\times", r"\cdot")
"""Signs of multiplication."""


def _any_of(texts: tuple[str, ...]) -> str:
    return "|".join(map(re.escape, sorted(texts, key=len, reverse=True)))


def _number(name: str) -> str:
    separated = rf"[1-9][0-9]{{0,2}}(?P<{name}>{_any_of(SEPARATORS)})[0-9]{{3}}(?:(?P={name})[0-9]{{3}})*"
    return rf"(?:{separated}|[1-9][0-9]*|0)"


_read_number = re.compile(rf"(?:[+−-]?{_number('separator')})(?<![−-]0)").fullmatch
_read_product = re.compile(rf"({_number('first')})\s*(?:{_any_of(TIMES)})\s*({_number('second')})").fullmatch
_without_separators = re.compile(r"[^0-9]").sub


class Reading(NamedTuple):
    """What an answer says."""

    number: int
    """The result."""

    factors: tuple[int, int] | None
    """The factors, where the answer is an equation that names them."""


def longest_answer(product: str) -> int:
    """Room for an equation with as many separators and spaces as there may be, and for the marks around it."""
    return max(MAX_LENGTH, 6 * len(product))


def read(answer: str, longest: int = MAX_LENGTH) -> Reading | None:
    """What an answer says, or None where that is not plain.

    A number is written in ASCII digits, with an optional sign and thousands apart or not. Refused: leading zeros,
    groups of another length or with mixed separators, decimals, exponents, `_`, other scripts, several numbers.

    Example:
        >>> read(" 56,088. "), read("56_088"), read("56,08,8")
        (Reading(number=56088, factors=None), None, None)
        >>> read(r"$123 \\times 456 = \\boxed{56088}$")
        Reading(number=56088, factors=(123, 456))
    """
    if len(answer) > longest:
        return None
    if answer.isascii() and answer.isdigit():  # most answers
        return Reading(int(answer), None) if answer[0] != "0" or answer == "0" else None
    left, equals, right = _unwrap(_without_full_stop(answer)).rpartition("=")
    number = _read_integer(_unwrap(right) if equals else right)
    if number is None:
        return None
    if not left.strip():
        return Reading(number, None)
    product = _read_product(_unwrap(left))
    return Reading(number, (_digits(product[1]), _digits(product[3]))) if product else None


def _read_integer(text: str) -> int | None:
    if not _read_number(text):
        return None
    return -_digits(text) if text[0] in "-−" else _digits(text)


def _digits(text: str) -> int:
    return int(_without_separators("", text))


def _without_full_stop(text: str) -> str:
    return text.rstrip().removesuffix(".")


def _unwrap(text: str) -> str:
    """The text without the marks around it, and without space."""
    for _ in range(MOST_MARKS):
        text = text.strip()
        if text[:1].isdigit():  # so no mark begins it
            return text
        inner = next(filter(None, (_between(text, left, right) for left, right in WRAPPERS)), None)
        if inner is None:
            return text
        text = _without_full_stop(inner)
    return text.strip()


def _between(text: str, left: str, right: str) -> str | None:
    """What stands between two marks, if they are a pair: `$a$ = $b$` are two texts with marks around them."""
    if not (len(text) > len(left + right) and text.startswith(left) and text.endswith(right)):
        return None
    inner = text[len(left) : -len(right)]
    if right == "}":
        depths = accumulate({"{": 1, "}": -1}.get(letter, 0) for letter in inner)
        return inner if min(depths) >= 0 else None
    if right == "*" and inner.count("*") == 1:
        return inner  # a sign of multiplication
    return None if right in inner else inner
