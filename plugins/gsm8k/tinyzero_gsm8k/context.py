"""What may stand around the one number of an answer: a unit, and a sentence of known words that does not take it back.

Whatever is in no list of `words.py` is refused, so what is unsure is malformed, and never right.
"""

import re
from collections.abc import Sequence
from itertools import pairwise

from tinyzero_gsm8k import words

_PER = re.compile(r"(?: *+/| ++/ *+)(?=[A-Za-z])")
_WORD = re.compile("[A-Za-zÀ-ÖØ-öø-ÿ]++")
_POSSESSIVE = re.compile(r"(?<=[A-Za-z])['’]s?(?=\s+[A-Za-z])")
_W, _OPEN = rf"{_WORD.pattern}(?:{_POSSESSIVE.pattern})?", "[(\\[\"'“‘]?\\s*+"
_CLOSE = "(?:[)\\]\"'”’](?![A-Za-z]))?"
# Every mark in its place: what these leave over, nobody has understood.
_BEFORE = re.compile(
    rf"\s*+(?:{_OPEN}[=:]\s*+)?(?:{_OPEN}{_W}(?:[-/]{_W})*+{_CLOSE}(?:\s*[:=]\s*+|[,;]?\s++(?:—\s++)?|\Z))*+{_OPEN}"
)
_AFTER = re.compile(
    rf"(?P<sign>\s*[%°¢$€£¥₹])?+{_CLOSE}(?:(?:\s*,\s++|{_PER.pattern}|\s*+){_OPEN}{_W}(?:-{_W})*+"
    rf"(?:{_CLOSE}(?:\.\s*+|(?:\s*,)?\s++|{_PER.pattern}){_OPEN}{_W}(?:-{_W})*+)*+)?"
    rf"{_CLOSE}(?:\s*\.|(?<=[^\W\d_])\s*!)?\s*{_CLOSE}\s*"
)
_INNER_STOP = re.compile(r"([^\W\d_]*)\.(?=.*[^\W\d_])", re.DOTALL)
_POWER = re.compile(rf"(?<![^\W\d_])({'|'.join(words.POWERED)})\s*(?:\^\s*[23]|[²³])(?!\s*[\d²³^!])")
_PAIRED = re.compile("[()\\[\\]\"'“”‘’]")
_QUOTES = str.maketrans("“”‘’", "\"\"''")
_CLAUSE_END = re.compile("[:;=—]")
_UNIT = re.compile(r"\s*([A-Za-z]+)")
_NEGATION = re.compile(rf"(?:^|(?<=[^A-Za-z]))(?:{'|'.join(sorted(words.NEGATIVE))})\s+$", re.IGNORECASE)
_ENDING = re.compile(rf" (?:{'|'.join(words.ENDINGS)})$")
_MOST_WORDS = 14

# What stands behind a number, as a letter for each word.
_KINDS = {
    **dict.fromkeys(words.SINGULARS, "v"), **dict.fromkeys(words.NAMES, "N"), **dict.fromkeys(words.MONTHS, "M"),
    **dict.fromkeys(words.THINGS | words.UNITS | words.CURRENCIES, "u"), **dict.fromkeys(words.MODIFIERS, "q"),
    **dict.fromkeys(words.MASSES | words.MODIFIERS & (words.SINGULARS | words.UNITS), "x"),
    **dict.fromkeys(words.ABBREVIATIONS, "b"), **dict.fromkeys(words.LETTERS, "l"), **dict.fromkeys(words.STATES, "s"),
    **dict.fromkeys(words.PLACES, "P"), "in": "i", "second": "2", "total": "r", "remaining": "r", "old": "r",
    "all": "r", "more": "m", "fewer": "m", "than": "t", "him": "w", "them": "w", "her": "h", "the": "d", "his": "d",
    "their": "d", "a": "e", "an": "e", "every": "e", "each": "c", "per": "p", "on": "o", "at": "o", "for": "o",
    "of": "f", "and": "n", "Celsius": "u", "Fahrenheit": "u",
}  # fmt: skip
_THING = "[qmrx]{0,2}[ux]{1,2}"  # never bare behind `in`: "in thousands", "in cents"
_RATE = "(?:p[ublvx2]|[ec][ubvx2])"  # "km per h", "$5 a lb"; not "8 a.m."
_PLACE = f"[dheco]?(?:{_THING}|u?P+)"
_PHRASE = f"[of]{_PLACE}(?:n{_PLACE})?|i(?:[dhec]{_THING}|[dhe]?u?P+)|oN(?:nN)?|[io]M(?:nM)*|i?r|s|c$"
_measures = re.compile(
    rf"(?:m(?:{_THING})?t[Nwh]|(?:{_THING}|q?[bl])m?|m|[i2]$)?(?:{_RATE}|{_PHRASE}|mt[Nwh])*"
).fullmatch
# Behind money no abbreviation: $42 m is 42 million.
_measures_money = re.compile(rf"(?:m(?:{_THING})?t[Nwh]|{_THING}m?|m)?(?:{_RATE}|{_PHRASE}|mt[Nwh])*").fullmatch


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
    if _PAIRED.search(before + after) and not _is_paired(before, after):
        return None
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
        if after and not _holds(after, money=money):
            return None
    return result


