"""Shrinking a completion while it still shows the same failure.

Pieces of the text are left out, the largest first, as in delta debugging (Zeller and Hildebrandt 2002).
"""

import json
import re
from collections.abc import Callable

from tinyzero_sdk.records import Json

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
