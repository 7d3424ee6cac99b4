"""The verdict on an answer."""

from collections.abc import Mapping

from tinyzero_countdown.expression import evaluate, read
from tinyzero_sdk import Score
from tinyzero_sdk.records import Json

RULE = "Use every number exactly once, with +, -, *, / and parentheses; the result must be exactly the target."
"""What `score` checks, as every prompt says it."""

# Made once: a frozen record costs more than the arithmetic.
_RIGHT = Score(1.0, correct=True, reason="ok")
_WRONG = {"binary": Score(0.0, correct=False, reason="wrong"), "tinyzero": Score(0.1, correct=False, reason="wrong")}
_MALFORMED = Score(0.0, correct=False, reason="malformed")


def judge(answer: str, ground_truth: Mapping[str, Json], reward: str = "binary") -> Score:
    """Whether `answer` keeps `RULE`, and what that pays.

    Args:
        answer: what stands between the tags.
        ground_truth: `numbers`, any sequence of integers, and `target`.
        reward: see `CountdownOptions.reward`.

    Example:
        >>> judge("(17 - 5) + 3 = 15", {"target": 15, "numbers": [3, 5, 17]}).value
        1.0
        >>> judge("17 - 5 + 3 + 0", {"target": 15, "numbers": [3, 5, 17]}, reward="tinyzero").value
        0.1
    """
    expression = read(answer)
    if expression is None:
        return _MALFORMED
    program, numbers = expression
    target = ground_truth["target"]
    if program.claims_result and numbers.pop() != target:
        return _WRONG[reward]
    # The numbers first: then what is evaluated is no larger than the puzzle.
    if sorted(numbers) != sorted(ground_truth["numbers"]):
        return _WRONG[reward]
    try:
        return _RIGHT if evaluate(program, numbers) == target else _WRONG[reward]
    except ZeroDivisionError:
        return _WRONG[reward]
