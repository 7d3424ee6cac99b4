"""The settings of the task. Those that fit no puzzle are rejected here, before any work is done."""

from dataclasses import dataclass

MAX_NUMBERS = 5
"""Six have some 800,000 expressions; to list them takes seconds and half a gigabyte."""

MAX_VALUE = 100_000

EXACT_BELOW = 2**53
"""Floats hold every whole number below it exactly."""


@dataclass(frozen=True, slots=True)
class CountdownOptions:
    """Which puzzles are made.

    Raises:
        ValueError: no puzzle fits the settings.
    """

    numbers: tuple[int, ...] = (3, 4)
    """How many numbers a puzzle has, 2 to 5; each count listed is equally likely."""

    number_range: tuple[int, int] = (1, 99)
    """Least and greatest number."""

    target_range: tuple[int, int] = (10, 100)
    """Least and greatest target."""

    operators: str = "+-*/"
    """The operators puzzles are built with, equally likely. Answers may use all four in any case."""

    difficulty_range: tuple[float, float] | None = None
    """Least and greatest difficulty of a puzzle; None = all."""

    guess_rate: float = 0.0
    """Share of demonstrations that guess instead of searching. With three numbers nearly every search succeeds, and a
    model that has seen nothing else has nothing left to choose."""

    def __post_init__(self) -> None:
        counts = set(self.numbers)
        if not counts or not counts <= set(range(2, MAX_NUMBERS + 1)) or len(counts) < len(self.numbers):
            raise ValueError(
                f"numbers: got {list(self.numbers)}, expected counts from 2 to {MAX_NUMBERS}, none twice,"
                " such as [3, 4]"
            )
        operators = set(self.operators)
        if not operators or not operators <= set("+-*/") or len(operators) < len(self.operators):
            raise ValueError(f"operators: got {self.operators!r}, expected some of + - * /, none twice, such as '+-'")
        _check_range("number_range", self.number_range, least=1)
        _check_range("target_range", self.target_range, least=1)
        if self.difficulty_range is not None:
            _check_range("difficulty_range", self.difficulty_range, least=0)
        if not 0 <= self.guess_rate <= 1:
            raise ValueError(f"guess_rate: got {self.guess_rate}, expected a share from 0 to 1")
        for count in self.numbers:
            self._check_size(count)
            self._check_reach(count)

    def _check_size(self, count: int) -> None:
        """Refuse numbers so large that solutions could not be counted exactly."""
        if (self.number_range[1] + 1) ** count * (self.target_range[1] + 1) >= EXACT_BELOW:
            raise ValueError(
                f"number_range: {count} numbers up to {self.number_range[1]} for targets up to {self.target_range[1]}"
                " are too large to count solutions exactly; lower one of the three"
            )

    def _check_reach(self, count: int) -> None:
        """Refuse targets that no expression of `count` numbers can reach."""
        low, high = self.number_range
        least = min({"+": count * low, "*": low**count}.get(operator, 0) for operator in self.operators)
        greatest = max({"+": count * high, "-": count * high}.get(operator, high**count) for operator in self.operators)
        if least > self.target_range[1] or greatest < self.target_range[0]:
            raise ValueError(
                f"target_range: got {list(self.target_range)}, expected some of {least} to {greatest}, which is what"
                f" {count} numbers from {low} to {high} with the operators {self.operators!r} can reach"
            )


def _check_range(name: str, bounds: tuple[float, float], least: int) -> None:
    if not least <= bounds[0] <= bounds[1] <= MAX_VALUE:
        raise ValueError(
            f"{name}: got {list(bounds)}, expected two values from {least} to {MAX_VALUE}, the lesser first"
        )
