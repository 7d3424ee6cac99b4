"""Scores an answer."""

from collections.abc import Iterable, Mapping

from tinyzero_countdown.expression import MAX_LENGTH, evaluate, read
from tinyzero_sdk import Score
from tinyzero_sdk.records import Json

RULE = "Use every number exactly once, with +, -, *, / and parentheses; the result must be exactly the target."
"""What `score` checks, as every prompt says it."""

# Made once: a frozen record costs more than the arithmetic.
_RIGHT = Score.of_parts({"correct": 1.0, "format": 1.0}, correct=True)
_WRONG = Score.of_parts({"format": 1.0}, correct=False, reason="wrong")
_MALFORMED = Score.of_parts({}, correct=False, reason="malformed")


def score_answer(answer: str, ground_truth: Mapping[str, Json]) -> Score:
    """The parts of the reward: whether `answer` keeps `RULE`, and whether it is an expression.

    Args:
        answer: what stands between the tags.
        ground_truth: `numbers`, any sequence of integers, and `target`, an integer; numpy's are fine. The hook
            `is_valid` refuses anything else, on which every answer would look wrong.

    Example:
        >>> score_answer("(17 - 5) + 3 = 15", {"target": 15, "numbers": [3, 5, 17]}).parts
        {'correct': 1.0, 'format': 1.0}
        >>> score_answer("17 - 5 + 3 + 0", {"target": 15, "numbers": [3, 5, 17]}).parts
        {'format': 1.0}
    """
    target, allowed = ground_truth["target"], ground_truth["numbers"]
    expression = read(answer, MAX_LENGTH if len(answer) <= MAX_LENGTH else longest_answer(target, allowed))
    if expression is None:
        return _MALFORMED
    program, numbers = expression
    if program.claim and numbers.pop() * program.claim != target:
        return _WRONG
    # The numbers first: then what is evaluated is no larger than the puzzle.
    if sorted(numbers) != sorted(allowed):
        return _WRONG
    try:
        return _RIGHT if evaluate(program, numbers) == target else _WRONG
    except ZeroDivisionError:
        return _WRONG


def longest_answer(target: int, numbers: Iterable[int]) -> int:
    """Room for each number with an operator, spaces and brackets or a fraction around it, and for the target."""
    return max(MAX_LENGTH, sum(2 * len(str(number)) + 24 for number in (*numbers, target)))
