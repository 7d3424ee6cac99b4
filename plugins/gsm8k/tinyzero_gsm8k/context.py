"""What may stand around the one number of an answer: units, and a sentence that does not take it back."""

import re
from collections.abc import Sequence

from tinyzero_gsm8k.words import MISREAD_UNITS, MULTIPLIERS, NEGATIVE, PARTS, UNSAID, UNSAID_BEFORE, VARIABLES

# What the number may stand beside. A letter before it makes it part of a name, unless a currency sign is between.
_BEFORE = re.compile(r"(?:.*[\s(\[\"'“‘:=≈]|.*[^\x00-\x7f\W\d])?", re.DOTALL)
_BEFORE_MONEY = re.compile(r"(?:.*[\s(\[\"'“‘:=≈]|.*[^\W\d_])?", re.DOTALL)
_AFTER = re.compile(r"(?:[\s%$€£¥₹.,;:!)\]\"'’”°]|[/-](?=[A-Za-z])|[^\W\d_]).*", re.DOTALL)
# What stands nowhere: digits, arithmetic, comparisons, marks that no rule took off, doubt.
_STRAY_BEFORE = re.compile(r"[0-9+*×÷^√_|\\{}<>≤≥≠±π∞#@&?~−]|[-–]\s*$|=.*=", re.DOTALL)
_STRAY_AFTER = re.compile(
    rf"[0-9+*×÷^√_|\\{{}}<>≤≥≠±π∞#@&?~=−]|[-/]\s*[{''.join(sorted(VARIABLES))}](?![a-z])", re.IGNORECASE
)
_WORD = re.compile(r"[a-z]+")
_CONTRACTION = re.compile(r"n['’]t", re.IGNORECASE)  # isn't, can't
_UNIT = re.compile(r"\s*([A-Za-z]+)")
_NEGATION = re.compile(rf"(?:^|(?<=[^A-Za-z]))(?:{'|'.join(sorted(NEGATIVE))})\s+$", re.IGNORECASE)


def factor(before: str, after: str, *, sign: str, money: bool) -> int | None:
    """What the surroundings of a number multiply it with, such as -1 or 1,000; None where they forbid it.

    Args:
        before: the text before the number, its sign and its currency.
        after: the text after it.
        sign: "+", "-", "−" or "".
        money: a currency sign stands before it.

    Example:
        >>> factor("He owes minus ", " million dollars.", sign="", money=False)
        -1000000
        >>> factor("not ", "", sign="", money=False), factor("A", "", sign="", money=False)
        (None, None)
    """
    if before and (_STRAY_BEFORE.search(before) or not (_BEFORE_MONEY if money else _BEFORE).fullmatch(before)):
        return None
    if after and (_STRAY_AFTER.search(after) or not _AFTER.fullmatch(after)):
        return None
    if _has_foreign_digit(before) or _has_foreign_digit(after):
        return None
    if before.endswith("(") and after.startswith(")") and not sign:
        return None  # (42) is minus 42 to an accountant
    if after.startswith("!") and not any(map(str.isalpha, before)):
        return None  # a factorial
    if _CONTRACTION.search(before) or _CONTRACTION.search(after):
        return None
    result = -1 if sign in ("-", "−") else 1
    negation = _NEGATION.search(before)
    if negation:
        if sign:
            return None
        result, before = -1, before[: negation.start()]
    unit = _UNIT.match(after)
    if unit:
        if unit[1] in MISREAD_UNITS:
            return None
        if unit[1].lower() in MULTIPLIERS:
            result, after = result * MULTIPLIERS[unit[1].lower()], after[unit.end() :]
    return result if _is_said_plainly(_words(before), _words(after)) else None


def _has_foreign_digit(text: str) -> bool:
    return not text.isascii() and any(letter.isnumeric() and not letter.isalpha() for letter in text)


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower()) if text else []


def _is_said_plainly(before: Sequence[str], after: Sequence[str]) -> bool:
    if not (UNSAID.isdisjoint(before) and UNSAID.isdisjoint(after) and UNSAID_BEFORE.isdisjoint(before)):
        return False
    return not any(word in PARTS and place >= 2 and after[place - 2] == "and" for place, word in enumerate(after))
