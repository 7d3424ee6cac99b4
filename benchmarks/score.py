"""How fast answers are scored, how many scores are wrong, and what exploits score: our tasks and three other scorers.

    python benchmarks/score.py [--task countdown …] [--completions 2000] [--runs 5]

Scorers: this project's; the methods of TinyZero's rewards; reasoning-gym's closest scorers; math-verify. The last two
are the published packages, if installed (`benchmarks/scoring/` shows how each is called). Rates: one process, CPU time,
1.3 kB completions on distinct problems in batches of 100, medians of interleaved runs; ours by
`Task.score_completions` and, in a column of its own, one by one by `Task.score_completion`. Wrong scores: on the
labelled cases that our tasks ship, in a separate process for each scorer, with a timeout for each answer.
"""

import statistics
import time
from collections.abc import Callable
from typing import Annotated, Any

import typer

from benchmarks.common import print_machine, print_table
from benchmarks.scoring.outcomes import TIMEOUT, judge_cases, rewards_of
from benchmarks.scoring.rewards import TINYZERO, Reward, math_verify, reasoning_gym
from benchmarks.scoring.workloads import LENGTH, OPTIONS, Workload, make_workloads
from tinyzero_sdk import load_task
from tinyzero_sdk.testing.cases import cases_path, read_cases

OURS, ONE_BY_ONE = "this project", "this project, one by one"
ABSENT = "not installed"

RUN_SECONDS = 1.0  # a scorer goes through a workload for at most this long
BATCH = 100
BatchReward = Callable[[list[str], list[Any]], object]
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
"""Answers to countdown that deserve 0: (answer, numbers, target)."""

HONEST = [
    ("<answer>17 - 5 + 3</answer>", "plain"),
    ("<answer>17 - 5 + 3</answer>\n", "a line break after it"),
    ("<answer>\n17 - 5 + 3\n</answer>", "on a line of its own"),
    ("<answer>17 − 5 + 3</answer>", "a true minus sign"),
    ("<answer>17 - 5 + 3 = 15</answer>", "the target at the end"),
]
"""Completions that deserve 1, for the numbers 17, 5, 3 and the target 15."""


def find_scorers(name: str) -> dict[str, Reward | None]:
    """The scorers of one of our tasks; None if a package is not installed."""
    task = load_task(name, options=OPTIONS[name])
    others = (("TinyZero's method", TINYZERO), reasoning_gym(), math_verify())
    ours: Reward = lambda completion, ground_truth: task.score_completion(completion, ground_truth).value  # noqa: E731
    return {OURS: ours, **{scorer: rewards.get(name) for scorer, rewards in others}}


def find_batch_scorers(name: str) -> dict[str, BatchReward | None]:
    """The same scorers for many completions; others than ours score one after the other."""
    one_by_one = {ONE_BY_ONE: load_task(name, options=OPTIONS[name]).score_completion, **find_scorers(name)}
    batched = {scorer: reward and _for_each(reward) for scorer, reward in one_by_one.items()}
    return {**batched, OURS: load_task(name, options=OPTIONS[name]).score_completions}


def _for_each(reward: Callable[[str, Any], object]) -> BatchReward:
    return lambda completions, ground_truths: list(map(reward, completions, ground_truths))


def measure(
    scorers: dict[str, BatchReward | None], workloads: dict[str, Workload], runs: int
) -> dict[str, dict[str, float | None]]:
    """Scores per second of CPU time by workload and scorer: medians of interleaved runs."""
    rates: dict[str, dict[str, list[float]]] = {name: {scorer: [] for scorer in scorers} for name in workloads}
    for _ in range(runs):
        for name, workload in workloads.items():
            for scorer, reward in scorers.items():
                if reward is not None:
                    rates[name][scorer].append(_rate(reward, workload))
    return {
        name: {scorer: statistics.median(values) if values else None for scorer, values in row.items()}
        for name, row in rates.items()
    }


def _rate(reward: BatchReward, workload: Workload) -> float:
    batches = [workload[begin : begin + BATCH] for begin in range(0, len(workload), BATCH)]
    columns = [([text for text, _ in batch], [truth for _, truth in batch]) for batch in batches]
    start, done = time.process_time(), 0
    for completions, ground_truths in columns:
        reward(completions, ground_truths)
        done += len(completions)
        if time.process_time() - start > RUN_SECONDS:
            break
    return done / (time.process_time() - start)


def scores_of(scorers: dict[str, Reward | None], completion: str, numbers: list[int], target: int) -> dict[str, str]:
    """What each scorer gives for a completion in countdown."""
    asked, cells = [(completion, {"target": target, "numbers": numbers})], {}
    for scorer, reward in scorers.items():
        value = rewards_of(reward, asked)[0] if reward else None
        cells[scorer] = f"{value:g}" if value is not None else f"no score in {TIMEOUT:g} s" if reward else ABSENT
    return cells


def main(
    task: Annotated[list[str] | None, typer.Option(help="which tasks; may be repeated", show_default="all")] = None,
    completions: Annotated[int, typer.Option(help="completions in each workload")] = 2000,
    runs: Annotated[int, typer.Option(help="interleaved runs; the median counts")] = 5,
) -> None:
    """Measure how fast answers are scored, how many scores are wrong, and what exploits score."""
    tasks = task or [*OPTIONS]
    if unknown := set(tasks) - set(OPTIONS):
        raise typer.BadParameter(f"got --task {' '.join(sorted(unknown))}, expected some of {', '.join(OPTIONS)}")
    print_machine("tinyzero-countdown", "tinyzero-multiply", "tinyzero-gsm8k", "sympy")
    scorers = {name: find_scorers(name) for name in tasks}
    rates = {name: measure(find_batch_scorers(name), make_workloads(completions, name), runs) for name in tasks}
    wrong: dict[str, dict[str, str]] = {}
    for name in tasks:
        cases = read_cases(cases_path(load_task(name)))
        counts = {scorer: judge_cases(reward, cases) if reward else {} for scorer, reward in scorers[name].items()}
        for what in counts[OURS]:
            wrong[f"{name}: {what}"] = {scorer: str(found.get(what, ABSENT)) for scorer, found in counts.items()}
    title = f"scores of {LENGTH / 1000:g} kB completions (ours is … times as fast)"
    print_table(title, {f"{name}, {kind}": _compare(row) for name in tasks for kind, row in rates[name].items()})
    print_table("scores of labelled cases", wrong)
    if "countdown" in tasks:
        exploits = {
            f"`{answer}`" if answer else "nothing between the tags": (f"<answer>{answer}</answer>", numbers, target)
            for answer, numbers, target in EXPLOITS
        }
        honest = {label: (completion, [17, 5, 3], 15) for completion, label in HONEST}
        for title, asked in (("an answer that deserves 0", exploits), ("a right answer", honest)):
            print_table(f"score of {title}", {name: scores_of(scorers["countdown"], *of) for name, of in asked.items()})


def _compare(rates: dict[str, float | None]) -> dict[str, str]:
    ours = rates[OURS]
    assert ours is not None
    cells = {scorer: f"{rate:,.0f} /s ({ours / rate:.2f}×)" if rate else ABSENT for scorer, rate in rates.items()}
    return {**cells, OURS: f"{ours:,.0f} /s"}


if __name__ == "__main__":
    typer.run(main)
