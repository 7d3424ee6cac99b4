"""Fallible worked traces for warm starts, in the manner of Stream of Search (arXiv 2404.03683).

A trace makes one random attempt after the other, `17+5=22,22-3=19;`, until one hits the target, `!`, or it gives
up; either way it ends with its last attempt as the answer. The arithmetic is always right, but it hardly looks
where it is going: a model learns the format and the arithmetic from it, and has the search still to learn.
"""

import random
from collections.abc import Callable, Sequence

LOOK_AHEAD = 0.3
"""How often the last step of an attempt looks for the target; all other steps are random."""

GIVE_UP = 0.35
PATIENT_GIVE_UP = 0.03
"""The chance of giving up after a miss, of most traces and of patient ones. It is the same each time, or searching
longer could not be learnt."""

PATIENT = 0.25
"""The share of patient traces: without long ones a model's arithmetic breaks where none of its traces ever went."""

LARGEST = 999
"""No sum or product is larger; no step leaves the whole numbers from 0."""

_Term = tuple[int, str, str]
"""Value, expression, and what the expression is: a number (``), a sum (`+`) or a product (`*`)."""

_BRACKETED_RIGHT: dict[str, tuple[str, ...]] = {"+": (), "-": ("+",), "*": ("+",), "/": ("+", "*")}
"""What needs brackets to the right of an operator."""


def demonstrate(numbers: Sequence[int], target: int, seed: int) -> str:
    """One trace: what follows the `compact` prompt.

    Example:
        >>> demonstrate([17, 5, 3], 15, seed=3)
        '17+5=22,22*3=66;17+3=20,20-5=15!<answer>17+3-5</answer>'
    """
    chance = random.Random(seed).random
    trace, give_up = "", PATIENT_GIVE_UP if chance() < PATIENT else GIVE_UP
    while True:
        steps, value, expression = _attempt(numbers, target, chance)
        trace += steps
        if value == target:
            return f"{trace}!<answer>{expression}</answer>"
        trace += ";"
        if chance() < give_up:
            return f"{trace}<answer>{expression}</answer>"


def _attempt(numbers: Sequence[int], target: int, chance: Callable[[], float]) -> tuple[str, int, str]:
    """The steps of one attempt, its value and its expression."""
    terms: list[_Term] = [(number, str(number), "") for number in numbers]
    steps = []
    while len(terms) > 1:
        left = terms.pop(int(chance() * len(terms)))
        right = terms.pop(int(chance() * len(terms)))
        if left[0] < right[0]:
            left, right = right, left
        choices = _choices(left[0], right[0])
        if not terms and chance() < LOOK_AHEAD:
            choices = [choice for choice in choices if choice[1] == target] or choices
        operator, value = choices[int(chance() * len(choices))]
        steps.append(f"{left[0]}{operator}{right[0]}={value}")
        terms.append((value, *_join(left, operator, right)))
    return ",".join(steps), terms[0][0], terms[0][1]


def _choices(larger: int, smaller: int) -> list[tuple[str, int]]:
    """The operators that may stand between two values, with their results; `-` always may."""
    choices = [("-", larger - smaller)]
    if larger + smaller <= LARGEST:
        choices.append(("+", larger + smaller))
    if larger * smaller <= LARGEST:
        choices.append(("*", larger * smaller))
    if smaller and larger % smaller == 0:
        choices.append(("/", larger // smaller))
    return choices


def _join(left: _Term, operator: str, right: _Term) -> tuple[str, str]:
    """The joined expression with the fewest brackets that keep its value, and what it is."""
    _, left_text, left_kind = left
    _, right_text, right_kind = right
    if left_kind == "+" and operator in "*/":
        left_text = f"({left_text})"
    if right_kind in _BRACKETED_RIGHT[operator]:
        right_text = f"({right_text})"
    return f"{left_text}{operator}{right_text}", "+" if operator in "+-" else "*"
