"""Scores an answer."""

from collections.abc import Mapping
from operator import index

from tinyzero_countdown.expression import evaluate, read
from tinyzero_sdk import Score
from tinyzero_sdk.records import Json

RULE = "Use every number exactly once, with +, -, *, / and parentheses; the result must be exactly the target."
"""What `score` checks, as every prompt says it."""

# Made once: a frozen record costs more than the arithmetic.
_RIGHT = Score(1.0, correct=True, reason="ok")
_WRONG = {"binary": Score(0.0, correct=False, reason="wrong"), "tinyzero": Score(0.1, correct=False, reason="wrong")}
_MALFORMED = Score(0.0, correct=False, reason="malformed")


def score_answer(answer: str, ground_truth: Mapping[str, Json], reward: str = "binary") -> Score:
    """Whether `answer` keeps `RULE`, and what that pays.

    Args:
        answer: what stands between the tags.
        ground_truth: `numbers`, any sequence of integers, and `target`, an integer; numpy's are fine.
        reward: see `CountdownOptions.reward`.

    Raises:
        TypeError: the ground truth holds something else, on which every answer would look wrong.

    Example:
        >>> score_answer("(17 - 5) + 3 = 15", {"target": 15, "numbers": [3, 5, 17]}).value
        1.0
        >>> score_answer("17 - 5 + 3 + 0", {"target": 15, "numbers": [3, 5, 17]}, reward="tinyzero").value
        0.1
    """
    expression = read(answer)
    if expression is None:
        return _MALFORMED
    program, numbers = expression
    target = ground_truth["target"]
    if program.claims_result and numbers.pop() != target:
        return _wrong(ground_truth, reward)
    # The numbers first: then what is evaluated is no larger than the puzzle.
    if sorted(numbers) != sorted(ground_truth["numbers"]):
        return _wrong(ground_truth, reward)
    try:
        return _RIGHT if evaluate(program, numbers) == target else _wrong(ground_truth, reward)
    except ZeroDivisionError:
        return _wrong(ground_truth, reward)


def _wrong(ground_truth: Mapping[str, Json], reward: str) -> Score:
    """The score `wrong`, or an error if the ground truth itself has the wrong type."""
    target, numbers = ground_truth["target"], ground_truth["numbers"]
    try:
        index(target)
        for number in numbers:
            index(number)
    except TypeError:
        raise TypeError(
            f"ground truth: got target {target!r} and numbers {numbers!r}, expected an integer and a list of integers"
        ) from None
    return _WRONG[reward]
