"""How a story is told: numbers drawn, facts in sentences, steps worked exactly, an idle fact or two put in between."""

import random
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Literal, TypeVar

T = TypeVar("T")
Value = int | Fraction
Operator = Literal["+", "-", "*", "/"]


def show(value: Value) -> str:
    """A value as solutions and answers write it: whole, or with two decimals.

    Example:
        >>> show(12), show(Fraction(25, 2))
        ('12', '12.50')
    """
    if isinstance(value, int) or value.denominator == 1:
        return str(int(value))
    hundredths = value * 100
    assert hundredths.denominator == 1, f"{value} has more than two decimals"
    return f"{int(hundredths) // 100}.{int(hundredths) % 100:02d}"


class Person:
    """Someone in a story."""

    def __init__(self, name: str, he: str) -> None:
        self.name = name
        self.he = he
        self.He = he.capitalize()
        self.his = "her" if he == "she" else "his"
        self.His = self.his.capitalize()

    def __str__(self) -> str:
        return self.name


_PEOPLE = tuple(
    Person(name, he)
    for he, names in (
        ("she", "Maya Aisha Lena Rosa Priya Grace Ingrid Chloe Naomi Fatima Sofia Hana Olga Zoe Ruth Amara Yuki Tessa"),
        ("he", "Omar Liam Mateo Kenji Paul Ravi Jonas Samuel Tariq Victor Bruno Emil Hugo Idris Noah Felix Kwame Otto"),
    )
    for name in names.split()
)


class Story:
    """One problem while it is being told."""

    def __init__(self, source: random.Random) -> None:
        self._random = source.random
        self._facts: list[str] = []
        self._question = ""
        self._people: list[Person] = []
        self.steps: list[str] = []
        """One line for each operation of the solution."""
        self.numbers: list[int] = []
        """The numbers that matter, in the order drawn."""

    def number(self, low: int, high: int, unit: int = 1) -> int:
        """A multiple of `unit`, from low * unit to high * unit, that the answer depends on."""
        drawn = low + int(self._random() * (high - low + 1))
        self.numbers.append(drawn)
        return drawn * unit

    def choose(self, options: Sequence[T]) -> T:
        """One of them; the answer must not depend on which."""
        return options[int(self._random() * len(options))]

    def branch(self, options: Sequence[T]) -> T:
        """One of them, on which the answer may depend."""
        return options[self.number(0, len(options) - 1)]

    def person(self) -> Person:
        """Somebody new."""
        while (someone := self.choose(_PEOPLE)) in self._people:
            pass
        self._people.append(someone)
        return someone

    def tell(self, *wordings: str) -> None:
        """One sentence or more, in one of several wordings of one meaning."""
        self._facts.append(self.choose(wordings))

    def idle(self, *sentences: str) -> None:
        """Tell, in half of all stories, a fact with a number that the answer does not need."""
        if self._random() < 0.5:
            self._facts.append(self.choose(sentences))

    def step(self, why: str, left: Value, operator: Operator, right: Value, unit: str = "") -> Value:
        """Work one operation out, and return its result."""
        result = _OPERATIONS[operator](left, right)
        told = f" {unit.removesuffix('s') if result == 1 else unit}" if unit else ""
        self.steps.append(f"{why}: {show(left)} {operator} {show(right)} = {show(result)}{told}.")
        return result

    def ask(self, *wordings: str) -> None:
        """The question, in one of several wordings of one meaning."""
        self._question = self.choose(wordings)

    def question(self) -> str:
        """All that was told, and the question."""
        return " ".join([*self._facts, self._question])


_OPERATIONS: dict[str, Callable[[Value, Value], Value]] = {
    "+": lambda left, right: left + right,
    "-": lambda left, right: left - right,
    "*": lambda left, right: left * right,
    "/": lambda left, right: Fraction(left) / right,
}
