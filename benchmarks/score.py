"""How fast countdown answers are scored, and what exploits are paid, beside two rewards in common use.

    python benchmarks/score.py [--completions 2000] [--runs 5] [--json]

Contestants: `Task.score_completion` of this project; the method of TinyZero's reward (eval of the filtered answer);
reasoning-gym's scorer (sympy's parser, which is eval too), its published package where installed, else a stand-in.
One process, 1.3 kB completions, medians of interleaved runs.
"""

import importlib.metadata
import json
import math
import multiprocessing
import random
import re
import statistics
import time
from collections.abc import Callable
from typing import Annotated, Any

import typer

from benchmarks.common import machine, print_machine, print_table
from tinyzero_countdown.second_opinion import is_right
from tinyzero_sdk import load_task
from tinyzero_sdk.text import last_tagged

Reward = Callable[[str, dict[str, Any]], float]
Workload = list[tuple[str, dict[str, Any]]]

VERSIONS = ("tinyzero-countdown", "sympy")

LENGTH = 1300
"""Characters of a completion."""

SHARES = {"right": 0.5, "wrong": 0.3, "malformed": 0.1, "no tag": 0.1}
"""The mix."""

EXPLOITS: list[tuple[str, list[int], int]] = [
    ("2**3-4", [2, 3, 4], 4),
    ("7//2+1", [7, 2, 1], 4),
    ("1//1", [1, 1], 1),
    ("4.5*2", [4, 5, 2], 9),
    ("4/.5", [4, 5], 8),
    ("24.00", [24, 0], 24),
    ("5+1/(100*99*98)", [5, 1, 100, 99, 98], 5),
    ("0x3e7#3 5 7", [3, 5, 7], 999),
    ("1e3+(True-True)*(3+5+7)", [3, 5, 7], 1000),
    ("98**97**96", [98, 97, 96], 1),
    ("9**9**9", [9, 9, 9], 1),
    ("", [17, 5, 3], 15),
    ("I give up", [17, 5, 3], 15),
]
"""Answers that deserve nothing: (answer, numbers, target)."""

HONEST = [
    ("<answer>17 - 5 + 3</answer>", "plain"),
    ("<answer>17 - 5 + 3</answer>\n", "a line break after it"),
    ("<answer>\n17 - 5 + 3\n</answer>", "on a line of its own"),
    ("<answer>17 − 5 + 3</answer>", "a true minus sign"),
    ("<answer>17 - 5 + 3 = 15</answer>", "the target at the end"),
]
"""Completions that deserve full marks, for 17, 5, 3 and the target 15."""


def tinyzero_method(completion: str, ground_truth: dict[str, Any]) -> float:
    """Last line, last tag, digits compared, characters filtered, eval.

    Our own code; it leaves out the original's random printing and its search for the assistant's turn, so it is
    a little faster. It evaluates only texts that this script made.
    """
    found = list(re.finditer(r"<answer>(.*?)</answer>", completion.split("\n")[-1]))
    if not found:
        return 0.0
    equation = found[-1].group(1).strip()
    if sorted(int(digits) for digits in re.findall(r"\d+", equation)) != sorted(ground_truth["numbers"]):
        return 0.1
    if not re.match(r"^[\d+\-*/().\s]+$", equation):
        return 0.1
    try:
        value = eval(equation, {"__builtins__": None}, {})
        return 1.0 if abs(value - ground_truth["target"]) < 1e-5 else 0.1
    except Exception:
        return 0.1


def reasoning_gym_method() -> tuple[str, Reward]:
    """The published scorer, or a stand-in; it too evaluates only texts that this script made."""
    try:
        import reasoning_gym
        from reasoning_gym.utils import extract_answer
    except ImportError:
        return "stand-in for reasoning-gym", _reasoning_gym_stand_in
    dataset = reasoning_gym.create_dataset("countdown", size=1, seed=0)

    def reward(completion: str, ground_truth: dict[str, Any]) -> float:
        return dataset.score_answer(extract_answer(completion), {"metadata": ground_truth})

    return f"reasoning-gym {importlib.metadata.version('reasoning-gym')}", reward


def _reasoning_gym_stand_in(completion: str, ground_truth: dict[str, Any]) -> float:
    from sympy.parsing.sympy_parser import parse_expr

    found = re.findall(r"<answer>\s?(.*?)\s?</answer>", completion, re.DOTALL)
    if not found or not found[-1].strip():
        return 0.01
    try:
        value = float(parse_expr(found[-1]))
        if sorted(map(int, re.findall(r"\b\d+\b", found[-1]))) != sorted(ground_truth["numbers"]):
            return 0.05
        return 1.0 if math.isclose(value, ground_truth["target"], rel_tol=1e-5, abs_tol=1e-6) else 0.05
    except Exception:
        return 0.01


