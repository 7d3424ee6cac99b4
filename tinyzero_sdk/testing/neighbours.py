"""Neighbours of a right answer, by kind: changes after which it is no longer right, as far as texts can show.

What only respells an answer is left out: a number in another notation, the terms of a sum or a product in another
order, the entries of a set. Whether a sign, a bracket or the case of a letter says anything is read off the right
answers of other problems: where all have the same, it does not. Nothing here knows a task.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from functools import partial

Neighbours = Iterator[tuple[str, str]]
"""Kinds, each once, and an answer of that kind, which may still be `same` as the right one."""

Change = Callable[[str, Sequence[str]], Neighbours]
"""The neighbours of an answer, given the right answers of other problems."""

_NUMBER = re.compile(r"(?<![\w.])-?[0-9]{1,20}(?:\.[0-9]{1,20})?(?![0-9])")
_SIGNS = ("+-*/×÷·^", "<>≤≥=", "([", ")]")  # of a class, one may stand in the place of another
_COMMUTATIVE = [{sign} for sign in "+*×x·∧∨∪∩"]
_WHOLE = r"(?s)\A(EDGE*)(.*?)(EDGE*)\Z"
_LEVELS = [  # what a part is called, the text around all of them, and what separates two
    (name, re.compile(_WHOLE.replace("EDGE", edge)), re.compile(separator))
    for name, edge, separator in (
        ("line", r"\W", r"(\n+)"),
        ("item", r"\W", r"""(["']?\s*[,;]\s*["']?)"""),
        ("word", r"\W", r"(\s+)"),
        ("term", r"\W", r"([^\w.]+)"),
        ("number", "[^0-9]", r"((?:[^0-9.]|\.(?![0-9]))+)"),
    )
]
_NAMED = re.compile(r"""["']?\w+["']?\s*[:=]""")
_WORD = re.compile(r"(?<![\\\w])[^\W\d_]+")  # no command of LaTeX
_MIXED_CASE = re.compile(r"[a-z][A-Z]|[A-Z]{2}[a-z]")
_terms = re.compile(r"[\w.]+").findall


def same(left: str, right: str) -> bool:
    """Whether two answers differ at most in their spaces, and in how their numbers are written."""
    first, second = (
        [float(piece) if piece[0] in "0123456789" else piece for piece in re.findall(r"[0-9]+(?:\.[0-9]*)?|\S", text)]
        for text in (left, right)
    )
    return first == second


