"""A broken reward: a result within 1e-3 of the target is as good as the target.

So 50 + 1 / (40 * 30) is 50.
Everything else is countdown's own.
"""

from broken_countdown import *  # noqa: F403 - every hook that is not written below
from broken_countdown import value_of

from tinyzero_sdk import hookimpl


@hookimpl
def score(answer, ground_truth):
    value = value_of(answer, ground_truth, lambda numbers, given: sorted(numbers) == sorted(given))
    return float(value is not None and abs(float(value) - ground_truth["target"]) < 1e-3)
