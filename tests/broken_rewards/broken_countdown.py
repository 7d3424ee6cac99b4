"""What broken rewards of countdown share: all of countdown's hooks, a reward of one part, and reading with care."""

from tinyzero_countdown import *  # noqa: F403 - every hook that is not written below
from tinyzero_countdown.expression import evaluate, read
from tinyzero_sdk import TaskInfo, hookimpl


@hookimpl
def info():
    return TaskInfo("countdown with a broken reward")  # of one part


def value_of(answer, ground_truth, is_allowed):
    """The value of an expression whose numbers are allowed, and which claims no other; None for any other answer."""
    expression = read(answer)
    if expression is None:
        return None
    program, numbers = expression
    if program.claim and numbers.pop() * program.claim != ground_truth["target"]:
        return None
    try:
        return evaluate(program, numbers) if is_allowed(numbers, ground_truth["numbers"]) else None
    except ZeroDivisionError:
        return None
