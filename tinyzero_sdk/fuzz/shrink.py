"""Making a finding smaller: a shorter completion, a smaller problem, smaller numbers, as long as it is the same one.

The work is bounded by the number of completions tried, not by time, so that the same seed finds the same.
"""

import json
import re
from collections.abc import Callable, Iterator
from itertools import combinations, product
from typing import Any

from tinyzero_sdk.fuzz.findings import size_of
from tinyzero_sdk.records import Json

_tokens = re.compile(r"[0-9]+|[A-Za-z]+|\s+|.", re.DOTALL).findall

Test = Callable[[str, Json], bool]
"""Whether a completion and a ground truth show the same finding."""


class _Budget:
    """A test that gives up after so many tries."""

    def __init__(self, test: Test, tries: int) -> None:
        self._test = test
        self.left = tries

    def __call__(self, text: str, truth: Json) -> bool:
        self.left -= 1
        return self.left >= 0 and self._test(text, truth)


def shrink_text(text: str, holds: Callable[[str], bool]) -> str:
    """The shortest text found by leaving out parts, first large ones, then single tokens and characters.

    Example:
        >>> shrink_text("what a (large) haystack", lambda text: "(" in text and ")" in text)
        '()'
    """
    for cut in (_tokens, list):
        pieces = cut(text)
        size = len(pieces)
        while size:
            start = 0
            while start < len(pieces):
                shorter = pieces[:start] + pieces[start + size :]
                if holds("".join(shorter)):
                    pieces = shorter
                else:
                    start += size
            size = min(size // 2, len(pieces))
        text = "".join(pieces)
    return text


def shrink_pair(text: str, truth: Json, holds: Test, valid: Callable[[Json], bool], tries: int) -> tuple[str, Json]:
    """A smaller completion and ground truth that still show the finding.

    Args:
        text: the completion.
        truth: the ground truth.
        holds: whether a pair shows it.
        valid: whether a ground truth is one of the task's; asked only of those that show it.
        tries: how often `holds` may be asked.
    """
    budget = _Budget(holds, tries)
    changed = True
    while changed and budget.left > 0:
        changed = False
        shorter = shrink_text(text, lambda candidate, truth=truth: budget(candidate, truth))  # type: ignore[misc]
        if shorter != text:
            text, changed = shorter, True
        size = size_of(text, truth)
        for candidate, smaller in _smaller_pairs(text, truth):
            if budget.left <= 0:
                break
            if size_of(candidate, smaller) < size and budget(candidate, smaller) and valid(smaller):
                text, truth, changed = candidate, smaller, True
                break
    return text, truth


def _smaller_pairs(text: str, truth: Json) -> Iterator[tuple[str, Json]]:
    """Pairs with an entry less, or a smaller number, in both; and another number of the truth that makes up for it."""
    for path, value in _entries(truth):
        without = _without(truth, path)
        for shorter in _texts_without(text, str(value)):
            yield shorter, without
            yield from ((shorter, other) for other in _adjusted(without, value))
    for path, value in _numbers(truth):
        for less in dict.fromkeys((*range(1, 5), value // 10, value // 2, value - 1)):
            if 0 < less < value:
                smaller = _with(truth, path, less)
                for renamed in _renamed(text, value, less):
                    yield renamed, smaller
                    yield from ((renamed, other) for other in _adjusted(smaller, value - less))
    yield from _two_renamed(text, truth)


def _adjusted(truth: Json, change: int) -> Iterator[Json]:
    """The truth with one of its numbers otherwise: small, or what a change elsewhere may have made of it."""
    for path, value in _numbers(truth):
        likely = (value - change, value + change, value // change if change else 0, value * change)
        for number in dict.fromkeys((*range(1, 13), *likely)):
            if number != value and number > 0:
                yield _with(truth, path, number)


def _two_renamed(text: str, truth: Json) -> Iterator[tuple[str, Json]]:
    """Two numbers made small at once."""
    numbers = list(_numbers(truth))
    for (path, value), (other_path, other_value) in combinations(numbers, 2):
        for less, other_less in product(range(1, 4), repeat=2):
            if (less, other_less) != (value, other_value):
                smaller = _with(_with(truth, path, less), other_path, other_less)
                for renamed in _renamed(text, value, less):
                    yield from ((both, smaller) for both in _renamed(renamed, other_value, other_less))


def _texts_without(text: str, number: str) -> Iterator[str]:
    """The text without an occurrence of a number and a few tokens beside it."""
    tokens = _tokens(text)
    for place in [place for place, token in enumerate(tokens) if token == number]:
        for left in range(4):
            for right in range(4 - left):
                yield "".join(tokens[: max(place - left, 0)] + tokens[place + 1 + right :])


def _renamed(text: str, number: int, other: int) -> Iterator[str]:
    """The text with one occurrence of a number replaced, each in turn, and with all of them, or none."""
    places = [match.span() for match in re.finditer(rf"(?<![0-9]){number}(?![0-9])", text)]
    for start, end in places:
        yield f"{text[:start]}{other}{text[end:]}"
    if len(places) > 1:
        yield re.sub(rf"(?<![0-9]){number}(?![0-9])", str(other), text)
    if not places:
        yield text


def _numbers(value: Json, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], int]]:
    """The whole numbers of a ground truth, with the way to each."""
    if isinstance(value, int) and not isinstance(value, bool):
        if path:
            yield path, value
        return
    for key, entry in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from _numbers(entry, (*path, key))


def _entries(value: Json) -> Iterator[tuple[tuple[Any, ...], int]]:
    """Those of them that stand in a list with others."""
    for path, number in _numbers(value):
        holder = _get(value, path[:-1])
        if isinstance(holder, list) and len(holder) > 1:
            yield path, number


def _get(value: Json, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


def _with(truth: Json, path: tuple[Any, ...], number: int) -> Json:
    truth = json.loads(json.dumps(truth))
    _get(truth, path[:-1])[path[-1]] = number
    return truth


def _without(truth: Json, path: tuple[Any, ...]) -> Json:
    truth = json.loads(json.dumps(truth))
    del _get(truth, path[:-1])[path[-1]]
    return truth
