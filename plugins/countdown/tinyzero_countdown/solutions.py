"""All distinct solutions, of many puzzles at once or of one as text.

The expressions of a catalogue are evaluated for a batch of puzzles by vector operations, as fractions whose
numerators and denominators are integers held in floats: exact below 2**53, and faster than integers.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from tinyzero_countdown.catalogue import MAX_BLOCK, Block, Catalogue, catalogue
from tinyzero_countdown.expression import FUNCTIONS, read
from tinyzero_countdown.options import EXACT_BELOW, MAX_NUMBERS
from tinyzero_sdk import TinyZeroError


@dataclass(frozen=True, slots=True)
class Survey:
    """What the solutions of n puzzles are like."""

    solutions: np.ndarray
    """[n] how many distinct ones there are."""

    without_division: np.ndarray
    """[n] whether one of them does not divide."""

    without_fraction: np.ndarray
    """[n] whether one of them, multiplying before it divides, meets whole numbers only."""


class _Batch:
    """The values of a catalogue's rows for a batch of puzzles.

    Arrays are made once a batch and written in place: fresh ones for every block would cost more than the arithmetic.
    """

    def __init__(self, book: Catalogue, numbers: np.ndarray, targets: np.ndarray) -> None:
        """
        Args:
            book: the catalogue of the pattern that all puzzles share.
            numbers: [symbols, puzzles], the number each symbol stands for.
            targets: [puzzles]
        """
        self._book, self._targets = book, targets
        rows, puzzles = book.wholes[0].rows.start, len(targets)
        self._numerator = np.empty((rows, puzzles))
        self._denominator = np.empty((rows, puzzles))  # NaN after a division by zero; NaN spreads and equals nothing
        self._is_whole = np.empty((rows, puzzles), dtype=bool)  # so are the values on the way
        self._scratch = np.empty((4, MAX_BLOCK, puzzles))
        self._numerator[: book.symbol_count] = numbers
        self._denominator[: book.symbol_count] = 1.0
        self._is_whole[: book.symbol_count] = True

    def hits(self) -> Iterator[tuple[Block, np.ndarray, np.ndarray]]:
        """The blocks that use all numbers; [rows, puzzles] which reach the target, and which do by whole numbers."""
        for block in self._book.parts:
            numerator, denominator = self._numerator[block.rows], self._denominator[block.rows]
            self._combine(block, numerator, denominator)
            is_whole = self._is_whole[block.left] & self._is_whole[block.right]
            if block.operator == "/":
                is_whole &= np.rint(numerator / denominator) * denominator == numerator
            self._is_whole[block.rows] = is_whole
        for block in self._book.wholes:
            numerator, denominator = self._scratch[:2, : len(block.left)]
            self._combine(block, numerator, denominator)
            denominator *= self._targets
            reached = numerator == denominator
            yield block, reached, reached & self._is_whole[block.left] & self._is_whole[block.right]

    def write(self, block: Block, place: int) -> str:
        """The expression at a place of a block, with the numbers of the first puzzle."""
        operands = []
        for row in (int(block.left[place]), int(block.right[place])):
            if row < self._book.symbol_count:
                operands.append(f"{self._numerator[row, 0]:.0f}")
                continue
            inner = next(part for part in self._book.parts if row < part.rows.stop)
            text = self.write(inner, row - inner.rows.start)
            operands.append(f"({text})" if inner.operator in "+-" and block.operator in "*/" else text)
        return f" {block.operator} ".join(operands)

    def _combine(self, block: Block, numerator: np.ndarray, denominator: np.ndarray) -> None:
        """Write the values of a block's rows to `numerator` and `denominator`, [rows, puzzles]."""
        other, right = self._scratch[2:, : len(block.left)]
        self._take(self._numerator, block.left, numerator)
        self._take(self._denominator, block.left, denominator)
        self._take(self._numerator, block.right, other)
        self._take(self._denominator, block.right, right)
        if block.operator == "*":
            numerator *= other
            denominator *= right
        elif block.operator == "/":
            other[other == 0.0] = np.nan
            numerator *= right
            denominator *= other
        else:
            other *= denominator
            numerator *= right
            denominator *= right
            (np.add if block.operator == "+" else np.subtract)(numerator, other, out=numerator)

    @staticmethod
    def _take(table: np.ndarray, rows: np.ndarray, out: np.ndarray) -> None:
        np.take(table, rows, axis=0, out=out, mode="clip")  # the default mode would copy through a buffer


