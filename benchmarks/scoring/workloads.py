"""Completions to measure rates on: as long as a small model's, on distinct problems, all right or mixed."""

import random
from decimal import Decimal
from typing import Any

from tinyzero_countdown.second_opinion import is_right
from tinyzero_sdk import Item, load_task
from tinyzero_sdk.text import last_tagged

Workload = list[tuple[str, Any]]  # completions with their ground truths
OPTIONS: dict[str, dict[str, Any]] = {"countdown": {}, "multiply": {}, "gsm8k": {"source": "synthetic"}}
"""The tasks, with the options with which they generate problems."""

LENGTH = 1300  # characters of a completion
MIX = {"right": 0.5, "wrong": 0.3, "malformed": 0.1, "no tag": 0.1}  # fractions of the workload `mix`


def make_workloads(count: int, name: str = "countdown") -> dict[str, Workload]:
    """Completions of `LENGTH` characters on distinct problems of a task: all right, and the mix."""
    task, rng = load_task(name, options=OPTIONS[name]), random.Random(0)
    kinds = [kind for kind, fraction in MIX.items() for _ in range(round(fraction * count))]
    rng.shuffle(kinds)
    right, mix = [], []
    for item, kind in zip(task.dataset("train"), kinds, strict=False):
        gold = last_tagged(task.solve(item) or "") or ""
        answers = {
            "right": gold,
            "wrong": _wrong_answer(name, item, rng),
            "malformed": rng.choice(_malformed_answers(name, gold)),
            "no tag": None,
        }
        right.append((_completion(name, gold, rng), item.ground_truth))
        mix.append((_completion(name, answers[kind], rng), item.ground_truth))
    return {"right answers": right, "mix": mix}


def _wrong_answer(name: str, item: Item, rng: random.Random) -> str:
    if name == "countdown":
        return _wrong_expression(item.ground_truth, rng)
    number = item.ground_truth["product"] if name == "multiply" else Decimal(item.ground_truth)
    return str(number + rng.choice([1, 10, 100]))


def _wrong_expression(ground_truth: dict[str, Any], rng: random.Random) -> str:
    """The given numbers in the wrong way, or other numbers."""
    while True:
        numbers = [number + rng.choice([0, 0, 0, 1]) for number in ground_truth["numbers"]]
        answer = "".join(f" {rng.choice('+-*')} {number}" for number in numbers)[3:]
        if not is_right(answer, ground_truth):
            return answer


def _malformed_answers(name: str, gold: str) -> list[str]:
    if name == "countdown":
        return [f"{gold} +", f"({gold}", f"the answer is {gold}", f"{gold}, {gold}"]
    return [f"{gold} or {gold}1", f"{gold}_000_0", "I do not know", f"{gold}{gold} / {gold}x"]


def _completion(name: str, answer: str | None, rng: random.Random) -> str:
    end = "</think>\nI could not find it." if answer is None else f"</think>\n<answer>{answer}</answer>"
    if name == "gsm8k" and answer is not None:  # in both notations, for all scorers
        end = f"</think>\n#### {answer}\n<answer>{answer}</answer>"
    text = "<think>"
    while len(text) < LENGTH:
        a, b = rng.randint(1, 99), rng.randint(1, 99)
        text += f"{a} + {b} = {a + b}, which is not what we need, so let me try another way.\n"
    return text[: LENGTH - len(end)] + end
