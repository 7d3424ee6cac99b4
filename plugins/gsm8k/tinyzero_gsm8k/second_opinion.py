"""A second verdict on answers, by another method than the scorer's: character by character, without patterns.

It shares no code with the scorer (only the lists in `words.py`), and computes with pairs of integers. Where an answer
holds more LaTeX, Markdown or foreign script than it knows, it cannot tell. Tests and fuzzers compare the two; an answer
on which they differ is a fault in one of them.
"""

from typing import NamedTuple

from tinyzero_gsm8k.words import MISREAD_UNITS, MULTIPLIERS, NEGATIVE, PARTS, UNSAID, UNSAID_BEFORE, VARIABLES

_DIGITS = "0123456789"
_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_MINUS = "-−"
_SIGNS = "+" + _MINUS
_MONEY = "$€£¥₹"
_TIMES = "×xX*·⋅"
_KNOWN = set(map(chr, range(32, 127))) | set("\t\n\r" + _SIGNS + _MONEY + _TIMES + "–—≈°’")
_NOWHERE = set("+*×÷^_|\\{}<>#@&?~−")
_BESIDE_LEFT = set(" \t\n\r([\"':=≈")
_BESIDE_RIGHT = set(" \t\n\r%.,;:!)]\"'’°" + _MONEY + _LETTERS)
_MOST = 40  # digits, and the exponent


class _CannotTell(Exception):
    """The answer holds something this file does not know."""


class _Refused(Exception):
    """The answer is not one number."""


class _Number(NamedTuple):
    top: int
    bottom: int
    end: int


def is_right(answer: str, ground_truth: str | int | float) -> bool | None:
    """Whether the answer is the number of the ground truth; None where this cannot tell.

    Example:
        >>> is_right("so $1,042.00 a year", "1042"), is_right("1042 or 1043", "1042"), is_right("\\\\pi", "3")
        (True, False, None)
    """
    try:
        top, bottom = _read(answer)
        true_top, true_bottom = _read(str(ground_truth).split("####")[-1])
    except _CannotTell:
        return None
    except _Refused:
        return False
    return top * true_bottom == true_top * bottom


def _read(text: str) -> tuple[int, int]:
    text = text.strip()
    if len(text) > 512:
        raise _Refused
    text = _unwrapped(text)
    if not set(text) <= _KNOWN or any(mark in text for mark in ("\\", "{", "}", "`", "**")):
        raise _CannotTell
    first = next((place for place, letter in enumerate(text) if letter in _DIGITS), None)
    if first is None:
        raise _Refused
    if first and text[first - 1] == ".":
        first -= 1
    start, sign, has_money = _lead(text, first)
    number = _number(text, first)
    if sum(letter in _DIGITS for letter in text[first : number.end]) > _MOST:
        raise _Refused
    before, after = text[:start], text[number.end :]
    _check_beside(before, after, bool(sign), has_money)
    return _with_words(number, sign, before, after)


def _unwrapped(text: str) -> str:
    """Without the plainest LaTeX and Markdown: what stands in one box, one text, between stars."""
    for left, right in (("\\boxed{", "}"), ("\\text{", "}"), ("**", "**"), ("\\(", "\\)"), ("\\[", "\\]")):
        inner = text[len(left) : -len(right)]
        plain = not any(mark in inner for mark in ("{", "}", "*", "\\"))
        if text.startswith(left) and text.endswith(right) and len(text) > len(left + right) and plain:
            return inner.strip()
    if text.startswith("\\frac{") and text.count("{") == 2 and text.count("}") == 2 and text.endswith("}"):
        top, middle, bottom = text[6:-1].partition("}{")
        if middle and top.strip(_DIGITS) == "" == bottom.strip(_DIGITS) and top and bottom:
            return f"{top}/{bottom}"
    return text.replace("\\$", "$").replace("\\%", "%")


def _lead(text: str, first: int) -> tuple[int, str, bool]:
    """Where sign and currency before the number begin, the sign, and whether there is a currency."""
    start, signs = first, []
    if start and text[start - 1] in _SIGNS:
        start -= 1
        signs.append(text[start])
    money = start
    if money > 1 and text[money - 1] == " " and text[money - 2] in _MONEY:
        money -= 1
    latest = money - 3
    while money > max(latest, 0) and text[money - 1] in _MONEY:
        money -= 1
    has_money = money < start
    start = money
    if start and text[start - 1] in _SIGNS:
        start -= 1
        signs.append(text[start])
    if len(signs) > 1:
        raise _Refused
    return start, "".join(signs), has_money


def _number(text: str, place: int) -> _Number:
    """The number that begins at a place, in the longest of its forms."""
    digits, decimals, end = _decimal(text, place)
    power = _power_of_ten(text, end)
    if power is None and digits == "10" and not decimals:
        power = _exponent_after(text, place)
        if power is not None:
            digits, decimals = "1", ""
    if power is None and text[end : end + 1] in tuple("eE"):
        power = _signed(text, end + 1)
    if power is not None:
        exponent, end = power
        if abs(exponent) > _MOST:
            raise _Refused
        scale = exponent - len(decimals)
        whole = int(digits + decimals)
        return _Number(whole * 10 ** max(scale, 0), 10 ** max(-scale, 0), end)
    return _fraction(text, place) or _Number(int(digits + decimals), 10 ** len(decimals), end)


