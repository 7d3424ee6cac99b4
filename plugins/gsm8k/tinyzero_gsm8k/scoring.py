"""Scores an answer: its number against the ground truth's."""

from fractions import Fraction
from functools import lru_cache
from numbers import Real

from tinyzero_gsm8k.numbers import read_number
from tinyzero_gsm8k.problems import MARKER
from tinyzero_sdk import Score
from tinyzero_sdk.errors import DataError

# Made once: a frozen record costs more than the comparison.
_RIGHT = Score(1.0, correct=True, reason="ok")
_WRONG = Score(0.0, correct=False, reason="wrong")
_MALFORMED = Score(0.0, correct=False, reason="malformed")


def score_answer(answer: str, ground_truth: str | int | float) -> Score:
    """Whether the one number in `answer` is that of the ground truth.

    Args:
        answer: as `last_answer` returns it.
        ground_truth: a number as text, in any form an answer may have ("72", "1,000", or a solution that ends in
            `#### 72`), or as a number.

    Raises:
        DataError: the ground truth is no number, on which every answer would look wrong.

    Example:
        >>> [score_answer(text, "1000").reason for text in ("$1,000.00 a month", "999", "a lot")]
        ['ok', 'wrong', 'malformed']
    """
    truth = read_truth(ground_truth)
    number = read_number(answer)
    if number is None:
        return _MALFORMED
    return _RIGHT if number == truth else _WRONG


@lru_cache(maxsize=1 << 16, typed=True)
def read_truth(ground_truth: str | int | float) -> int | Fraction:
    """The number of a ground truth.

    Raises:
        DataError: it is none.
    """
    is_one = isinstance(ground_truth, str | Real) and not isinstance(ground_truth, bool)
    number = read_number(str(ground_truth).rpartition(MARKER)[2]) if is_one else None
    if number is None:
        raise DataError(f"the ground truth is {str(ground_truth)[:80]!r}, expected a number")
    return number
