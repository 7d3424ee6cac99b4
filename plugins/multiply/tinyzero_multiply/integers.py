"""Whole numbers as people write them. Reading is exact: what is not plainly one number is none."""

import re

SEPARATORS = (",", " ", "\u00a0", "\u202f")
"""Between groups of three digits: comma, space, no-break space, narrow no-break space."""

_LONGEST = 64
_GROUPED = rf"[1-9][0-9]{{0,2}}([{''.join(SEPARATORS)}])[0-9]{{3}}(?:\1[0-9]{{3}})*"
_INTEGER = re.compile(rf"(?:[+-]?(?:{_GROUPED}|[1-9][0-9]*)|\+?0)\.?")
_NOT_DIGITS = re.compile(r"[^0-9-]")


def read_integer(text: str) -> int | None:
    """The number that `text` is, or None.

    An optional sign, ASCII digits, thousands apart or not, and a full stop that ends the sentence. Refused:
    leading zeros, groups of another length or with mixed separators, decimals, exponents, `_`, other scripts.

    Example:
        >>> read_integer(" 56,088 "), read_integer("56_088"), read_integer("56,08,8")
        (56088, None, None)
    """
    text = text.strip()
    if len(text) > _LONGEST or not _INTEGER.fullmatch(text):
        return None
    return int(_NOT_DIGITS.sub("", text))


def spells(text: str, number: int) -> bool:
    """Whether `text` writes `number` (0 or more), by comparison with every accepted way to write it.

    The second opinion on `read_integer`: it shares no rule with it, and goes from the number to the text.
    """
    ways = {str(number)} | {f"{number:,}".replace(",", separator) for separator in SEPARATORS}
    return text.strip().removesuffix(".").removeprefix("+") in ways
