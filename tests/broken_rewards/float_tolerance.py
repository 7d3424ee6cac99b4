"""A broken reward: a result within 1e-3 of the target is as good as the target.

So 50 + 1 / (40 * 30) is 50.
Everything else is countdown's own.
"""

from tinyzero_countdown import *  # noqa: F403 - every hook that is not written below
from tinyzero_countdown.expression import evaluate, read
from tinyzero_sdk import TaskInfo, hookimpl


@hookimpl
def info():
    return TaskInfo("countdown with a broken reward")  # of one part


@hookimpl
def score(answer, ground_truth):
    expression = read(answer)
    if expression is None:
        return 0.0
    program, numbers = expression
    if program.claim and numbers.pop() * program.claim != ground_truth["target"]:
        return 0.0
    if sorted(numbers) != sorted(ground_truth["numbers"]):
        return 0.0
    try:
        return float(abs(float(evaluate(program, numbers)) - ground_truth["target"]) < 1e-3)
    except ZeroDivisionError:
        return 0.0
