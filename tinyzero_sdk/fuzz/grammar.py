"""Drawing answers from the rules that a task's `grammar` hook gives; their form is in `docs/hooks.md`."""

import random
import re
from collections.abc import Mapping, Sequence

_REFERENCE = re.compile(r"<([^<>]+)>")
_DEEPEST = 12
"""From this depth on the alternative that ends soonest is taken."""

Alternative = list[str]
"""Text and names of rules by turns: text, name, text, …, text."""


class Grammar:
    """Rules from which answers are drawn.

    Example:
        >>> Grammar({"sum": ["<n>", "<n> + <sum>"], "n": ["1"]}).draw(random.Random(2))
        '1 + 1'
    """

    def __init__(self, rules: Mapping[str, Sequence[str]]) -> None:
        self._start = next(iter(rules))
        self._rules = {name: [_parse(text, rules) for text in texts] for name, texts in rules.items()}
        self._shortest = _find_shortest(self._rules)

    def draw(self, rng: random.Random) -> str:
        """An answer; the same for the same state of `rng`."""
        pieces: list[str] = []
        self._expand(self._start, rng, 0, pieces)
        return "".join(pieces)

    def _expand(self, name: str, rng: random.Random, depth: int, pieces: list[str]) -> None:
        alternatives = self._rules[name]
        chosen = self._shortest[name] if depth >= _DEEPEST else alternatives[int(rng.random() * len(alternatives))]
        for place, part in enumerate(chosen):
            if place % 2:
                self._expand(part, rng, depth + 1, pieces)
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


def _find_shortest(rules: Mapping[str, list[Alternative]]) -> dict[str, Alternative]:
    """For each rule the alternative that ends after the fewest steps; a rule that never ends yields nothing."""
    shortest: dict[str, Alternative] = {}
    while True:
        ending = {
            name: alternative
            for name, alternatives in rules.items()
            if name not in shortest
            for alternative in alternatives
            if all(part in shortest for part in alternative[1::2])
        }
        if not ending:
            return {name: shortest.get(name, [""]) for name in rules}
        shortest |= ending
