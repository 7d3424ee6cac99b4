"""Drawing answers from the rules that a task's `grammar` hook gives; their form is in `docs/reference/hooks.md`."""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property

_REFERENCE = re.compile(r"<([^<>]+)>")
_DEEPEST = 12  # from this depth on the alternative that ends soonest is taken
Choose = Callable[[int], int]
"""choose(n) is one of 0 … n - 1."""

Alternative = list[str]
"""Text and names of rules by turns: text, name, text, …, text."""


class Grammar:
    """Rules from which answers are drawn.

    Example:
        >>> Grammar({"sum": ["<n>", "<n> + <sum>"], "n": ["1"]}).draw(lambda count: 0)
        '1'
    """

    def __init__(self, rules: Mapping[str, Sequence[str]]) -> None:
        self._start = next(iter(rules))
        self._rules = {name: [_parse(text, rules) for text in texts] for name, texts in rules.items()}

    @cached_property
    def _shortest(self) -> dict[str, Alternative]:
        """For each rule the alternative that ends after the fewest steps; a rule that never ends yields nothing."""
        shortest: dict[str, Alternative] = {}
        while True:
            ending = {
                name: alternative
                for name, alternatives in self._rules.items()
                if name not in shortest
                for alternative in alternatives
                if all(part in shortest for part in alternative[1::2])
            }
            if not ending:
                return {name: shortest.get(name, [""]) for name in self._rules}
            shortest |= ending

    def draw(self, choose: Choose) -> str:
        """An answer; the same for the same choices."""
        pieces: list[str] = []
        self._expand(self._start, choose, 0, pieces)
        return "".join(pieces)

    def _expand(self, name: str, choose: Choose, depth: int, pieces: list[str]) -> None:
        alternatives = self._rules[name]
        if depth >= _DEEPEST:
            chosen = self._shortest[name]
        else:
            chosen = alternatives[choose(len(alternatives)) if len(alternatives) > 1 else 0]
        for place, part in enumerate(chosen):
            if place % 2:
                self._expand(part, choose, depth + 1, pieces)
            elif part:
                pieces.append(part)


def _parse(text: str, rules: Mapping[str, Sequence[str]]) -> Alternative:
    parts: Alternative = [""]
    for place, piece in enumerate(_REFERENCE.split(text)):
        if place % 2 and piece in rules:
            parts += [piece, ""]
        else:
            parts[-1] += f"<{piece}>" if place % 2 else piece  # in angle brackets, but no rule: text
    return parts
