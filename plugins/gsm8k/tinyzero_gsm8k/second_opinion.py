"""The oracle: scores answers by another method than the scorer's: character by character, without patterns.

It shares nothing with the scorer, no code and no list, and computes with pairs of integers. Where the scorer reads the
words around a number one by one, this knows a few whole phrases; where an answer holds others, or more LaTeX, Markdown
or foreign script than it knows, it cannot tell. Tests and fuzzers compare the two; an answer on which they differ is a
fault in one of them.
"""

import unicodedata
from collections import Counter
from itertools import pairwise
from typing import NamedTuple

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
_MARKER = "####"  # before the number of a worked solution
_MOST = 40  # digits, and the exponent
_CALM_LEFT = set(_LETTERS + " \t\n\r,.:=([\"'$")
_CALM_RIGHT = set(_LETTERS + " \t\n\r%,.:!)]\"'/°" + _MONEY)

_SCALES = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
_SAID_FIRST = {
    *("", "=", ":", "x =", "so", "answer :", "the answer :", "total :", "final :", "final answer :", "therefore"),
    *("the answer is", "so the answer is", "the final answer is", "the result is", "the total is", "it is", "she has"),
    *("so she has", "he has", "so he has", "they have", "there are", "so there are", "she makes", "he earns"),
    *("she needs", "it costs", "it takes", "the total cost is", "the price is", "she pays", "he sold"),
}
_THINGS = {
    "dollars", "cents", "euros", "apples", "eggs", "cookies", "clips", "bolts", "minutes", "hours", "days",
    "weeks", "months", "years", "miles", "feet", "meters", "degrees", "percent", "people", "children", "students",
    "books", "tickets", "boxes", "kg", "km", "cm", "m", "ft", "km/h", "km/hr", "miles/hour", "mph",
}  # fmt: skip
_SAID_LAST = {
    *(
        "",
        "left",
        "in total",
        "in all",
        "altogether",
        "each",
        "every day",
        "a day",
        "per day",
        "per hour",
        "a month",
        "a year",
    ),
    *("today", "remaining", "more", "old", "is the answer", "per week", "a week", "/day", "/hr", "/hour", "per lb"),
}
_POWERED = {"cm", "m", "km", "ft", "mm"}
_DENIED = {
    "not", "no", "nor", "never", "none", "or", "either", "neither", "except", "but", "unless", "without", "wrong",
    "incorrect", "false", "unknown", "doubt", "maybe", "nope", "half", "halves", "third", "thirds", "quarter",
    "fourths", "fifths", "tenths", "dozen", "dozens", "score", "gross", "lakh", "crore", "k", "bil", "mil", "mn",
    "bn", "tens", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven",
    "twelve", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety", "point", "times",
    "plus", "minus", "negative", "over", "mod", "modulo", "divided", "multiplied", "squared", "cubed",
    "factorial", "cube", "root", "sqrt", "log", "ln", "exp", "sin", "cos", "tan", "reciprocal", "inverse",
    "opposite", "double", "twice", "triple", "thrice", "quadruple", "hundred", "thousand", "million", "billion",
    "trillion", "under", "above", "below", "least", "most", "nearly", "almost", "about", "around", "roughly",
    "approximately", "between", "b", "x", "y", "z", "n", "pi", "hundreds", "thousands", "millions", "billions",
    "am", "pm", "clock", "cannot", "debt", "debts",
}  # fmt: skip
_DENIED_FIRST = {"square", "how", "who", "what", "than", "more", "fewer", "less", "up", "far", "from"}


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
        >>> is_right("42 point five", "42"), is_right("2½", "2.5"), is_right("42 hogsheads", "42")
        (False, True, None)
    """
    try:
        top, bottom = _read(answer)
        true_top, true_bottom = _read(str(ground_truth).split(_MARKER)[-1])
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
    if text[:1] == "$" and text.count("$") == 2 and "\\$" not in text and text[1:2] in tuple(_DIGITS + _SIGNS):
        inner, _, following = text[1:].partition("$")  # LaTeX's, not money
        text = f"{inner} {following}" if following[:1] not in tuple(_DIGITS) else text
    elif text.count("$") > 1:
        raise _CannotTell
    if text[:2] == "Rs" and text[2:].removeprefix(".").lstrip(" ")[:1] in tuple(_DIGITS):
        text = text[2:].removeprefix(".").lstrip(" ")
        if "!" in text:
            raise _CannotTell
    if text[-1:] == "¢" and text[-2:-1] in tuple(_DIGITS) and not any(mark in text for mark in _MONEY + "^"):
        text = text[:-1]
    if text[:1] == "–" and text[1:2] in tuple(_DIGITS):
        text = "-" + text[1:]
    text = _plain(text)
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
    return _with_words(number, sign, before, after, has_money)


def _unwrapped(text: str) -> str:
    """Without the plainest LaTeX and Markdown: what stands in one box, one text, between stars."""
    for left, right in (
        ("\\boxed{", "}"),
        ("\\text{", "}"),
        ("**", "**"),
        ("\\(", "\\)"),
        ("\\[", "\\]"),
        ("$$", "$$"),
    ):
        inner = text[len(left) : -len(right)]
        plain = not any(mark in inner for mark in ("{", "}", "*", "\\", "$$"))
        if text.startswith(left) and text.endswith(right) and len(text) > len(left + right) and plain:
            return inner.strip()
    if text.startswith("\\frac{") and text.count("{") == 2 and text.count("}") == 2 and text.endswith("}"):
        top, middle, bottom = text[6:-1].partition("}{")
        if middle and top.strip(_DIGITS) == "" == bottom.strip(_DIGITS) and top and bottom:
            return f"{top}/{bottom}"
    if text[:1] == "{" and text[-1:] == "}" and text.count("{") + text.count("}") == 2:
        text = text[1:-1].strip()
    return text


def _plain(text: str) -> str:
    """The text with fractions as `1/2`, powers of ten as `10^3`, and units without their power."""
    read, place = "", 0
    while place < len(text):
        if text[place] == "\\":
            piece, place = _command(text, place + 1, read)
        elif text[place] == "^":
            piece, place = _raised(text, place + 1, read)
        elif text[place] == "~" and text[place + 1 : place + 2] in tuple(_LETTERS + "\\") and read[-1:].isalnum():
            piece, place = " ", place + 1
        elif text[place] == "~" and text[place + 1 : place + 2] in tuple(_LETTERS + "\\") and read:
            raise _CannotTell
        elif text[place] == "~" and read[-1:] in tuple(_DIGITS) and _digits(text, place + 1) == place + 4:
            piece, place = ",", place + 1
        elif ord(text[place]) > 127:
            piece, place = _composed(text, place, read)
        else:
            piece, place = text[place], place + 1
        read += piece
    return read.strip()


def _command(text: str, place: int, read: str) -> tuple[str, int]:
    """What the LaTeX behind a backslash says, and where it ends."""
    end = place
    while text[end : end + 1] in tuple(_LETTERS):
        end += 1
    name = text[place:end]
    if not name and text[place : place + 1] in ("$", "%"):
        return text[place], place + 1
    if name in ("times", "cdot"):
        return "×", end
    if name in ("text", "mathrm"):
        inner, end = _group(text, end)
        return f" {inner[1:] if inner[:1] == '~' and inner[1:2].isalpha() else inner} ", end
    if name in ("frac", "dfrac", "tfrac"):
        if text[end : end + 1] in tuple(_DIGITS):
            top, bottom, end = text[end], text[end + 1 : end + 2], end + 2
        else:
            top, end = _group(text, end)
            bottom, end = _group(text, end)
        if not top or not bottom or (top + bottom).strip(_DIGITS) or text[end : end + 1] in tuple(_DIGITS + ","):
            raise _CannotTell
        return _part(read, top, bottom), end
    raise _CannotTell


def _group(text: str, place: int) -> tuple[str, int]:
    end = text.find("}", place)
    inner = text[place + 1 : end]
    if text[place : place + 1] != "{" or end < 0 or any(mark in inner for mark in "{\\^"):
        raise _CannotTell
    return inner, end + 1


def _part(read: str, top: str, bottom: str) -> str:
    """A fraction behind what was read, apart from a whole number before it."""
    before = read.rstrip()[-1:]
    if before and before not in _DIGITS + "$(-−" and not (read[-1:].isspace() and before in _LETTERS + ":="):
        raise _CannotTell
    return f" {top}/{bottom}" if before and before in _DIGITS else f"{top}/{bottom}"


def _raised(text: str, place: int, read: str) -> tuple[str, int]:
    """What stands behind a caret: the exponent of a ten, or the power of a unit, which is dropped."""
    if text[place : place + 1] == "{":
        exponent, end = _group(text, place)
    else:
        end = place + 1 if text[place : place + 1] in tuple(_SIGNS) else place
        end = _digits(text, end)
        exponent = text[place:end]
    return _power(read, exponent, text[end : end + 1]), end


def _power(read: str, exponent: str, following: str) -> str:
    if read.rstrip().endswith("10") and exponent.lstrip(_SIGNS).strip(_DIGITS) == "" and exponent[-1:].isdigit():
        return f"^{exponent}"
    words = read.split()
    unit = words[-1].lstrip(_DIGITS) if words else ""
    alone = len(words) == 1 and unit != words[0]  # 42cm
    apart = len(words) == 2 and unit == words[1] and words[0].isdecimal()  # 42 cm
    if (alone or apart) and unit in _POWERED and exponent in ("2", "3") and following in ("", " ", "."):
        return ""
    raise _CannotTell


def _composed(text: str, place: int, read: str) -> tuple[str, int]:
    """A character that Unicode describes by others: `½` is 1⁄2, `³` a raised 3."""
    letter = text[place]
    kind, _, codes = unicodedata.decomposition(letter).partition("> ")
    parts = "".join(chr(int(code, 16)) for code in codes.split())
    following = text[place + 1 : place + 2]
    if kind == "<fraction" and "⁄" in parts and following not in tuple(_DIGITS):
        top, _, bottom = parts.partition("⁄")
        if top and bottom:
            return _part(read, top, bottom), place + 1
    if kind == "<super" and parts in tuple(_DIGITS):
        if following and (ord(following) > 127 or following in _DIGITS):
            raise _CannotTell
        return _power(read, parts, following), place + 1
    if kind == "<noBreak" and read[-1:] in tuple(_DIGITS) and _digits(text, place + 1) == place + 4:
        return ",", place + 1
    return letter, place + 1


def _lead(text: str, first: int) -> tuple[int, str, bool]:
    """Where sign and currency before the number begin, the sign, and whether there is a currency."""
    start, signs = first, []
    if start and text[start - 1] in _SIGNS:
        start -= 1
        signs.append(text[start])
    money = start
    if money > 1 and text[money - 1] == " " and text[money - 2] in _MONEY:
        money -= 1
    if money and text[money - 1] in _MONEY:
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
    if len(digits) > 3 or not digits or digits[0] == "0":
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
    if after == end + 1 and text[after : after + 1] not in tuple("eE") and _power_of_ten(text, after) is None:
        return digits, "", end  # a full stop
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
    marks = Counter(before + after)
    if marks["("] != marks[")"] or marks["["] != marks["]"] or any(marks[quote] % 2 for quote in "\"'’"):
        raise _CannotTell  # cut off, or an item of a list
    for letter in before + after:
        if letter in _NOWHERE or letter in _DIGITS:
            raise _Refused
    if "=" in after or before.count("=") > 1 or before.rstrip().endswith(("-", "−", "–")):
        raise _Refused
    left, right = before[-1:], after[:1]
    if left and left not in _BESIDE_LEFT and not (has_money and left in _LETTERS):
        raise _Refused
    if right == "(":
        raise _CannotTell
    joined = right and right in "/-" and after[1:2] and after[1] in _LETTERS
    if right and right not in _BESIDE_RIGHT and not joined:
        raise _Refused
    if (before.rstrip()[-1:], after.lstrip()[:1]) == ("(", ")") and not signed:
        raise _Refused
    if after.lstrip()[:1] == "!":
        raise _Refused  # a factorial


def _phrase(text: str, marks: str) -> str:
    return " ".join(
        "".join(letter if letter in _LETTERS else f" {letter} " if letter in marks else " " for letter in text)
        .lower()
        .split()
    )


def _with_words(number: _Number, sign: str, before: str, after: str, has_money: bool) -> tuple[int, int]:
    """The value with what the phrases around it make of it."""
    negative = bool(sign) and sign in _MINUS
    first = _phrase(before, "=:")
    for word in ("minus", "negative"):
        if first.split()[-1:] == [word] and before[-1:].isspace() and before.rstrip()[-1:] in _LETTERS:
            if sign:
                raise _Refused
            negative, sign, first = True, "-", first[: -len(word)].rstrip()
    top = number.top
    unit = after.lstrip()
    length = next((place for place, letter in enumerate(unit) if letter not in _LETTERS), len(unit))
    if unit[:length].lower() in _SCALES:
        top *= 10 ** _SCALES[unit[:length].lower()]
        after = unit[length:]
    if after.lstrip()[:1] == "!":
        raise _Refused
    last = _phrase(after, "/").replace(" / ", "/").replace("/ ", "/")
    said_first, said_last = first.split(), last.replace("/", " ").split()
    if last.split()[:2] in (["a", "m"], ["p", "m"]):
        raise _Refused  # a time of day
    if has_money and "$" in after:
        raise _CannotTell  # LaTeX's dollars
    _check_words(said_first, said_last, before, after)
    _check_marks(before, after, has_money)
    apart = any(letter == "/" and after[place + 1 : place + 2] not in _LETTERS for place, letter in enumerate(after))
    stop = min((place for place, letter in enumerate(after) if letter in ".:!"), default=len(after))
    if "." in before or after[stop + 1 :].strip():
        raise _CannotTell
    if apart or not (set(before) <= _CALM_LEFT and set(after) <= _CALM_RIGHT):
        raise _CannotTell
    if after != after.lower() or (negative and "$" in before):
        raise _CannotTell
    if first not in _SAID_FIRST and not (has_money and before.strip() in ("US", "USD")):
        raise _CannotTell
    if first.endswith(("=", ":")) and not before.rstrip(" \t\r\n$([\"'").endswith(("=", ":")):
        raise _CannotTell
    if sign and first and not first.endswith((" is", "=", ":")):
        raise _CannotTell
    if last.split()[:1] and last.split()[0] in _THINGS:
        last = " ".join(last.split()[1:])
        if has_money and said_last[0] not in ("dollars", "cents", "euros"):
            raise _CannotTell
    if last not in _SAID_LAST:
        raise _CannotTell
    return (-top if negative else top), number.bottom


def _check_marks(before: str, after: str, has_money: bool) -> None:
    """Leave it open what marks mean that are in no usual place."""
    signs = [place for place, letter in enumerate(after.lstrip()) if letter in "%°¢" + _MONEY]
    if signs not in ([], [0]) or (signs and has_money):
        raise _CannotTell
    if not any(letter in _LETTERS for letter in before) and before.strip() not in (*"=:([\"'", ""):
        raise _CannotTell
    said = " ".join(before.split())
    if " ," in said or " ;" in said or "," in after.replace(", ", "") or ("/" in after and not after.isprintable()):
        raise _CannotTell
    if "$" in before or before.lstrip()[:1] in (",", ";") or (after[:1] == ")" and after[1:2].isalpha()):
        raise _CannotTell
    marks = "".join(letter for letter in after if not letter.isspace())
    for left, letter, right in zip(" " + marks, marks, marks[1:] + " ", strict=False):
        if (
            letter == ":"
            or (letter == "," and right not in _LETTERS)
            or (letter in ".!" and left in ",.;!%°)" + _MONEY)
        ):
            raise _CannotTell


def _check_words(first: list[str], last: list[str], before: str, after: str) -> None:
    if len(first) > 1 and len(first[0]) == 1 and first[1] in "=:":
        first = first[2:]
    if any(word in _DENIED for word in first + last) or any(word in _DENIED_FIRST for word in first):
        raise _Refused
    if not {"M", "MM"}.isdisjoint("".join(letter if letter in _LETTERS else " " for letter in after).split()):
        raise _Refused  # millions; in small letters they are metres and millimetres
    said = f"{before} {after}".lower().replace("’", "'")
    if "n't" in said:
        raise _Refused
    pieces = said.split("'")
    if any(left[-1:].isalpha() and right[:1].isalpha() for left, right in pairwise(pieces)):
        raise _CannotTell
