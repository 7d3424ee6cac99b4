"""What a careless reader would compute from an answer: a guess at which ground truth a broken reward takes it for.

It scores nothing: it reads decimals, powers and integer division in the way of most programming languages,
whatever the task allows.
"""

import re
from fractions import Fraction

_LONGEST = 80
_LARGEST = 10**9
_TOKEN = re.compile(r"[0-9]+(?:\.[0-9]*)?|\.[0-9]+|\*\*|//|[-+*/^%()\[\]×÷−·]|\s+|(.)", re.DOTALL)
_SAME = {"×": "*", "·": "*", "÷": "/", "−": "-", "^": "**", "[": "(", "]": ")"}
_STRENGTH = {"+": 1, "-": 1, "*": 2, "/": 2, "//": 2, "%": 2, "**": 4}
_SIGN_STRENGTH = 3


class _Unreadable(Exception):
    """It is no arithmetic, or too much of it."""


def guess_value(text: str) -> Fraction | None:
    """The value of what stands before the first `=` or `#`, or None.

    Example:
        >>> guess_value("4.5 * 2"), guess_value("2**3 - 4 = 4"), guess_value("about 3")
        (Fraction(9, 1), Fraction(4, 1), None)
    """
    text = re.split("[=#]", text, maxsplit=1)[0]
    if len(text) > _LONGEST:
        return None
    tokens = []
    for match in _TOKEN.finditer(text):
        if match[1] is not None:
            return None
        if not match[0].isspace():
            tokens.append(_SAME.get(match[0], match[0]))
    tokens.reverse()
    try:
        value = _expression(tokens, 0)
    except (_Unreadable, ZeroDivisionError, RecursionError):
        return None
    return None if tokens else value


def _expression(tokens: list[str], weakest: int) -> Fraction:
    """Precedence climbing; `tokens` are reversed, and what is read is taken off."""
    value = _operand(tokens)
    while tokens and _STRENGTH.get(tokens[-1], -1) >= weakest:
        operator = tokens.pop()
        strength = _STRENGTH[operator]
        value = _apply(operator, value, _expression(tokens, strength if operator == "**" else strength + 1))
    return value


def _operand(tokens: list[str]) -> Fraction:
    if not tokens:
        raise _Unreadable
    token = tokens.pop()
    if token in "+-":
        value = _expression(tokens, _SIGN_STRENGTH)
        return -value if token == "-" else value
    if token == "(":
        value = _expression(tokens, 0)
        if not tokens or tokens.pop() != ")":
            raise _Unreadable
        return value
    if token[0] not in ".0123456789":
        raise _Unreadable
    value = Fraction(token)
    if value > _LARGEST:
        raise _Unreadable
    return value


def _apply(operator: str, left: Fraction, right: Fraction) -> Fraction:
    match operator:
        case "+":
            value = left + right
        case "-":
            value = left - right
        case "*":
            value = left * right
        case "/":
            value = left / right
        case "//":
            value = Fraction(left // right)
        case "%":
            value = left % right
        case _:
            if right.denominator != 1 or abs(right) > 30:
                raise _Unreadable
            value = Fraction(left ** int(right))
    if abs(value) > _LARGEST or value.denominator > _LARGEST:
        raise _Unreadable
    return value
