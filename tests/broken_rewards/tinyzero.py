"""A broken reward: the method of the reward that TinyZero trains with.

Last line, last tag, digits compared, characters filtered, eval, 1e-5 of tolerance, 0.1 for a tag with anything in it.
It evaluates model text on purpose: it is only ever given texts that tests make, in child processes.
"""

import re

from tinyzero_countdown import *  # noqa: F403 - every hook that is not written below
from tinyzero_sdk import Score, TaskInfo, hookimpl


@hookimpl
def info():
    return TaskInfo(description="countdown with a hole: TinyZero's method")


@hookimpl
def extract_answer(completion):
    found = re.findall(r"<answer>(.*?)</answer>", completion.split("\n")[-1])
    return found[-1].strip() if found else None


@hookimpl
def score(answer, ground_truth):
    wrong = Score(0.1, correct=False, reason="wrong")
    if sorted(int(digits) for digits in re.findall(r"\d+", answer)) != sorted(ground_truth["numbers"]):
        return wrong
    if not re.match(r"^[\d+\-*/().\s]+$", answer):
        return wrong
    try:
        value = eval(answer, {"__builtins__": None}, {})
        return Score(1.0, correct=True) if abs(value - ground_truth["target"]) < 1e-5 else wrong
    except Exception:
        return wrong
