"""Fallible worked traces for supervised fine-tuning, in the manner of Stream of Search (arXiv 2404.03683).

A trace is a depth-first search in random order: `17+5=22,17*3=51,5-3=2(17-2=15!`. Brackets hold the steps that follow
the one before them. Where two numbers are left, a step that reaches the target is usually seen, and `!` ends the
search; now and then another one is written, and after such a miss the trace goes on or gives up and answers with it.
The arithmetic is always right: a model learns from it the format, the arithmetic and how to search, and has still to
learn to see the target, where to look first, and for how long.
"""

from collections.abc import Sequence
from random import Random

LOOK_AHEAD = 0.7
"""How often a step that reaches the target is seen."""

MISS = 0.12
"""How often a last step that does not reach it is written where none was seen."""

GIVE_UP = 0.35
PATIENT_GIVE_UP = 0.03
"""The chance of giving up after a miss, of most traces and of patient ones. It is the same each time, or searching
longer could not be learnt."""

PATIENT = 0.4
"""The share of patient traces: without long ones a model's arithmetic breaks where none of its traces ever went."""

LARGEST = 999
"""No sum or product is larger; no step leaves the whole numbers from 0."""

_Term = tuple[int, str, str]
"""Value, expression, and what the expression is: a number (``), a sum (`+`) or a product (`*`)."""

_Step = tuple[_Term, str, _Term, int, list[_Term]]
"""Left term, operator, right term, result, and the terms that the step leaves as they are."""

_BRACKETED_RIGHT: dict[str, tuple[str, ...]] = {"+": (), "-": ("+",), "*": ("+",), "/": ("+", "*")}
"""What needs brackets to the right of an operator."""


def demonstrate(numbers: Sequence[int], target: int, seed: int) -> str:
    """One trace: what follows the `compact` prompt.

    Example:
        >>> demonstrate([17, 5, 3], 15, seed=3)
        '17+5=22,17*3=51,5-3=2(17-2=15!<answer>17-(5-3)</answer>'
    """
    search = _Search(target, Random(seed))
    terms = [(number, str(number), "") for number in numbers]
    while (answer := search.explore(terms)) is None:
        pass  # all was tried, and what reaches the target was not seen
    return f"{search.trace}<answer>{answer}</answer>"


class _Search:
    """A trace that is being written."""

    def __init__(self, target: int, random: Random) -> None:
        self.target, self.random = target, random
        self.give_up = PATIENT_GIVE_UP if random.random() < PATIENT else GIVE_UP
        self.trace = ""

    def explore(self, terms: list[_Term]) -> str | None:
        """Write the steps that combine two of the terms, each with what follows it; returns the answer, if it ends."""
        steps = _steps(terms)
        if len(terms) == 2:
            steps = self._seen(steps)
        self.random.shuffle(steps)
        for left, operator, right, value, others in steps:
            if self.trace[-1:].isdigit():
                self.trace += ","
            self.trace += f"{left[0]}{operator}{right[0]}={value}"
            term = (value, *_join(left, operator, right))
            if others:
                self.trace += "("
                if (answer := self.explore([*others, term])) is not None:
                    return answer
                self.trace = self.trace[:-1] if self.trace[-1] == "(" else f"{self.trace})"
            elif value == self.target:
                self.trace += "!"
                return term[1]
            elif self.random.random() < self.give_up:
                return term[1]
        return None

    def _seen(self, steps: list[_Step]) -> list[_Step]:
        """Of the steps that leave one number, one or none."""
        hits = [step for step in steps if step[3] == self.target]
        if hits and self.random.random() < LOOK_AHEAD:
            return [self.random.choice(hits)]
        misses = [step for step in steps if step[3] != self.target]
        return [self.random.choice(misses)] if misses and self.random.random() < MISS else []


def _steps(terms: list[_Term]) -> list[_Step]:
    """All different steps that combine two terms, the larger one on the left."""
    steps: dict[tuple[int, str, int], _Step] = {}
    for i, one in enumerate(terms):
        for j in range(i):
            left, right = (one, terms[j]) if one[0] > terms[j][0] else (terms[j], one)
            others = [*terms[:j], *terms[j + 1 : i], *terms[i + 1 :]]
            for operator, value in _results(left[0], right[0]):
                steps.setdefault((left[0], operator, right[0]), (left, operator, right, value, others))
    return list(steps.values())


def _results(larger: int, smaller: int) -> list[tuple[str, int]]:
    """The operators that may stand between two values, with their results; `-` always may."""
    results = [("-", larger - smaller)]
    if larger + smaller <= LARGEST:
        results.append(("+", larger + smaller))
    if larger * smaller <= LARGEST:
        results.append(("*", larger * smaller))
    if smaller and larger % smaller == 0:
        results.append(("/", larger // smaller))
    return results


def _join(left: _Term, operator: str, right: _Term) -> tuple[str, str]:
    """The joined expression with the fewest brackets that keep its value, and what it is."""
    _, left_text, left_kind = left
    _, right_text, right_kind = right
    if left_kind == "+" and operator in "*/":
        left_text = f"({left_text})"
    if right_kind in _BRACKETED_RIGHT[operator]:
        right_text = f"({right_text})"
    return f"{left_text}{operator}{right_text}", "+" if operator in "+-" else "*"