def _is_paired(before: str, after: str) -> bool:
    """Whether all that opens closes: 5' and 5) may be feet, an item of a list, or cut off."""
    text = f"{before}0{after}".translate(_QUOTES)
    first, _, last = _POSSESSIVE.sub("", text).partition("0")
    return (
        all(text.count(left) == text.count(right) for left, right in ("()", "[]"))
        and text.count('"') % 2 == 0
        and ("'" in after.translate(_QUOTES) if first.count("'") % 2 else last.count("'") % 2 == 0)
    )


def _states(before: str, *, signed: bool, money: bool) -> bool:
    """Whether the text before a number says no more than that this is the number."""
    if not _BEFORE.fullmatch(before) or before.count("=") > 1 or (before[-1:].isalpha() and not money):
        return False
    phrase = _WORD.findall(_POSSESSIVE.sub("", before))
    if phrase and phrase[-1] in words.CURRENCIES and (money or phrase[-1] not in words.DOLLARS):
        before, _, rest = before.rpartition(phrase.pop())
        if rest.strip():
            return False
    if not phrase:
        return True
    if before.lstrip()[:1] in ":=" or len(phrase) > _MOST_WORDS:
        return False
    if any(_asks(_WORD.findall(clause)) for clause in _CLAUSE_END.split(before.lower())):
        return False
    end = before.rstrip("([\"'“‘ \t\r\n")[-1:]
    if not all(_may_say(phrase, index) for index in range(len(phrase))):
        return False
    if end == "—":  # "is — 5" may be minus 5
        return phrase[-1].lower() in words.RESULTS
    return end in ":=" or (len(phrase[-1]) > 1 and _leads(phrase, signed=signed, money=money))


def _asks(phrase: Sequence[str]) -> bool:
    """Whether a verb stands before its subject: "Is the answer 42", "So has she 42"."""
    if phrase[:2] == ["in", "total"]:
        phrase = phrase[2:] or ["total"]
    subject = next((word for word in phrase if word not in words.OPENING), "")
    return subject in words.ASKING or any(
        ((verb in words.ASKING or verb == "need") and word in words.PRONOUNS)
        or (verb in words.MODALS and word not in words.VERBS and word not in words.OPENING)
        for verb, word in pairwise([*phrase, ""])
    )


def _may_say(phrase: Sequence[str], index: int) -> bool:
    word, lower = phrase[index], phrase[index].lower()
    if word in words.NAMES:
        return True
    if not word.isascii():
        return False  # letters of other scripts look alike
    if lower in words.SAYING or lower in words.VERBS or lower in words.RESULTS:
        return len(lower) > 1 or word in ("a", "A", "I") or len(phrase) == 1  # a variable stands alone: x = 42
    if len(word) == 1:
        return len(phrase) == 1
    before = phrase[index - 1] if index else ""
    if word in words.MONTHS:
        return before.lower() == "in" or (before == "and" and index > 1 and phrase[index - 2] in words.MONTHS)
    return word in words.THINGS and before.lower() in words.BEFORE_PLURALS


def _leads(phrase: Sequence[str], *, signed: bool, money: bool) -> bool:
    """Whether the last word before the number states it."""
    last = phrase[-1].lower()
    asserts = any(word.lower() in words.VERBS for word in phrase[:-1])
    if last in words.VERBS and not (last == "total" and asserts):
        return not signed or last in words.ASKING or last == "be"
    if signed:
        return last in ("so", "therefore", "thus", "hence")
    if last in words.RESULTS:
        return not asserts or last in ("exactly", "therefore", "thus", "hence")
    if (phrase[-1] in words.RECIPIENTS or phrase[-1] in words.NAMES) and len(phrase) > 1:
        return phrase[-2].lower() in words.GIVING
    if last == "for":
        return money and asserts
    return last == "of" and len(phrase) > 1 and phrase[-2].lower() in ("total", "profit")


def _holds(after: str, *, money: bool) -> bool:
    """Whether the text behind a number holds a unit at most, and where or when it counts."""
    if "^" in after or not after.isascii():
        after = _POWER.sub(r"\1", after)
    read = _AFTER.fullmatch(after)
    if read is None or (money and read["sign"]):
        return False
    if any(stop[1] not in words.ABBREVIATIONS | words.SQUARES for stop in _INNER_STOP.finditer(after)):
        return False  # "8 a.m.", or a second sentence
    said_words = _WORD.findall(_POSSESSIVE.sub("", _PER.sub(" per ", after)))
    if len(said_words) > _MOST_WORDS:
        return False
    phrase = _ENDING.sub("", " " + " ".join(said_words)).split()
    kinds = "".join(_KINDS.get(word) or (len(word) > 3 and _KINDS.get(word.lower())) or "?" for word in phrase)
    return bool((_measures_money if money else _measures)(kinds))