def survey(numbers: np.ndarray, targets: np.ndarray) -> Survey:
    """Look at all solutions of n puzzles of equally many numbers: 7 µs a puzzle of four, 0.2 ms of five.

    Args:
        numbers: [n, k] integers, in any order.
        targets: [n] integers.

    Raises:
        TinyZeroError: k is not 2 to 5, or the numbers are too large to count exactly.
    """
    result = Survey(np.zeros(len(targets), int), np.zeros(len(targets), bool), np.zeros(len(targets), bool))
    for rows, batch in _batches(numbers, targets):
        for block, reached, by_whole_numbers in batch.hits():
            result.solutions[rows] += np.add.reduce(reached.view(np.uint8), axis=0, dtype=np.uint16)
            result.without_division[rows] |= reached[~block.divides].any(axis=0)
            result.without_fraction[rows] |= by_whole_numbers.any(axis=0)
    return result


def solutions(numbers: Sequence[int], target: int) -> list[str]:
    """All distinct solutions of one puzzle, the simplest first: without a fraction on the way, then with the
    fewest divisions, brackets and multiplications.

    Raises:
        TinyZeroError: as `survey`.

    Example:
        >>> solutions([8, 3, 8, 3], 24)
        ['8 / (3 - 8 / 3)']
    """
    ranked = []
    for _, batch in _batches(np.array([numbers]), np.array([target])):
        for block, reached, by_whole_numbers in batch.hits():
            for row in np.flatnonzero(reached):
                text = batch.write(block, int(row))
                simplicity = (not by_whole_numbers[row, 0], *map(text.count, "/(*"))
                ranked.append((simplicity, text))
    return [text for _, text in sorted(ranked)]


def gold_completion(numbers: Sequence[int], target: int) -> str | None:
    """The simplest solution, worked step by step, or None if there is none.

    Example:
        >>> gold_completion([3, 5, 17], 4)
        '<think>17 + 3 = 20, 20 / 5 = 4</think>\\n<answer>(17 + 3) / 5</answer>'
    """
    texts = solutions(numbers, target)
    expression = read(texts[0]) if texts else None
    if expression is None:
        return None
    program, operands = expression
    values, lines = [*map(Fraction, operands)], []
    for function, left, right in program.steps:
        values.append(Fraction(function(values[left], values[right])))
        operator = next(name for name, known in FUNCTIONS.items() if known is function)
        lines.append(f"{_show(values[left])} {operator} {_show(values[right])} = {_show(values[-1])}")
    return f"<think>{', '.join(lines)}</think>\n<answer>{texts[0]}</answer>"


def _show(value: Fraction) -> str:
    return str(value) if value.denominator == 1 else f"({value})"


def _batches(numbers: np.ndarray, targets: np.ndarray) -> Iterator[tuple[np.ndarray, _Batch]]:
    """Puzzles of one pattern together, with their rows, as many as a processor's cache holds."""
    length = numbers.shape[1]
    # Numerators, denominators and their products with the target are all below this.
    largest = np.prod(np.abs(numbers) + 1.0, axis=1) * (np.abs(targets) + 1.0)
    if not 2 <= length <= MAX_NUMBERS or (largest >= EXACT_BELOW).any():
        raise TinyZeroError(
            f"cannot count the solutions of {length} numbers up to {numbers.max()}; expected 2 to {MAX_NUMBERS} numbers"
            f" that multiply with the target to less than {EXACT_BELOW:.0e}"
        )
    ordered = -np.sort(-numbers, axis=1)  # the largest first, so that differences tend to be positive
    is_new = np.diff(ordered, axis=1, prepend=ordered[:, :1] - 1) != 0
    codes, groups = np.unique(is_new @ (1 << np.arange(length)), return_inverse=True)
    for group in range(len(codes)):
        members = np.flatnonzero(groups == group)
        new_here = is_new[members[0]]
        book = catalogue(tuple((np.cumsum(new_here) - 1).tolist()))
        batch_size = min(max(40_000 // book.wholes[0].rows.start, 32), 1024)
        for begin in range(0, len(members), batch_size):
            rows = members[begin : begin + batch_size]
            yield rows, _Batch(book, ordered[rows][:, new_here].T, targets[rows])
