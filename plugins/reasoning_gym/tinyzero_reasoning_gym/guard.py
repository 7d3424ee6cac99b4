"""The guard around reasoning-gym's scorers: an answer that has the right one in it, and more, is not right.

Some scorers look for what they know and skip the rest, so that `not 12` and `12 or 13` are as good as `12` to them;
others pay a share for an answer that has the right one somewhere in it. But another right answer may well have the
known one within, such as one with more moves. So what decides is whether the scorer reads all of it: what can be
replaced by nonsense without any loss was not read.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable

_PIECE = re.compile(r"\d+(?:[.,]\d+)*|[^\W\d_]+|(?<!\w)[-−–¬~!≠](?=\w|\s*\d)")
"""A number, a word, or a sign before one of them; punctuation, brackets and units such as % may be left unread."""

_NONSENSE = " zq "
_NUMBERS = ("8", "97")  # no two numbers mean the same everywhere: not in a quarter turn, nor as a remainder
_MOST = 100  # pieces that are tried, so that the time stays linear in the length of the answer
_PLAIN = frozenset({"a", "an", "and", "answer", "are", "final", "is", "the"})


def holds_more(answer: str, known: Iterable[str]) -> bool:
    """Whether `answer` has a known answer in it, and more."""
    folded = answer.strip().casefold()
    return any(gold != folded and gold in folded for gold in (text.strip().casefold() for text in known))


def find_unread(answer: str, known: Iterable[str], is_right: Callable[[str], bool]) -> str | None:
    """A piece of a right answer that its scorer does not read, beyond those of a known answer; None if there is none.

    Example:
        >>> find_unread("not 12", ["12"], lambda text: "12" in text)
        'not'
        >>> find_unread("12.0", ["12"], lambda text: text in ("12", "12.0"))
    """
    left = Counter(dict.fromkeys(_PLAIN, len(answer)))
    for text in known:
        left |= Counter(piece.casefold() for piece in _PIECE.findall(text))
    beyond: list[re.Match[str]] = []
    for found in _PIECE.finditer(answer):
        left[found[0].casefold()] -= 1
        if left[found[0].casefold()] == -1:  # so each piece is tried once
            beyond.append(found)
    for found in beyond[:_MOST]:
        before, after = answer[: found.start()], answer[found.end() :]
        if is_right(before + _NONSENSE + after) or (
            found[0][0].isdigit() and all(is_right(before + number + after) for number in _NUMBERS)
        ):
            return found[0]
    return None
