"""Neighbours of a right answer, by kind: changes after which it is no longer right, as far as texts can show.

A change that only respells an answer is left out: a number written in another way, the terms of a sum or a product in
another order, the entries of a set. Whether a sign, a bracket or the case of a letter says anything is read off the
right answers of other problems: where all have the same, it does not. Nothing here knows a task.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from decimal import Decimal
from typing import NamedTuple

Neighbours = Iterator[tuple[str, str]]
"""Pairs of a kind and an answer of that kind."""

Change = Callable[[str, Sequence[str]], Neighbours]
"""The neighbours of an answer, given the right answers of other problems."""

_NUMBER = re.compile(r"(?<![\w.])-?[0-9]{1,20}(?:\.[0-9]{1,20})?(?![0-9])")
_STEPS = ("1", "-1", "0.4", "-0.4")
_FACTORS = {"+0.5 %": "1.005", "-0.5 %": "0.995", "times 100": "100", "divided by 100": "0.01"}
_SIGNS = ("+-*/×÷·^", "<>≤≥=", "([", ")]")
"""In each class, one may stand in the place of another."""

_COMMUTATIVE = [{sign} for sign in "+*×·∧∨∪∩"]
_LEVELS = {  # what a part is called, and what separates two
    "line": r"(\n+)",
    "item": r"(\s*[,;]\s*)",
    "word": r"(\s+)",
    "term": r"([^\w.]+)",
    "number": r"((?:[^0-9.]|\.(?![0-9]))+)",
}
_FRAME = re.compile(r"""([\[({<"']*)(.*?)([])}>"'.]*)""", re.DOTALL)
_WORD = re.compile(r"(?<![\\\w])[^\W\d_]+")  # no command of LaTeX
_NAMED = re.compile(r"""["']?\w+["']?\s*[:=]""")
_MIXED_CASE = re.compile(r"[a-z][A-Z]|[A-Z]{2}[a-z]")


def same(left: str, right: str) -> bool:
    """Whether two answers differ at most in their spaces, and in how their numbers are written."""
    return _spelled(left) == _spelled(right)


def _spelled(text: str) -> list[str | float]:
    pieces = re.findall(r"[0-9]+(?:\.[0-9]*)?|\S", text)
    return [float(piece) if piece[0] in "0123456789" else piece for piece in pieces]


def _places(things: Sequence[object]) -> list[tuple[str, int]]:
    """The places that are changed: the last, and of several things the first and the one in the middle."""
    count = len(things)
    return [("last", count - 1), ("first", 0), ("middle", count // 2)][:count]


def change_numbers(answer: str, others: Sequence[str]) -> Neighbours:
    """Another value or digit of a number, and another sign."""
    found = [*_NUMBER.finditer(answer)]
    for which, place in _places(found):
        start, end = found[place].span()
        for what, number in _near(found[place][0]):
            yield f"the {which} number {what}", answer[:start] + number + answer[end:]
    if len(found) > 1 and "+" not in answer:  # a sum may be split in many ways
        first, last = (Decimal(found[place][0]) for place in (0, -1))
        middle = answer[found[0].end() : found[-1].start()]
        changed = f"{answer[: found[0].start()]}{first + 1}{middle}{last - 1}{answer[found[-1].end() :]}"
        yield "the first number +1, the last -1", changed
    for signs in _SIGNS:
        form = re.compile(f"[{re.escape(signs)}]")
        own = [*form.finditer(answer)]
        for which, place in _places(own)[:2]:
            known = {of_class[0 if which == "first" else -1] for other in others if (of_class := form.findall(other))}
            start, end = own[place].span()
            for sign in sorted(known - {own[place][0]})[:1]:
                yield f"the {which} of the signs {signs} replaced", answer[:start] + sign + answer[end:]


def _near(number: str) -> Neighbours:
    value = Decimal(number)
    for step in _STEPS:
        yield f"{float(step):+g}", f"{value + Decimal(step):f}"
    for what, factor in _FACTORS.items():
        near = value * Decimal(factor)
        is_whole = "%" in what and "." not in number and abs(value) >= 200
        yield what, f"{near.to_integral_value() if is_whole else near:f}"
    sign, digits, rest = re.findall(r"(-?)([0-9]+)(.*)", number)[0]
    if value:
        yield "with its sign flipped", f"{'' if sign else '-'}{digits}{rest}"
    yield "without its point", number.replace(".", "")
    yield "with a digit doubled", f"{sign}{digits}{digits[-1]}{rest}"
    if len(digits) > 1:  # behind a point they may be rounded
        yield "without its first digit", f"{sign}{digits[1:]}{rest}"
        yield "without its last digit", f"{sign}{digits[:-1]}{rest}"
        yield "with two digits exchanged", f"{sign}{_exchange(digits)}{rest}"


def _exchange(text: str) -> str:
    """`text` with the last two neighbours exchanged that are unlike."""
    for place in range(len(text) - 1, 0, -1):
        left, right = text[place - 1], text[place]
        if left != right:
            return text[: place - 1] + right + left + text[place + 1 :]
    return text


class Parts(NamedTuple):
    """An answer as several parts of one kind."""

    name: str
    """What a part is called."""

    before: str
    pieces: list[str]
    """A part, a separator, …, a part."""

    after: str

    def join(self, pieces: Iterable[str]) -> str:
        return f"{self.before}{''.join(pieces)}{self.after}"


def partitions(answer: str) -> Iterator[Parts]:
    """The ways to see an answer as several parts, the largest first."""
    frame = _FRAME.fullmatch(answer)
    assert frame is not None
    for name, separator in _LEVELS.items():
        before, inside, after = frame.groups()
        pieces = re.split(separator, inside)
        if not pieces[0] and len(pieces) > 1:
            before, pieces = before + pieces[1], pieces[2:]
        if not pieces[-1] and len(pieces) > 1:
            after, pieces = pieces[-2] + after, pieces[:-2]
        if len(pieces) > 1:
            yield Parts(name, before, pieces, after)


_terms = re.compile(r"[\w.]+").findall


def _is_set(answer: str, parts: Sequence[str]) -> bool:
    """Whether the parts may stand in any order and twice: in braces, and with names."""
    return answer.startswith(("{", "\\{")) or all(map(_NAMED.match, parts))


def change_parts(answer: str, others: Sequence[str]) -> Neighbours:
    """A part dropped, doubled, replaced or added, and the answer of another problem."""
    yield from (("the right answer of another problem", other) for other in others if not same(other, answer))
    yield "'not' before it", f"not {answer}"
    strange = [{parts.name: parts.pieces for parts in partitions(other)} for other in others[:8]]
    for parts in partitions(answer):
        name, pieces, own = parts.name, parts.pieces, parts.pieces[::2]
        for which, place in _places(own):
            start, at = max(2 * place - 1, 0), 2 * place
            yield f"the {which} {name} dropped", parts.join(pieces[:start] + pieces[start + 2 :])
            if not _is_set(answer, own) and re.search(r"\w", own[place]):
                yield f"the {which} {name} doubled", parts.join([*pieces[: at + 1], pieces[1], *pieces[at:]])
            strangers = [known[name][at] for known in strange if len(known.get(name, ())) > at]
            for other in [part for part in strangers if part not in own][:1]:
                yield f"the {which} {name} replaced", parts.join([*pieces[:at], other, *pieces[at + 1 :]])
                added = parts.join([*pieces[: at + 1], pieces[1], other, *pieces[at + 1 :]])
                yield f"another {name} after the {which}", added
        for place in range(1, len(own)):
            if own[place] in own[:place]:
                dropped = parts.join(pieces[: 2 * place - 1] + pieces[2 * place + 1 :])
                yield f"one of two equal {name}s dropped", dropped
            elif own[place - 1][-1].isdecimal() and own[place][0].isdecimal():
                yield f"two {name}s joined", parts.join(pieces[: 2 * place - 1] + pieces[2 * place :])


def change_order(answer: str, others: Sequence[str]) -> Neighbours:
    """Parts exchanged or moved, where their order is not free."""
    for parts in partitions(answer):
        name, own = parts.name, parts.pieces[::2]
        every = [*range(len(own))]
        if _is_set(answer, own):
            continue
        for what, order in {
            f"the first two {name}s exchanged": [1, 0, *every[2:]],
            f"the last two {name}s exchanged": [*every[:-2], every[-1], every[-2]],
            f"the first and the last {name} exchanged": [every[-1], *every[1:-1], 0],
            f"the first {name} at the end": [*every[1:], 0],
            f"the last {name} at the beginning": [every[-1], *every[:-1]],
            f"the {name}s in reverse": every[::-1],
        }.items():
            moved = [place for place in every if order[place] != place]
            span = "".join(parts.pieces[2 * moved[0] : 2 * moved[-1] + 1])
            pieces = parts.pieces.copy()
            pieces[::2] = [own[place] for place in order]
            changed = parts.join(pieces)
            is_free = {*re.findall(r"[^\w\s.()]", span)} in _COMMUTATIVE
            if not is_free and _terms(changed) != _terms(answer):  # more than separators has moved
                yield what, changed


def change_letters(answer: str, others: Sequence[str]) -> Neighbours:
    """A letter dropped, doubled, exchanged or replaced, and other case where case varies within words."""
    if 2 * sum(bool(_MIXED_CASE.search(text)) for text in (answer, *others)) > 1 + len(others):
        yield "in lower case", answer.lower()
        letter = re.compile("[A-Za-z]")
        yield "the case of the first letter swapped", letter.sub(lambda found: found[0].swapcase(), answer, count=1)
    word = max(_WORD.findall(answer), key=len, default="")
    middle = len(word) // 2
    changed = {"with another first letter": _other_letter(word[0]) + word[1:]} if word else {}
    if len(word) > 2:
        changed |= {
            "with another last letter": word[:-1] + _other_letter(word[-1]),
            "without its first letter": word[1:],
            "without its last letter": word[:-1],
            "without a letter in its middle": word[:middle] + word[middle + 1 :],
            "with its last letter doubled": word + word[-1],
            "with a letter before it": f"x{word}",
            "with two letters exchanged": _exchange(word),
        }
    for what, other in changed.items():
        yield f"its longest word {what}", other.join(answer.rsplit(word, 1))


def _other_letter(letter: str) -> str:
    other = "a" if letter not in "aA" else "b"
    return other.upper() if letter.isupper() else other
