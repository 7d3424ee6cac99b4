"""Cutting a text down while something stays true of it: what hypothesis cannot do once a text is made.

Pieces are left out, the largest first, as in delta debugging (Zeller and Hildebrandt 2002).
"""

import time
from collections.abc import Callable


def minimize(text: str, holds: Callable[[str], bool], *, seconds: float = 10.0) -> str:
    """The shortest text found that `holds`, by leaving out pieces of `text`, which must hold.

    Example:
        >>> minimize("so it is <answer>9**9**9</answer>.", lambda text: "**" in text)
        '**'
    """
    until = time.monotonic() + seconds
    if text and holds(""):
        return ""
    size = max(1, len(text) // 2)
    while True:
        start, smaller = 0, False
        while start < len(text) and time.monotonic() < until:
            shorter = text[:start] + text[start + size :]
            if holds(shorter):
                text, smaller = shorter, True
            else:
                start += size
        if time.monotonic() >= until:
            return text
        if size == 1 and not smaller:
            return text
        size = max(1, size // 2)
