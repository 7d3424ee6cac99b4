"""Making a finding smaller: a shorter completion, a smaller problem, smaller numbers, as long as it is the same one.

The work is bounded by the number of completions tried, not by time, so that the same seed finds the same.
"""

import re
from collections.abc import Callable, Iterator
from functools import partial
from itertools import combinations, product

from tinyzero_sdk.fuzz.findings import size_of
from tinyzero_sdk.records import Json
from tinyzero_sdk.testing.ground_truth_mutation import entries, integers, with_number, without
from tinyzero_sdk.testing.shrinking import minimize

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
        shorter = minimize(text, partial(_holds, budget, truth), is_over=lambda: budget.left <= 0)
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


def _holds(budget: _Budget, truth: Json, text: str) -> bool:
    return budget(text, truth)


def _smaller_pairs(text: str, truth: Json) -> Iterator[tuple[str, Json]]:
    """Pairs with an entry less, or a smaller number, in both; and another number of the truth that makes up for it."""
    for path, value in entries(truth):
        rest = without(truth, path)
        for shorter in _texts_without(text, str(value)):
            yield shorter, rest
            yield from ((shorter, other) for other in _adjusted(rest, value))
    for path, value in integers(truth):
        for less in dict.fromkeys((*range(1, 5), value // 10, value // 2, value - 1)):
            if 0 < less < value:
                smaller = with_number(truth, path, less)
                for renamed in _renamed(text, value, less):
                    yield renamed, smaller
                    yield from ((renamed, other) for other in _adjusted(smaller, value - less))
    yield from _two_renamed(text, truth)


def _adjusted(truth: Json, change: int) -> Iterator[Json]:
    """The truth with one of its numbers otherwise: small, or what a change elsewhere may have made of it."""
    for path, value in integers(truth):
        likely = (value - change, value + change, value // change if change else 0, value * change)
        for number in dict.fromkeys((*range(1, 13), *likely)):
            if number != value and number > 0:
                yield with_number(truth, path, number)


def _two_renamed(text: str, truth: Json) -> Iterator[tuple[str, Json]]:
    """Two numbers made small at once."""
    numbers = list(integers(truth))
    for (path, value), (other_path, other_value) in combinations(numbers, 2):
        for less, other_less in product(range(1, 4), repeat=2):
            if (less, other_less) != (value, other_value):
                smaller = with_number(with_number(truth, path, less), other_path, other_less)
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
