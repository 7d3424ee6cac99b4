"""Reading a result as people write it: one number, exactly, in any of the usual forms, or None.

`LONGEST` and `MOST_DIGITS` bound the work. What LaTeX and Markdown add is taken off by `dress.py`; what else may stand
around a number is decided by `context.py`.
"""

import re
from fractions import Fraction
from unicodedata import category, numeric

from tinyzero_gsm8k.context import factor
from tinyzero_gsm8k.dress import undress

LONGEST = 512
"""Characters of the longest answer that is read."""

MOST_DIGITS = 40
"""Digits of the longest number, and the greatest exponent."""

_WHOLE = r"(?:[1-9][0-9]{0,2}(?:,[0-9]{3})+|[0-9]+)"  # 0,125 has a decimal comma
_DECIMAL = rf"(?:{_WHOLE}(?:\.[0-9]+)?|\.[0-9]+)"
_POINTED = rf"(?:{_WHOLE}(?:\.[0-9]*)?|\.[0-9]+)"  # 1.e3; the point of "5." is a full stop
_SIGN = r"[+\-−]"
_RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻", "0123456789+-")
_VULGAR = "[¼-¾⅐-⅞]"
_NUMBER = re.compile(
    rf"""
    (?P<sign>{_SIGN}?) (?P<money>(?:[$€£¥₹][ ]?)?) (?P<late_sign>{_SIGN}?)
    (?:
        (?:(?P<factor>{_POINTED}) \s* [×xX*·⋅] \s*)? (?<![0-9.])10
        (?: \s* \^ \s* (?P<power>{_SIGN}?[0-9]{{1,3}}) | (?P<raised>[⁺⁻]?[⁰¹²³⁴-⁹]{{1,3}}) )
      | (?: (?P<whole>{_WHOLE}) (?: \s+(?:and\s+)? | (?={_VULGAR}) ) )?
        (?: (?P<top>{_WHOLE}) \s* [/⁄] \s* (?P<bottom>{_WHOLE}) | (?P<vulgar>{_VULGAR}) )
      | (?P<decimal>{_POINTED}(?=[eE]{_SIGN}?[0-9])|{_DECIMAL}) (?:[eE](?P<exponent>{_SIGN}?[0-9]{{1,3}}))?
    )
    """,
    re.VERBOSE,
)
_PLAIN = re.compile(rf"(-?)\$?({_WHOLE})(?:\.([0-9]*))?")
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")
_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Mn", "Me"})  # of Unicode's categories


def read_number(text: str) -> int | Fraction | None:
    """The one number that stands in `text`, exactly; None if there is none, more than one, or something denies it.

    Example:
        >>> read_number("$1,042.00") == read_number("1042.") == read_number("She has 1042 apples left.") == 1042
        True
        >>> read_number(r"2\\frac{1}{2}"), read_number("-1.5e3"), read_number("50%")
        (Fraction(5, 2), Fraction(-1500, 1), Fraction(50, 1))
        >>> read_number("41 or 42"), read_number("not 42"), read_number("1,04")
        (None, None, None)
    """
    if text.isdigit() and text.isascii():  # most answers
        return int(text) if len(text) <= MOST_DIGITS else None
    text = text.strip()
    plain = _PLAIN.fullmatch(text)
    if plain and len(text) <= MOST_DIGITS:  # nearly all others
        whole, decimals = plain[1] + plain[2].replace(",", ""), (plain[3] or "").rstrip("0")
        return Fraction(int(whole + decimals), 10 ** len(decimals)) if decimals else int(whole)
    if not text or len(text) > LONGEST or _is_deceptive(text):
        return None
    text = undress(text)
    match = _NUMBER.search(text)
    if match is None:
        return None
    if match["sign"] and match["late_sign"]:
        return None
    times = factor(
        text[: match.start()],
        text[match.end() :],
        sign=match["sign"] or match["late_sign"],
        money=bool(match["money"]),
    )
    magnitude = None if times is None else _magnitude(match)
    return None if times is None or magnitude is None else times * magnitude


def _is_deceptive(text: str) -> bool:
    """Whether what is seen may differ from what is read: invisible characters, strokes through others, turned text."""
    return bool(_CONTROL.search(text)) or (
        not text.isascii()
        and not _HIDDEN.isdisjoint(map(category, text))
        and any(category(letter) in _HIDDEN and letter not in "\t\n\r" for letter in text)
    )


def _magnitude(match: re.Match[str]) -> Fraction | None:
    """The value of what `_NUMBER` matched, without its sign; None if it has too many digits or no value."""
    if sum(map(str.isdigit, match[0])) > MOST_DIGITS:
        return None
    if match["bottom"]:
        return _mixed(match["whole"], _whole(match["top"]), _whole(match["bottom"]))
    if match["vulgar"]:
        return Fraction(numeric(match["vulgar"])).limit_denominator(10) + _whole(match["whole"] or "0")
    exponent = match["power"] or match["raised"] or match["exponent"] or "0"
    power = int(exponent.translate(_RAISED).replace("−", "-"))
    if abs(power) > MOST_DIGITS:
        return None
    decimal = match["factor"] or match["decimal"]
    # `10^3` alone has no factor.
    return (Fraction(1) if decimal is None else _decimal(decimal)) * Fraction(10) ** power


def _mixed(whole: str | None, top: int, bottom: int) -> Fraction | None:
    if bottom == 0 or (whole is not None and top >= bottom):
        return None
    return (_whole(whole) if whole else 0) + Fraction(top, bottom)


def _whole(text: str) -> int:
    return int(text.replace(",", ""))


def _decimal(text: str) -> Fraction:
    digits, _, decimals = text.replace(",", "").partition(".")
    return Fraction(int(digits + decimals), 10 ** len(decimals))
