"""Worked traces for supervised fine-tuning, in the manner of Stream of Search (arXiv 2404.03683).

A trace is a depth-first search: `17*8=136(…)17-5=12(…` takes one step after the other, until three numbers are left.
Then it leaves out each of the three in turn, and looks for a result of the other two among the values that the target
needs:

    3:96 102 297 33=12 8:4 20 96!12*8=96,96+3=99<answer>(17-5)*8+3</answer>

99 and 3 have the difference 96, the sum 102, the product 297 and the quotient 33; of 12 and 8, 96 is the first that is
among them (`-` is a result that is not a whole number, or too large). Some are overlooked, and a trace may give up,
`?`, and answer with a guess: a model learns from it to compute and to search, and has still to learn where and for how
long. With the option `guess_rate`, a share of the traces is nothing but a guess: `?17-8=9,9*12=108,108-3=105`.
"""

from collections.abc import Sequence
from random import Random

LOOK_AHEAD = 0.9
"""How often a result that leads to the target is seen."""

GIVE_UP = 0.3
PATIENT_GIVE_UP = 0.02
"""The chance of giving up where three numbers are left, of most traces and of patient ones. It is the same each time,
or searching longer could not be learnt."""

PATIENT = 0.4
"""The share of patient traces: without long ones a model's arithmetic breaks where none of its traces ever went."""

LARGEST = 300
"""No sum or product is larger, or than three times the target: small models compute those badly, and few puzzles need
them. No step leaves the whole numbers from 0."""

_Term = tuple[int, str, str]
"""Value, expression, and what the expression is: a number (``), a sum (`+`) or a product (`*`)."""

_BRACKETED_RIGHT: dict[str, tuple[str, ...]] = {"+": (), "-": ("+",), "*": ("+",), "/": ("+", "*")}
"""What needs brackets to the right of an operator."""


def demonstrate(numbers: Sequence[int], target: int, seed: int, guess_rate: float = 0.0) -> str:
    """One trace: what follows the `compact` prompt; with the chance `guess_rate` it is only a guess.

    Example:
        >>> demonstrate([17, 5, 3], 15, seed=2)
        '3:12 18 45 5=17 5:12 22 85 -;17:2 32 255 -=5 3:2!5-3=2,17-2=15<answer>17-(5-3)</answer>'
    """
    search = _Search(target, Random(seed))
    terms = [(number, str(number), "") for number in numbers]
    guesses = guess_rate and search.random.random() < guess_rate
    while (answer := search.guess(terms) if guesses else search.explore(terms)) is None:
        pass  # all was tried, and what leads to the target was overlooked
    return f"{search.trace}<answer>{answer}</answer>"


class _Search:
    """A trace that is being written."""

    def __init__(self, target: int, random: Random) -> None:
        self.target, self.random = target, random
        self.largest = max(LARGEST, 3 * target)
        self.give_up = PATIENT_GIVE_UP if random.random() < PATIENT else GIVE_UP
        self.trace = ""

    def explore(self, terms: list[_Term]) -> str | None:
        """Search on from these terms; returns the answer, if that ends the trace."""
        if len(terms) <= 3:
            return self.compare(terms)
        steps: dict[str, list[_Term]] = {}
        for i, first in enumerate(terms):
            for j in range(i):
                others = [*terms[:j], *terms[j + 1 : i], *terms[i + 1 :]]
                for operator, value in self.results(first[0], terms[j][0]).items():
                    if value is not None:
                        step, term = _combine(first, operator, value, terms[j])
                        steps.setdefault(step, [term, *others])
        # Always in the same order, from anywhere on: then a model neither forgets nor repeats one.
        start = self.random.randrange(len(steps))
        for step, left in [*list(steps.items())[start:], *list(steps.items())[:start]]:
            self.trace += f"{step}("
            if (answer := self.explore(left)) is not None:
                return answer
            self.trace += ")"
        return None

    def compare(self, terms: list[_Term]) -> str | None:
        """Look for the target where two or three terms are left."""
        misses = []
        for number in range(len(terms) if len(terms) == 3 else 1):
            first, second, *rest = [*terms[number:], *terms[:number]]
            for third in rest:
                self.trace += f"{third[0]}:{' '.join(map(_show, self.results(self.target, third[0]).values()))}="
            self.trace += f"{first[0]} {second[0]}:"
            for operator, value in self.results(first[0], second[0]).items():
                self.trace += _show(value)
                if value is not None:
                    reached = self.results(value, rest[0][0]).values() if rest else [value]
                    if self.target not in reached:
                        misses.append((first, operator, value, second, rest))
                    elif self.random.random() < LOOK_AHEAD:
                        return self.finish("!", first, operator, value, second, rest)
                self.trace += ";" if operator == "/" else " "
        if misses and self.random.random() < self.give_up:
            return self.finish("?", *self.random.choice(misses))
        return None

    def finish(self, mark: str, first: _Term, operator: str, value: int, second: _Term, rest: list[_Term]) -> str:
        """Write the last steps, which reach the target if they can; returns the answer."""
        step, term = _combine(first, operator, value, second)
        self.trace += mark + step
        for third in rest:
            possible = [(last, value) for last, value in self.results(value, third[0]).items() if value is not None]
            hits = [pair for pair in possible if pair[1] == self.target]
            step, term = _combine(term, *self.random.choice(hits or possible), third)
            self.trace += f",{step}"
        return term[1]

    def guess(self, terms: list[_Term]) -> str:
        """Combine terms at random until one is left, which is the answer."""
        steps = []
        while len(terms) > 1:
            first, second, *terms = self.random.sample(terms, len(terms))
            results = self.results(first[0], second[0]).items()
            possible = [(operator, value) for operator, value in results if value is not None]
            step, term = _combine(first, *self.random.choice(possible), second)
            steps.append(step)
            terms.append(term)
        self.trace += f"?{','.join(steps)}"
        return terms[0][1]

    def results(self, first: int, second: int) -> dict[str, int | None]:
        """The result of each operator on two values; None where it is too large or not whole."""
        larger, smaller = max(first, second), min(first, second)
        total, product = larger + smaller, larger * smaller
        return {
            "-": larger - smaller,
            "+": total if total <= self.largest else None,
            "*": product if product <= self.largest else None,
            "/": larger // smaller if smaller and larger % smaller == 0 else None,
        }


def _show(value: int | None) -> str:
    return "-" if value is None else str(value)


def _combine(first: _Term, operator: str, value: int, second: _Term) -> tuple[str, _Term]:
    """The step that combines two terms, the larger one on the left, and the term that it makes.

    That has the fewest brackets that keep its value.
    """
    left, right = (first, second) if first[0] >= second[0] else (second, first)
    _, left_text, left_kind = left
    _, right_text, right_kind = right
    if left_kind == "+" and operator in "*/":
        left_text = f"({left_text})"
    if right_kind in _BRACKETED_RIGHT[operator]:
        right_text = f"({right_text})"
    expression = f"{left_text}{operator}{right_text}"
    return f"{left[0]}{operator}{right[0]}={value}", (value, expression, "+" if operator in "+-" else "*")
