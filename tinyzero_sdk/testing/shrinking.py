"""Shrinking a completion, alone or with its ground truth, while it still shows the same failure: what hypothesis cannot
do once a text is made.

Pieces of a text are left out, the largest first, as in delta debugging (Zeller and Hildebrandt 2002). The work of
`shrink_pair` is bounded by a number of tries, not by time, so that the same seed gives the same result.
"""

import json
import re
from collections.abc import Callable, Iterator
from functools import partial

from tinyzero_sdk.records import Json
from tinyzero_sdk.testing.ground_truth_mutation import entries, integers, with_number, without

_tokens = re.compile(r"[0-9]+|[A-Za-z]+|\s+|.", re.DOTALL).findall


def minimize(text: str, holds: Callable[[str], bool], *, is_over: Callable[[], bool] = lambda: False) -> str:
    """The shortest text found that `holds`, by leaving out pieces of `text`, which must hold.

    First whole numbers and words go, then single characters, until none can be left out, or the time `is_over`.

    Example:
        >>> minimize("so it is <answer>9**9**9</answer>.", lambda text: "**" in text)
        '**'
    """
    if text and not is_over() and holds(""):
        return ""
    pieces = _cut_down(_tokens(text), holds, is_over)
    return "".join(_cut_down(list("".join(pieces)), holds, is_over))


def _cut_down(pieces: list[str], holds: Callable[[str], bool], is_over: Callable[[], bool]) -> list[str]:
    size, is_smaller = len(pieces) // 2, False
    while size:
        start = 0
        while start < len(pieces):
            if is_over():
                return pieces
            shorter = pieces[:start] + pieces[start + size :]
            if holds("".join(shorter)):
                pieces, is_smaller = shorter, True
            else:
                start += size
        if size == 1 and is_smaller:
            is_smaller = False  # once more: a piece may be unnecessary, now that another is gone
        else:
            size //= 2
    return pieces


def size_of(completion: str, ground_truth: Json) -> tuple[int, int, int, str]:
    """Shorter texts first, then shorter ground truths, then smaller numbers, then plainer characters."""
    truth = json.dumps(ground_truth)
    numbers = sum(int(digits[:18]) for digits in re.findall(r"[0-9]+", truth))
    return len(completion), len(truth), numbers, completion


def shrink_pair(
    text: str, truth: Json, holds: Callable[[str, Json], bool], valid: Callable[[Json], bool], tries: int
) -> tuple[str, Json]:
    """A smaller completion and ground truth that still show the finding, after at most `tries` calls of `holds`.

    `valid` says whether a ground truth is one of the task's; it is called only for those that show the finding.
    """
    left, changed = tries, True

    def test(text: str, truth: Json) -> bool:
        nonlocal left
        left -= 1
        return left >= 0 and holds(text, truth)

    while changed and left > 0:
        changed = False
        shorter = minimize(text, partial(test, truth=truth), is_over=lambda: left <= 0)
        if shorter != text:
            text, changed = shorter, True
        size = size_of(text, truth)
        for candidate, smaller in _smaller_pairs(text, truth):
            if left <= 0:
                break
            if size_of(candidate, smaller) < size and test(candidate, smaller) and valid(smaller):
                text, truth, changed = candidate, smaller, True
                break
    return text, truth


def _smaller_pairs(text: str, truth: Json) -> Iterator[tuple[str, Json]]:
    """Pairs with one entry less, or a smaller number, in both; also with another number of the truth adjusted to it."""
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


def _adjusted(truth: Json, change: int) -> Iterator[Json]:
    """The truth with one other number: a small one, or one that a change elsewhere may lead to."""
    for path, value in integers(truth):
        likely = (value - change, value + change, value // change if change else 0, value * change)
        for number in dict.fromkeys((*range(1, 13), *likely)):
            if number != value and number > 0:
                yield with_number(truth, path, number)


def _texts_without(text: str, number: str) -> Iterator[str]:
    """The text without an occurrence of a number and a few tokens around it."""
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
