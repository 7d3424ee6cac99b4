"""How hard a puzzle is.

    difficulty = numbers + 1 / solutions
                 + (1 if every solution divides) + (1 if every solution meets a fraction on its way)

`numbers` is how many there are, `solutions` how many distinct ones (`catalogue.py` says what is distinct), all four
operators allowed whatever the options say; no solution at all counts as half a one. So the easiest puzzles of three
numbers lie just above 3, those of four just above 4, and to have one solution only makes as much as one more number.
"""

import numpy as np

from tinyzero_countdown.solutions import survey
from tinyzero_sdk import ItemColumns


def difficulties(numbers: np.ndarray, targets: np.ndarray) -> np.ndarray:
    """The difficulties of n puzzles of equally many numbers.

    Args:
        numbers: [n, k] integers.
        targets: [n] integers.

    Returns:
        [n] floats.

    Example:
        >>> difficulties(np.array([[3, 3, 8, 8], [1, 2, 3, 4]]), np.array([24, 24])).round(2).tolist()
        [7.0, 4.25]
    """
    ways = survey(numbers, targets)
    return numbers.shape[1] + ~ways.without_division + ~ways.without_fraction + 1 / np.maximum(ways.solutions, 0.5)


def column_difficulties(items: ItemColumns) -> np.ndarray:
    """The difficulty of each item: [n] floats."""
    lists, targets = items.ground_truth.field("numbers"), items.ground_truth.field("target").to_numpy()
    lengths, flat = lists.value_lengths().to_numpy(), lists.flatten().to_numpy()
    starts = np.cumsum(lengths) - lengths
    result = np.empty(len(items))
    for length in np.unique(lengths):
        rows = np.flatnonzero(lengths == length)
        result[rows] = difficulties(flat[starts[rows, None] + np.arange(length)], targets[rows])
    return result
