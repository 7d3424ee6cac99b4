"""The settings of the task. Impossible ones are refused here, before any work is done."""

from dataclasses import dataclass
from typing import Literal

MAX_NUMBERS = 6
EXACT_BELOW = 2**53
"""Up to here every integer is a float of its own, so vectors of floats count exactly."""


@dataclass(frozen=True, slots=True)
class CountdownOptions:
    """Which puzzles are made, and how answers are paid.

    Raises:
        ValueError: the settings fit no puzzle.
    """

    numbers: tuple[int, ...] = (3, 4)
    """How many numbers a puzzle has; each length listed is equally likely. 2 to 6."""

    number_range: tuple[int, int] = (1, 99)
    """Least and greatest number."""

    target_range: tuple[int, int] = (10, 100)
    """Least and greatest target."""

    operators: str = "+-*/"
    """The operators puzzles are built with, equally likely. An answer may use all four in any case."""

    difficulty_range: tuple[float, float] | None = None
    """Least and greatest difficulty of a puzzle; None = all."""

    reward: Literal["binary", "tinyzero"] = "binary"
    """binary: 1 if right, else 0. tinyzero: also 0.1 for a well-formed expression with a wrong value or wrong numbers."""

    def __post_init__(self) -> None:
        if not self.numbers or not all(2 <= count <= MAX_NUMBERS for count in self.numbers):
            raise ValueError(f"numbers: got {list(self.numbers)}, expected lengths from 2 to {MAX_NUMBERS}, such as [3, 4]")
        if not self.operators or not set(self.operators) <= set("+-*/") or len(set(self.operators)) < len(self.operators):
            raise ValueError(f"operators: got {self.operators!r}, expected some of + - * / such as '+-', none twice")
        _check_range("number_range", self.number_range, least=1)
        _check_range("target_range", self.target_range, least=1)
        if self.difficulty_range is not None:
            _check_range("difficulty_range", self.difficulty_range, least=0)
        for count in self.numbers:
            self._check_reach(count)

    def _check_reach(self, count: int) -> None:
        """Refuse targets that `count` numbers cannot reach, and sizes at which arithmetic would not be exact."""
        (low, high), (target_low, target_high) = self.number_range, self.target_range
        if (high + 1) ** count * (target_high + 1) >= EXACT_BELOW:
            raise ValueError(
                f"number_range {list(self.number_range)} is too wide for {count} numbers and targets to {target_high};"
                " lower its upper end, or use fewer numbers"
            )
        least = 0 if set("-/") & set(self.operators) else min(
            count * low if "+" in self.operators else high**count, low**count if "*" in self.operators else high * count
        )
        greatest = high**count if set("*/") & set(self.operators) else high * count
        if least > target_high or greatest < target_low:
            raise ValueError(
                f"{count} numbers from {low} to {high} with the operators {self.operators!r} reach {least} to {greatest},"
                f" never a target from {target_low} to {target_high}; change target_range or number_range"
            )


def _check_range(name: str, bounds: tuple[float, float], least: int) -> None:
    if not least <= bounds[0] <= bounds[1]:
        raise ValueError(f"{name}: got {list(bounds)}, expected two values, {least} or more, the lesser first")