def make_workloads(count: int) -> dict[str, Workload]:
    """Completions of `LENGTH` characters on distinct puzzles: all right, and the mix."""
    task, rng = load_task("countdown"), random.Random(0)
    kinds = [kind for kind, share in SHARES.items() for _ in range(round(share * count))]
    rng.shuffle(kinds)
    right, mix = [], []
    for item, kind in zip(task.dataset("train"), kinds, strict=False):
        gold = last_tagged(task.solve(item) or "") or ""
        answers = {
            "right": gold,
            "wrong": _wrong_answer(item.ground_truth, rng),
            "malformed": rng.choice([f"{gold} +", f"({gold}", f"the answer is {gold}", f"{gold}, {gold}"]),
            "no tag": None,
        }
        right.append((_completion(gold, rng), item.ground_truth))
        mix.append((_completion(answers[kind], rng), item.ground_truth))
    return {"right answers": right, "mix": mix}


def _wrong_answer(ground_truth: dict[str, Any], rng: random.Random) -> str:
    """The given numbers in the wrong way, or other numbers."""
    while True:
        numbers = [number + rng.choice([0, 0, 0, 1]) for number in ground_truth["numbers"]]
        answer = "".join(f" {rng.choice('+-*')} {number}" for number in numbers)[3:]
        if not is_right(answer, ground_truth):
            return answer


def _completion(answer: str | None, rng: random.Random) -> str:
    end = "</think>\nI could not find it." if answer is None else f"</think>\n<answer>{answer}</answer>"
    text = "<think>"
    while len(text) < LENGTH:
        a, b = rng.randint(1, 99), rng.randint(1, 99)
        text += f"{a} + {b} = {a + b}, which is not what we need, so let me try another way.\n"
    return text[: LENGTH - len(end)] + end


def measure(contestants: dict[str, Callable], workloads: dict[str, Workload], runs: int) -> dict[str, dict[str, float]]:
    """Scores per second by workload and contestant: medians of interleaved runs."""
    rates: dict[str, dict[str, list[float]]] = {name: {who: [] for who in contestants} for name in workloads}
    for _ in range(runs):
        for name, workload in workloads.items():
            for who, reward in contestants.items():
                start = time.perf_counter()
                for completion, ground_truth in workload:
                    reward(completion, ground_truth)
                rates[name][who].append(len(workload) / (time.perf_counter() - start))
    return {name: {who: statistics.median(values) for who, values in row.items()} for name, row in rates.items()}


def pays(reward: Reward, completion: str, ground_truth: dict[str, Any], limit: float = 2.0) -> str:
    """What a reward pays, asked in a process of its own, since some answers make some rewards hang."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=lambda: sender.send(reward(completion, ground_truth)))
    process.start()
    try:
        return f"{receiver.recv():g}" if receiver.poll(limit) else f"hangs (> {limit:g} s)"
    finally:
        process.kill()
        process.join()


def what_is_paid(contestants: dict[str, Reward]) -> tuple[dict[str, dict[str, str]], dict[str, dict[str, str]]]:
    """What each contestant pays for exploits, and for right answers."""
    exploits = {
        f"`{answer}`": (f"<answer>{answer}</answer>", _truth(numbers, target)) for answer, numbers, target in EXPLOITS
    }
    honest = {what: (completion, _truth([17, 5, 3], 15)) for completion, what in HONEST}
    exploits_paid, honest_paid = (
        {name: {who: pays(reward, *asked) for who, reward in contestants.items()} for name, asked in table.items()}
        for table in (exploits, honest)
    )
    return exploits_paid, honest_paid


def main(
    completions: Annotated[int, typer.Option(help="completions in each workload")] = 2000,
    runs: Annotated[int, typer.Option(help="interleaved runs; the median counts")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON instead of tables")] = False,
) -> None:
    """Measure how fast answers are scored, and what exploits are paid."""
    about = machine(*VERSIONS)
    if not as_json:
        print_machine(*VERSIONS)
    task, (other, other_reward) = load_task("countdown"), reasoning_gym_method()
    others = {"TinyZero's method": tinyzero_method, other: other_reward}
    rates = measure({"this project": task.score_completion, **others}, make_workloads(completions), runs)
    exploits, honest = what_is_paid({"this project": lambda *asked: task.score_completion(*asked).value, **others})
    if as_json:
        print(json.dumps({**about, "rates": rates, "exploits": exploits, "honest": honest}, ensure_ascii=False))
        return
    print_table("scores of 1.3 kB completions (ours is … times as fast)", {n: _compare(r) for n, r in rates.items()})
    print_table("an answer that deserves 0 is paid", exploits)
    print_table("a right answer is paid", honest)


def _compare(rates: dict[str, float]) -> dict[str, str]:
    ours = rates["this project"]
    return {who: f"{rate:,.0f} /s" + (f" ({ours / rate:.2f}×)" if rate != ours else "") for who, rate in rates.items()}


def _truth(numbers: list[int], target: int) -> dict[str, Any]:
    return {"target": target, "numbers": numbers}


if __name__ == "__main__":
    typer.run(main)
