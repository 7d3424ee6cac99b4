"""A broken reward: reasoning-gym's scorer of countdown, or our reimplementation if the package is not installed.

It parses answers with sympy, whose parser is eval, and looks for the numbers by its own pattern.
It evaluates model text on purpose: it is only ever given texts that tests make, in child processes.
"""

import re

from benchmarks.scoring import rewards
from tinyzero_countdown import *  # noqa: F403 - every hook that is not written below
from tinyzero_sdk import Score, TaskInfo, hookimpl


@hookimpl
def info():
    return TaskInfo("countdown with a broken reward")  # of one part


@hookimpl
def extract_answer(completion):
    found = re.findall(r"<answer>\s?(.*?)\s?</answer>", completion, re.DOTALL)
    return found[-1] if found else None


@hookimpl
def score(answer, ground_truth):
    value = float(REWARD(f"<answer>{answer}</answer>", ground_truth))
    return Score(value, correct=value == 1.0, reason="ok" if value == 1.0 else "wrong")


REWARD = rewards.reasoning_gym()[1]["countdown"]
