"""A broken reward: reasoning-gym's scorer of countdown, the published package's where it is installed, else a stand-in.

It parses answers with sympy, whose parser is eval, and looks for the numbers by a pattern of its own.
It evaluates model text on purpose: it is only ever given texts that tests make, in child processes.
"""

import math
import re
from functools import cache

from tinyzero_countdown import *  # noqa: F403 - every hook that is not written below
from tinyzero_sdk import Score, TaskInfo, hookimpl


@hookimpl
def info():
    return TaskInfo(description="countdown with a hole: reasoning-gym's scorer")


@hookimpl
def extract_answer(completion):
    found = re.findall(r"<answer>\s?(.*?)\s?</answer>", completion, re.DOTALL)
    return found[-1] if found else None


@hookimpl
def score(answer, ground_truth):
    value = float(scorer()(answer, ground_truth))
    return Score(value, correct=value == 1.0, reason="ok" if value == 1.0 else "wrong")


@cache
def scorer():
    """The published scorer, or the stand-in."""
    try:
        import reasoning_gym
    except ImportError:
        return stand_in
    dataset = reasoning_gym.create_dataset("countdown", size=1, seed=0)
    return lambda answer, truth: dataset.score_answer(answer, {"metadata": truth})


def stand_in(answer, truth):
    """The method of the published scorer, written anew."""
    from sympy.parsing.sympy_parser import parse_expr

    if not answer.strip():
        return 0.01
    try:
        value = float(parse_expr(answer))
        if sorted(map(int, re.findall(r"\b\d+\b", answer))) != sorted(truth["numbers"]):
            return 0.05
        return 1.0 if math.isclose(value, truth["target"], rel_tol=1e-5, abs_tol=1e-6) else 0.05
    except Exception:
        return 0.01
