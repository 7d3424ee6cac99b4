"""How fast answers are scored, how many verdicts are wrong, and what exploits are paid, beside three others.

    python benchmarks/score.py [--task countdown …] [--completions 2000] [--runs 5] [--json]

Contestants: `Task.score_completion` of this project; the methods of TinyZero's rewards; reasoning-gym's nearest
scorers; math-verify. The last two are the published packages, where they are installed (`benchmarks/scoring/` says
how each is called). Rates: one process, 1.3 kB completions, medians of interleaved runs. Verdicts: on the labelled
cases that our tasks ship, in a process of its own for each contestant, with a time limit for each answer.
"""

import json
import statistics
import time
from collections.abc import Callable
from typing import Annotated, Any

import typer

from benchmarks.common import machine, print_machine, print_table
from benchmarks.scoring import math_verify, reasoning_gym, tinyzero
from benchmarks.scoring.tinyzero import countdown as tinyzero_method
from benchmarks.scoring.verdicts import LIMIT, Verdicts, judge_cases, payments
from benchmarks.scoring.workloads import LENGTH, OPTIONS, SHARES, Workload, make_workloads
from tinyzero_sdk import load_task
from tinyzero_sdk.testing.cases import cases_path, read_cases

__all__ = ["EXPLOITS", "HONEST", "LENGTH", "SHARES", "make_workloads", "tinyzero_method"]

Reward = Callable[[str, Any], float]

VERSIONS = ("tinyzero-countdown", "tinyzero-multiply", "tinyzero-gsm8k", "sympy")

OURS = "this project"
ABSENT = "not installed"

PATIENCE = 1.0
"""Seconds in which a contestant goes through a workload, or as far as it comes."""

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
"""Answers to countdown that deserve nothing: (answer, numbers, target)."""

HONEST = [
    ("<answer>17 - 5 + 3</answer>", "plain"),
    ("<answer>17 - 5 + 3</answer>\n", "a line break after it"),
    ("<answer>\n17 - 5 + 3\n</answer>", "on a line of its own"),
    ("<answer>17 − 5 + 3</answer>", "a true minus sign"),
    ("<answer>17 - 5 + 3 = 15</answer>", "the target at the end"),
]
"""Completions that deserve full marks, for 17, 5, 3 and the target 15."""


def find_contestants(name: str) -> dict[str, Reward | None]:
    """The rewards for one of our tasks by contestant; None where a package is not installed."""
    task = load_task(name, options=OPTIONS[name])
    others = (("TinyZero's method", tinyzero.REWARDS), reasoning_gym.rewards(), math_verify.rewards())
    ours: Reward = lambda completion, ground_truth: task.score_completion(completion, ground_truth).value  # noqa: E731
    return {OURS: ours, **{who: rewards.get(name) for who, rewards in others}}


def measure(
    contestants: dict[str, Reward | None], workloads: dict[str, Workload], runs: int
) -> dict[str, dict[str, float | None]]:
    """Scores per second by workload and contestant: medians of interleaved runs."""
    rates: dict[str, dict[str, list[float]]] = {name: {who: [] for who in contestants} for name in workloads}
    for _ in range(runs):
        for name, workload in workloads.items():
            for who, reward in contestants.items():
                if reward is not None:
                    rates[name][who].append(_rate(reward, workload))
    return {
        name: {who: statistics.median(values) if values else None for who, values in row.items()}
        for name, row in rates.items()
    }


def _rate(reward: Reward, workload: Workload) -> float:
    start, done = time.perf_counter(), 0
    for begin in range(0, len(workload), 100):
        for completion, ground_truth in workload[begin : begin + 100]:
            reward(completion, ground_truth)
            done += 1
        if time.perf_counter() - start > PATIENCE:
            break
    return done / (time.perf_counter() - start)


def judge(contestants: dict[str, Reward | None], name: str) -> dict[str, Verdicts | None]:
    """How often each contestant is wrong about the cases that the task ships."""
    cases = read_cases(cases_path(load_task(name)))
    return {who: reward and judge_cases(reward, cases) for who, reward in contestants.items()}