def _digits(text: str, place: int) -> int:
    """Where the digits from a place on end."""
    while place < len(text) and text[place] in _DIGITS:
        place += 1
    return place


def _whole(text: str, place: int) -> tuple[str, int]:
    """The digits of a whole number without its commas, and where it ends."""
    end = _digits(text, place)
    digits = text[place:end]
    if len(digits) > 3 or not digits:
        return digits, end
    while text[end : end + 1] == "," and _digits(text, end + 1) >= end + 4:
        digits += text[end + 1 : end + 4]
        end += 4
    return digits, end


def _decimal(text: str, place: int) -> tuple[str, str, int]:
    """Digits before and after the point, and where the number ends."""
    digits, end = _whole(text, place)
    if text[end : end + 1] != ".":
        return digits, "", end
    after = _digits(text, end + 1)
    return digits or "0", text[end + 1 : after], after


def _signed(text: str, place: int) -> tuple[int, int] | None:
    """An exponent of up to three digits, and where it ends."""
    sign = 1
    if text[place : place + 1] and text[place] in _SIGNS:
        sign = -1 if text[place] in _MINUS else 1
        place += 1
    end = min(_digits(text, place), place + 3)
    return (sign * int(text[place:end]), end) if end > place else None


def _skip(text: str, place: int) -> int:
    while text[place : place + 1].isspace():
        place += 1
    return place


def _exponent_after(text: str, ten: int) -> tuple[int, int] | None:
    """The exponent of a `10^…` at a place."""
    if text[ten : ten + 2] != "10":
        return None
    caret = _skip(text, ten + 2)
    return _signed(text, _skip(text, caret + 1)) if text[caret : caret + 1] == "^" else None


def _power_of_ten(text: str, place: int) -> tuple[int, int] | None:
    place = _skip(text, place)
    if text[place : place + 1] == "" or text[place] not in _TIMES:
        return None
    return _exponent_after(text, _skip(text, place + 1))


def _fraction(text: str, place: int) -> _Number | None:
    """`3/4` or `1 3/4` at a place; None if there is none."""
    top, end = _whole(text, place)
    if not top:
        return None
    slash = _skip(text, end)
    whole = "0"
    if text[slash : slash + 1] != "/":
        if slash == end:
            return None
        if text[slash : slash + 3] == "and" and text[slash + 3 : slash + 4].isspace():
            slash = _skip(text, slash + 3)
        whole = top
        top, end = _whole(text, slash)
        slash = _skip(text, end)
        if not top or text[slash : slash + 1] != "/":
            return None
        mixed = True
    else:
        mixed = False
    bottom, end = _whole(text, _skip(text, slash + 1))
    if not bottom:
        return None
    if int(bottom) == 0 or (mixed and int(top) >= int(bottom)):
        raise _Refused
    return _Number(int(whole) * int(bottom) + int(top), int(bottom), end)


def _check_beside(before: str, after: str, signed: bool, has_money: bool) -> None:
    """Refuse a number that is part of a name, a sum, another number, or that stands beside another one."""
    if "*" in before + after or "^" in after:
        raise _CannotTell  # emphasis, or the power of a unit
    for letter in before + after:
        if letter in _NOWHERE or letter in _DIGITS:
            raise _Refused
    for place, letter in enumerate(after):
        rest = after[place + 1 :].lstrip()
        if letter in "-/" and rest[:1].lower() in VARIABLES and rest[1:2] not in set(_LETTERS):
            raise _Refused
    if "=" in after or before.count("=") > 1 or before.rstrip().endswith(("-", "−", "–")):
        raise _Refused
    left, right = before[-1:], after[:1]
    if left and left not in _BESIDE_LEFT and not (has_money and left in _LETTERS):
        raise _Refused
    joined = right and right in "/-" and after[1:2] and after[1] in _LETTERS
    if right and right not in _BESIDE_RIGHT and not joined:
        raise _Refused
    if (left, right) == ("(", ")") and not signed:
        raise _Refused
    if right == "!" and not any(letter in _LETTERS for letter in before):
        raise _Refused


def _words(text: str) -> list[str]:
    return "".join(letter if letter in _LETTERS else " " for letter in text).lower().split()


def _with_words(number: _Number, sign: str, before: str, after: str) -> tuple[int, int]:
    """The value with what the words around it make of it."""
    negative = bool(sign) and sign in _MINUS
    words_before, words_after = _words(before), _words(after)
    if words_before and words_before[-1] in NEGATIVE and before[-1:].isspace() and before.rstrip()[-1:] in _LETTERS:
        if sign:
            raise _Refused
        negative = True
        words_before.pop()
    top = number.top
    unit = after.lstrip()
    length = next((place for place, letter in enumerate(unit) if letter not in _LETTERS), len(unit))
    if unit[:length] in MISREAD_UNITS:
        raise _Refused
    if unit[:length].lower() in MULTIPLIERS:
        top *= MULTIPLIERS[unit[:length].lower()]
        words_after = _words(unit[length:])
    if any(word in UNSAID for word in words_before + words_after) or any(
        word in UNSAID_BEFORE for word in words_before
    ):
        raise _Refused
    if any("n't" in text.lower().replace("’", "'") for text in (before, after)):
        raise _Refused
    for place, word in enumerate(words_after):
        if place > 1 and word in PARTS and words_after[place - 2] == "and":
            raise _Refused
    return (-top if negative else top), number.bottom
