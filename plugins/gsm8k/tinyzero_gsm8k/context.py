"""What may stand around the one number of an answer: a unit, and a sentence of known words that does not take it back.

Whatever is in no list of `words.py` is refused, so what is unsure is malformed, and never right.
"""

import re
from collections.abc import Sequence

from tinyzero_gsm8k import words

_BESIDE_LEFT = " \t\r\n([\"'“‘:=—"
_BEFORE = re.compile(r"(?:[^\W\d_]|[\s,.:;'’\"“”‘(\[=$—]|(?<=[^\W\d_])[-/](?=[^\W\d_]))*")
_AFTER = re.compile(r"(?:[^\W\d_]|[\s%$€£¥₹.,:;!)\]\"'’”°(]|(?<=[^\W\d_])-(?=[^\W\d_])|/(?=[a-z]))*")
_BEGINS_AFTER = re.compile(r"[\s%$€£¥₹.,:;!)\]\"'’”°/]|[^\W\d_]")
_WORD = re.compile(r"[^\W\d_]+")
_POSSESSIVE = re.compile(r"(?<=[^\W\d_])['’]s?(?![^\W\d_])")
_CONTRACTION = re.compile(r"[^\W\d_]['’][^\W\d_]")
_PER = re.compile(r"/([a-z]+)")
_UNIT = re.compile(r"\s*([A-Za-z]+)")
_NEGATION = re.compile(rf"(?:^|(?<=[^A-Za-z]))(?:{'|'.join(sorted(words.NEGATIVE))})\s+$", re.IGNORECASE)
_MOST_WORDS = 14


def factor(before: str, after: str, *, sign: str, money: bool) -> int | None:
    """What the surroundings of a number multiply it with, such as -1 or 1,000; None where they forbid it.

    Args:
        before: the text before the number, its sign and its currency.
        after: the text after it.
        sign: "+", "-", "−" or "".
        money: a currency sign stands before it.

    Example:
        >>> factor("The change is minus ", " million dollars.", sign="", money=False)
        -1000000
        >>> factor("under ", "", sign="", money=False), factor("", " point five", sign="", money=False)
        (None, None)
    """
    if before.rstrip().endswith("(") and after.lstrip().startswith(")") and not sign:
        return None  # (42) is minus 42 to an accountant
    if after.startswith("!") and not any(map(str.isalpha, before)):
        return None  # a factorial
    result = -1 if sign in ("-", "−") else 1
    if before:
        negation = _NEGATION.search(before)
        if negation:
            if sign:
                return None
            result, before = -1, before[: negation.start()]
        if not _states(before, signed=bool(sign or negation), money=money):
            return None
    if after:
        unit = _UNIT.match(after)
        if unit and unit[1].lower() in words.MULTIPLIERS:
            result, after = result * words.MULTIPLIERS[unit[1].lower()], after[unit.end() :]
        if after and not _measures(after, money=money):
            return None
    return result


def _states(before: str, *, signed: bool, money: bool) -> bool:
    """Whether the text before a number says no more than that this is the number."""
    if not before or before.isspace():
        return True
    if not _BEFORE.fullmatch(before) or before.count("=") > 1:
        return False
    beside = before[-1]
    if beside not in _BESIDE_LEFT and not money:
        return False
    said = _POSSESSIVE.sub("", before)
    if _CONTRACTION.search(said):
        return False
    found = _WORD.findall(said)
    if found and found[-1] in words.CURRENCIES and (money or found[-1] not in ("US", "CA", "C", "A", "AU", "NZ")):
        before, _, rest = before.rpartition(found.pop())
        if rest.strip():
            return False
    elif beside not in _BESIDE_LEFT and not beside.isalpha():
        return False
    if not found:
        return True
    if before.lstrip()[:1] == ":":
        return False
    if len(found) > _MOST_WORDS or found[0].lower() in words.ASKING:
        return False
    end = before.rstrip("([\"'“‘$ \t\r\n")[-1:]
    if not all(_may_say(found, place) for place in range(len(found))):
        return False
    return end in ":=—" or (len(found[-1]) > 1 and _leads(found, signed=signed, money=money))