def _places(count: int) -> list[tuple[str, int]]:
    """Which of several things are changed."""
    return [("last", count - 1), ("first", 0), ("middle", count // 2)][:count]


def change_numbers(answer: str, others: Sequence[str]) -> Neighbours:
    """Another value or digit of a number, and another sign."""
    numbers = [*_NUMBER.finditer(answer)]
    for which, place in _places(len(numbers)):
        start, end = numbers[place].span()
        for what, near in _near(numbers[place][0]).items():
            yield f"the {which} number {what}", answer[:start] + near + answer[end:]
    for signs in _SIGNS:
        form = re.compile(f"[{re.escape(signs)}]")
        own = [*form.finditer(answer)]
        for which, place in _places(len(own))[:2]:
            known = {found[0 if which == "first" else -1] for other in others if (found := form.findall(other))}
            start, end = own[place].span()
            for sign in sorted(known - {own[place][0]})[:1]:
                yield f"the {which} of the signs {signs} replaced", answer[:start] + sign + answer[end:]


def _near(number: str) -> Mapping[str, str]:
    value = Decimal(number)
    near = {f"{step:+g}": value + Decimal(str(step)) for step in (1, -1, 0.4, -0.4)}
    for percent in ("+0.5", "-0.5"):
        change = value * Decimal(percent) / 100
        near[f"{percent} %"] = value + (change if "." in number or abs(change) < 1 else round(change))
    near |= {
        "times 100": value * 100,
        "divided by 100": value / 100,
        "with its sign flipped": -value if value else value,
    }
    sign, digits, rest = re.findall(r"(-?)([0-9]+)(.*)", number)[0]  # the rest may be rounded
    spelled = {
        "without its point": number.replace(".", ""),
        "with a digit doubled": f"{sign}{digits}{digits[-1]}{rest}",
    }
    if len(digits) > 1:
        changed = {
            "without its first": digits[1:],
            "without its last": digits[:-1],
            "with an exchanged": digits[:-2] + digits[:-3:-1],
        }
        spelled |= {f"{what} digit": f"{sign}{other}{rest}" for what, other in changed.items()}
    return {what: f"{other:f}" for what, other in near.items()} | spelled


def partitions(answer: str) -> Iterator[tuple[str, list[str], Callable[[Iterable[str]], str]]]:
    """The ways to see an answer as several parts: what one is called; a part, a separator, …, a part; how they join."""
    for name, whole, separator in _LEVELS:
        [(before, inside, after)] = whole.findall(answer)
        pieces = separator.split(inside)
        if len(pieces) > 1:
            yield name, pieces, partial(_join, before, after)


def _join(before: str, after: str, pieces: Iterable[str]) -> str:
    return f"{before}{''.join(pieces)}{after}"


def _is_set(answer: str, parts: Sequence[str]) -> bool:
    """Whether the parts may stand in any order and twice: in braces, and with names."""
    return answer.startswith(("{", "\\{")) or all(map(_NAMED.match, parts))


def change_parts(answer: str, others: Sequence[str]) -> Neighbours:
    """A part dropped, doubled, replaced or added, and the answer of another problem."""
    yield "the right answer of another problem", next((other for other in others if not same(other, answer)), answer)
    yield "'not' before it", f"not {answer}"
    strange = [{name: pieces for name, pieces, _ in partitions(other)} for other in others[:8]]
    for name, pieces, join in partitions(answer):
        own = pieces[::2]
        for which, place in _places(len(own)):
            start, at = max(2 * place - 1, 0), 2 * place
            if re.search(r"\w", own[place]):  # else it may only separate others
                yield f"the {which} {name} dropped", join(pieces[:start] + pieces[start + 2 :])
                if not _is_set(answer, own):
                    yield f"the {which} {name} doubled", join([*pieces[: at + 1], pieces[1], *pieces[at:]])
            strangers = [known[name][at] for known in strange if len(known.get(name, ())) > at]
            for other in [part for part in strangers if part not in own][:1]:
                yield f"the {which} {name} replaced", join([*pieces[:at], other, *pieces[at + 1 :]])
                yield (
                    f"another {name} after the {which}",
                    join([*pieces[: at + 1], pieces[1], other, *pieces[at + 1 :]]),
                )
        twice = [place for place in range(1, len(own)) if own[place] in own[:place] and re.search(r"\w", own[place])]
        for place in twice[:1]:
            yield f"one of two equal {name}s dropped", join(pieces[: 2 * place - 1] + pieces[2 * place + 1 :])
        if own[0][-1].isdecimal() and own[1][0].isdecimal():
            yield f"the first two {name}s joined", join([own[0], *pieces[2:]])


def change_order(answer: str, others: Sequence[str]) -> Neighbours:
    """Parts exchanged or moved, where their order is not free."""
    for name, pieces, join in partitions(answer):
        own, every = pieces[::2], [*range(len(pieces) // 2 + 1)]
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
            span = "".join(pieces[2 * moved[0] : 2 * moved[-1] + 1])
            pieces[::2] = [own[place] for place in order]
            changed = join(pieces)
            pieces[::2] = own
            is_free = {*re.findall(r"[^\w\s.()]|(?<=\d )x(?= \d)", span)} in _COMMUTATIVE
            if not is_free and _terms(changed) != _terms(answer):  # more than separators has moved
                yield what, changed


def change_letters(answer: str, others: Sequence[str]) -> Neighbours:
    """A letter dropped, doubled, exchanged or replaced, and other case where case varies within words."""
    if 2 * sum(bool(_MIXED_CASE.search(text)) for text in (answer, *others)) > 1 + len(others):
        yield "in lower case", answer.lower()
        yield "its first letter in other case", re.sub("[A-Za-z]", lambda found: found[0].swapcase(), answer, count=1)
    word = max(_WORD.findall(answer), key=len, default="")
    middle = len(word) // 2
    for what, other in {
        "with another first letter": f"q{word[1:]}",
        "with another last letter": f"{word[:-1]}q",
        "without its first letter": word[1:],
        "without its last letter": word[:-1],
        "without a letter in its middle": word[:middle] + word[middle + 1 :],
        "with its last letter doubled": word + word[-1:],
        "with a letter before it": f"q{word}",
        "with two letters exchanged": word[:-2] + word[:-3:-1],
    }.items():
        if len(word) > 2 or (word and what == "with another first letter"):
            yield f"its longest word {what}", other.join(answer.rsplit(word, 1))