def pays(reward: Reward, completion: str, ground_truth: Any) -> str:
    """What a reward pays for one completion."""
    (paid,) = payments(reward, [(completion, ground_truth)])
    return f"no score in {LIMIT:g} s" if paid is None else f"{paid:g}"


def what_is_paid(contestants: dict[str, Reward | None]) -> tuple[dict[str, dict[str, str]], dict[str, dict[str, str]]]:
    """What each contestant pays in countdown for exploits, and for right answers."""
    exploits = {
        f"`{answer}`" if answer else "nothing between the tags": (
            f"<answer>{answer}</answer>",
            _truth(numbers, target),
        )
        for answer, numbers, target in EXPLOITS
    }
    honest = {what: (completion, _truth([17, 5, 3], 15)) for completion, what in HONEST}
    exploits_paid, honest_paid = (
        {
            name: {who: pays(reward, *asked) if reward else ABSENT for who, reward in contestants.items()}
            for name, asked in table.items()
        }
        for table in (exploits, honest)
    )
    return exploits_paid, honest_paid


def main(
    task: Annotated[list[str] | None, typer.Option(help="which tasks; may be repeated", show_default="all")] = None,
    completions: Annotated[int, typer.Option(help="completions in each workload")] = 2000,
    runs: Annotated[int, typer.Option(help="interleaved runs; the median counts")] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON instead of tables")] = False,
) -> None:
    """Measure how fast answers are scored, how many verdicts are wrong, and what exploits are paid."""
    tasks = task or [*OPTIONS]
    if unknown := set(tasks) - set(OPTIONS):
        raise typer.BadParameter(f"got --task {' '.join(sorted(unknown))}, expected some of {', '.join(OPTIONS)}")
    about = machine(*VERSIONS)
    if not as_json:
        print_machine(*VERSIONS)
    contestants = {name: find_contestants(name) for name in tasks}
    rates = {name: measure(contestants[name], make_workloads(completions, name), runs) for name in tasks}
    verdicts = {name: judge(contestants[name], name) for name in tasks}
    exploits, honest = what_is_paid(contestants["countdown"]) if "countdown" in tasks else ({}, {})
    if as_json:
        counts = {name: {who: found and vars(found) for who, found in row.items()} for name, row in verdicts.items()}
        print(json.dumps({**about, "rates": rates, "verdicts": counts, "exploits": exploits, "honest": honest}))
        return
    title = f"scores of {LENGTH / 1000:g} kB completions (ours is … times as fast)"
    print_table(title, {f"{name}, {kind}": _compare(row) for name in tasks for kind, row in rates[name].items()})
    print_table("scores of labelled cases", {key: row for name in tasks for key, row in _count(name, verdicts[name])})
    if exploits:
        print_table("score of an answer that deserves 0", exploits)
        print_table("score of a right answer", honest)


def _compare(rates: dict[str, float | None]) -> dict[str, str]:
    ours = rates[OURS]
    assert ours is not None
    cells = {who: f"{rate:,.0f} /s ({ours / rate:.2f}×)" if rate else ABSENT for who, rate in rates.items()}
    return {**cells, OURS: f"{ours:,.0f} /s"}


def _count(name: str, verdicts: dict[str, Verdicts | None]) -> list[tuple[str, dict[str, str]]]:
    """The rows of a task."""
    found = verdicts[OURS]
    assert found is not None
    labels = {
        f"{name}: wrong of {found.cases}": "wrong",
        f"{name}: wrong answers accepted": "false_accepts",
        f"{name}: right answers rejected": "false_rejects",
        f"{name}: no score (hangs, raises)": "failures",
    }
    return [
        (label, {who: str(getattr(row, field)) if row else ABSENT for who, row in verdicts.items()})
        for label, field in labels.items()
    ]


def _truth(numbers: list[int], target: int) -> dict[str, Any]:
    return {"target": target, "numbers": numbers}


if __name__ == "__main__":
    typer.run(main)