def _may_say(found: Sequence[str], place: int) -> bool:
    word, lower = found[place], found[place].lower()
    if lower in words.SAYING or lower in words.VERBS or lower in words.RESULTS:
        return len(lower) > 1 or word in ("a", "A", "I") or len(found) == 1  # a variable stands alone: x = 42
    if len(word) == 1:
        return len(found) == 1
    before = found[place - 1].lower() if place else ""
    if _is_plural(word):
        return before in words.BEFORE_PLURALS
    return _is_name(word) or (place == 0 and len(found) == 1 and lower == "final")


def _leads(found: Sequence[str], *, signed: bool, money: bool) -> bool:
    """Whether the last word before the number states it."""
    last = found[-1].lower()
    if last in words.VERBS:
        return not signed or last in words.ASKING or last == "be"
    if signed:
        return last in ("so", "therefore", "thus", "hence")
    asserts = any(word.lower() in words.VERBS for word in found[:-1])
    if last in words.RESULTS:
        return not asserts or last == "exactly"
    if last == "for":
        return money and asserts
    return last == "of" and len(found) > 1 and found[-2].lower() in ("total", "profit")


def _measures(after: str, *, money: bool) -> bool:
    """Whether the text behind a number holds a unit at most, and where or when it counts."""
    if not _BEGINS_AFTER.match(after) or not _AFTER.fullmatch(after):
        return False
    if "/" in after and not all(per[1] in words.UNITS or per[1] in words.ABBREVIATIONS for per in _PER.finditer(after)):
        return False
    said = _POSSESSIVE.sub("", after)
    if _CONTRACTION.search(said):
        return False
    found = _WORD.findall(said)
    if not found:
        return True
    if len(found) > _MOST_WORDS:
        return False
    for ending in words.ENDINGS:
        if tuple(found[-len(ending) :]) == ending:
            found = found[: -len(ending)]
            break
    if not found:
        return True
    return _follow(found, _after_unit(found, money=money))


def _after_unit(found: Sequence[str], *, money: bool) -> int:
    """The place behind the unit with which the words begin, 0 where they begin with none."""
    place = 0
    while place < min(2, len(found)) and found[place] in words.MODIFIERS:
        place += 1
    if place == len(found):
        return 0
    word = found[place]
    if word in ("in", "second") and (place or len(found) > 1):
        return 0
    short = word in words.ABBREVIATIONS and not place and not money
    return place + 1 if short or word in words.CURRENCIES or word in words.UNITS or _is_plural(word) else 0


def _follow(found: Sequence[str], begin: int) -> bool:
    if begin == 0 and (found[0] in ("and", "of", "the", "his", "her", "their") or found[-1] in words.OPENERS):
        return False
    for place in range(begin, len(found)):
        word, before = found[place], found[place - 1] if place else ""
        if word in words.FOLLOWING:
            if word in words.OPENERS and place == len(found) - 1:
                return False
            if word == "than" and not (place + 2 == len(found) and _is_told(found[-1])):
                return False
        elif word in words.UNITS or (word in words.ABBREVIATIONS and len(word) == 1):
            if before not in words.OPENERS and before != "each" and place != 1:
                return False
        elif _is_plural(word):
            if before not in words.OPENERS:
                return False
        elif not (before in ("in", "on", "at", "for", "and", "than") and _is_name(word)):
            return False
    return True


def _is_told(word: str) -> bool:
    return word in ("him", "her", "them") or _is_name(word)


def _is_name(word: str) -> bool:
    return len(word) > 1 and word[0].isupper() and word[1:].islower() and word.lower() not in words.NAMELESS


def _is_plural(word: str) -> bool:
    return (
        len(word) > 3
        and word[-1] == "s"
        and word.isascii()
        and word.islower()
        and word not in words.NO_UNITS
        and not word.endswith(words.NUMERAL_ENDINGS)
    )
