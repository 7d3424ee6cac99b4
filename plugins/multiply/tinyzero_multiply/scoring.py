"""Scores an answer."""

from collections.abc import Mapping
from operator import index
from typing import Any, NamedTuple

from tinyzero_multiply.reading import MAX_LENGTH, longest_answer, read
from tinyzero_sdk import Score
from tinyzero_sdk.records import Json

# Made once: a frozen record costs more than the reading.
_RIGHT = Score.of_parts({"correct": 1.0, "format": 1.0}, correct=True)
_WRONG = Score.of_parts({"format": 1.0}, correct=False, reason="wrong")
_MALFORMED = Score.of_parts({}, correct=False, reason="malformed")


class Truth(NamedTuple):
    """What a ground truth says."""

    product: int

    factors: tuple[int, int] | None
    """None where the ground truth is the bare product, as in TinyZero's files."""


def score_answer(answer: str, ground_truth: Json) -> Score:
    """The parts of the reward: whether `answer` is the product, and whether it is a whole number.

    Args:
        answer: what stands between the tags.
        ground_truth: see `read_truth`. The hook `is_valid` refuses anything else, on which every answer would look
            wrong.

    Example:
        >>> score_answer("123 × 456 = 56,088", {"num1": 123, "num2": 456, "product": 56088}).parts
        {'correct': 1.0, 'format': 1.0}
        >>> score_answer("56089", 56088).parts
        {'format': 1.0}
    """
    known = ground_truth["product"] if type(ground_truth) is dict else read_truth(ground_truth).product
    product = str(known)
    if answer == product:  # most right answers, at a tenth of the cost
        return _RIGHT
    reading = read(answer, MAX_LENGTH if len(answer) <= MAX_LENGTH else longest_answer(product))
    if reading is None:
        return _MALFORMED
    if reading.number != known:
        return _WRONG
    if reading.factors is None:
        return _RIGHT
    truth = read_truth(ground_truth)
    if truth.factors is None:
        return _RIGHT if reading.factors[0] * reading.factors[1] == truth.product else _WRONG
    return _RIGHT if sorted(reading.factors) == sorted(truth.factors) else _WRONG


def read_truth(ground_truth: Json) -> Truth:
    """A ground truth's product and factors.

    Args:
        ground_truth: `num1`, `num2` and their `product`; or the product alone, a whole number or its digits. The
            factors of a bare product are not known: there any true equation that ends in it will do.

    Raises:
        TypeError: it is neither.
        ValueError: the product is not that of the factors, or the text is no whole number.
    """
    if type(ground_truth) is int:
        return Truth(ground_truth, None)
    try:
        if type(ground_truth) is dict or isinstance(ground_truth, Mapping):  # the second takes longer
            num1, num2, product = map(_whole, (ground_truth["num1"], ground_truth["num2"], ground_truth["product"]))
        else:
            is_text = isinstance(ground_truth, str)
            if is_text and not (ground_truth.isascii() and ground_truth.strip().isdigit()):  # int() reads more
                raise ValueError(f"ground truth: got {ground_truth!r}, expected the digits of a whole number")
            return Truth(int(ground_truth) if is_text else _whole(ground_truth), None)
    except (TypeError, KeyError):
        expected = '{"num1": 123, "num2": 456, "product": 56088}, or 56088'
        raise TypeError(f"ground truth: got {ground_truth!r}, expected whole numbers as in {expected}") from None
    if num1 * num2 != product:
        raise ValueError(f"ground truth: got {ground_truth!r}, but {num1} × {num2} is {num1 * num2}")
    return Truth(product, (num1, num2))


def _whole(number: Any) -> int:
    if type(number) is bool:
        raise TypeError
    return index(number)
