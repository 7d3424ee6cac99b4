"""A broken reward: the method of the reward that TinyZero trains with.

It evaluates model text on purpose: it is only ever given texts that tests make, in child processes.
"""

import re

from benchmarks.scoring.rewards import tinyzero_countdown
from tinyzero_countdown import *  # noqa: F403 - every hook that is not written below
from tinyzero_sdk import Score, TaskInfo, hookimpl


@hookimpl
def info():
    return TaskInfo("countdown with a broken reward")  # of one part


@hookimpl
def extract_answer(completion):
    found = re.findall(r"<answer>(.*?)</answer>", completion.split("\n")[-1])
    return found[-1].strip() if found else None


@hookimpl
def score(answer, ground_truth):
    value = tinyzero_countdown(f"<answer>{answer}</answer>", ground_truth)
    return Score(value, correct=value == 1.0, reason="ok" if value == 1.0 else "wrong")
