"""Findings of a search, grouped by what causes them; of each group the smallest is kept.

Two findings belong to one group if they are of one kind and their completions show the same *traits* that no gold
answer shows: `2**3 - 4` and `9 - 2**3` share the trait `**`. A finding without such a trait (only its value is
wrong) is grouped by its kind alone.
"""

import re
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass

from tinyzero_sdk.fuzz.differential import Kind, ScoringFault
from tinyzero_sdk.fuzz.presentations import Attempt, presentation_traits
from tinyzero_sdk.records import Json
from tinyzero_sdk.testing.cases import Case
from tinyzero_sdk.testing.shrinking import size_of

DESCRIPTIONS: dict[str, str] = {
    "timeout": "took longer than the timeout",
    "died": "ended the process",
    "wrong_rewarded": "fully rewarded, though wrong",
    "error": "the scorer raised",
    "oracle_error": "the oracle raised",
    "right_unrewarded": "not rewarded, though right",
}
"""A description of each type of finding, the worst first."""


IN_ORACLE = "in the oracle"  # note of a finding where the oracle hung or died, not the scorer


@dataclass(frozen=True, slots=True)
class Finding:
    """One completion that a task scores wrongly, or does not survive."""

    kind: Kind
    completion: str
    ground_truth: Json
    """It belongs to a problem that the task generated, or to a variant that the task solves."""

    answer: str | None
    score: float
    right: bool | None
    """The oracle's result for the answer that counts; None if it cannot tell."""

    traits: tuple[str, ...]
    note: str = ""
    """How the completion was made, or what was raised."""

    is_about_presentation: bool = False
    """Whether the answer alone is scored correctly, and its surroundings cause the finding."""

    @property
    def size(self) -> tuple[int, int, int, str]:
        """The sort key of the smallest finding."""
        return size_of(self.completion, self.ground_truth)

    def to_case(self) -> Case | None:
        """The finding as a case labelled by the oracle; None if the oracle has no result."""
        if self.right is None:
            return None
        traits = f" ({' '.join(self.traits)})" if self.traits else ""
        note = f": {self.note}" if self.note and self.note not in self.traits else ""
        return Case(self.completion, self.ground_truth, self.right, f"fuzz: {DESCRIPTIONS[self.kind]}{traits}{note}")


MOST_GROUPS = 12
"""Groups kept of one kind: a reward with more is broken altogether."""


class FindingSet:
    """Findings of all processes, grouped by what sets them apart from right answers."""

    def __init__(self) -> None:
        self._groups: dict[tuple[str, frozenset[str]], Finding] = {}

    def __iter__(self) -> Iterator[Finding]:
        return iter(
            sorted(self._groups.values(), key=lambda finding: ([*DESCRIPTIONS].index(finding.kind), finding.size))
        )

    def __len__(self) -> int:
        return len(self._groups)

    def is_full(self, kind: str) -> bool:
        return sum(known == kind for known, _ in self._groups) >= MOST_GROUPS

    def is_known(self, kind: str, traits: frozenset[str]) -> bool:
        """Whether a group explains such a finding: all that sets the group apart sets the finding apart too."""
        if not traits:
            return (kind, traits) in self._groups
        return any(known == kind and group and group <= traits for known, group in self._groups)

    def lacks(self, finding: Finding) -> bool:
        """Whether a finding would be the first of a group for which there is room, or the smallest of its group."""
        traits = frozenset(finding.traits)
        own = self._groups.get((finding.kind, traits))
        if own is not None:
            return finding.size < own.size
        return not self.is_full(finding.kind) and not self.is_known(finding.kind, traits)

    def add(self, finding: Finding) -> bool:
        """Keep a finding, if it is the first or the smallest of its group; whether it was."""
        if not self.lacks(finding):
            return False
        traits = frozenset(finding.traits)
        for key in [key for key in self._groups if key[0] == finding.kind and traits and traits < key[1]]:
            del self._groups[key]  # a simpler one explains them
        self._groups[finding.kind, traits] = finding
        return True


_TOKEN = re.compile(r"[0-9]+(?:\.[0-9]+)?|[A-Za-z]+|[ \t]+|[()\[\]{}]|[^0-9A-Za-z \t()\[\]{}]+")


def traits_of(text: str) -> frozenset[str]:
    """What a text is made of, without its numbers' values: words, runs of symbols, and what stands side by side.

    Example:
        >>> sorted(traits_of("-(2**3) 4"))
        ['**', '-', 'close number', 'first -']
    """
    traits, before = set(), "first"
    for token in _TOKEN.findall(text):
        if token[0] in " \t":
            continue
        kind = _kind(token)
        if kind in ("word", "symbol"):
            shown = (token if token.isascii() and token.isprintable() else ascii(token)[1:-1]).lower()[:12]
            traits.add(shown)
            if kind == "symbol" and before in ("first", "open", "symbol"):
                traits.add(f"{before} {shown}")
        elif before in _ODD_BEFORE[kind]:
            traits.add(f"{before} {kind}")
        if kind == "number":
            traits.update(name for name, is_so in _ODD_NUMBERS.items() if is_so(token))
        before = kind
    return frozenset(traits)


_ODD_NUMBERS: dict[str, Callable[[str], bool]] = {
    "decimal": lambda token: "." in token,
    "leading zero": lambda token: token[0] == "0" and token != "0",
    "long number": lambda token: len(token) > 9,
}
_ODD_BEFORE = {"number": ("number", "close"), "open": ("number", "close"), "close": ("symbol", "open", "first")}


def _kind(token: str) -> str:
    first = token[0]
    if first in "0123456789":
        return "number"
    if first in "([{":
        return "open"
    if first in ")]}":
        return "close"
    return "word" if first.isascii() and first.isalpha() else "symbol"


def make_finding(attempt: Attempt, truth: Json, fault: ScoringFault, usual: Set[str]) -> Finding:
    """The record of a fault, with the traits that set it apart from gold answers, whose traits are `usual`."""
    score, about_presentation = fault.score, False
    if fault.note:
        traits = {fault.note.partition(": ")[0]}
    elif attempt.how and fault.answer != score.answer:
        traits, about_presentation = presentation_traits(attempt.how), True
    else:
        traits = set(traits_of(fault.answer if fault.answer is not None else attempt.text) - usual)
    note = fault.note or (attempt.how if about_presentation else "")
    named = tuple(sorted(traits))
    return Finding(
        fault.kind, attempt.text, truth, score.answer, score.value, fault.right, named, note, about_presentation
    )
