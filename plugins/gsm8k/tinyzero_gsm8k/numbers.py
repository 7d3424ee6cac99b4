"""Numbers as people write results. Reading is exact: what is not plainly one number is none."""

import re
from fractions import Fraction

_LONGEST = 64
_NUMBER = re.compile(
    r"(?P<sign>[+\-−]?)(?:\\?[$€£])?(?P<whole>[0-9]{1,3}(?:,[0-9]{3})+|[0-9]+)(?:\.(?P<decimals>[0-9]*))?%?"
)


def read_number(text: str) -> Fraction | None:
    """The number that `text` is, exactly, or None.

    A sign, a currency sign before, commas between thousands, decimals, a full stop or a percent sign after.
    Refused: units and other words, exponents, fractions, groups of another length, other scripts.

    Example:
        >>> read_number("$1,042.00") == read_number("1042.") == 1042
        True
        >>> read_number("18 dollars"), read_number("1,04")
        (None, None)
    """
    text = text.strip()
    match = _NUMBER.fullmatch(text) if len(text) <= _LONGEST else None
    if match is None:
        return None
    magnitude = Fraction(f"{match['whole'].replace(',', '')}.{match['decimals'] or '0'}")
    return -magnitude if match["sign"] in ("-", "−") else magnitude
