"""Experiments that users of TinyZero reported at 3B, repeated with the built-in tiny model.

    python benchmarks/ablations.py [--seeds 0] [--steps 60] [--device cpu] [--jobs 1] [--output DIR]

The reports: GRPO beats PPO and is faster; 8 samples per prompt beat 5 and 3; temperature 1.0 beats 0.6, and 1.2
collapses late; a KL coefficient of 0.001 beats 0.01 and none; an adaptive length limit reaches the same accuracy with
fewer tokens. One setting at a time differs from the recipe tinyzero-grpo (KL 0.001, temperature 1) with 8 samples. Runs
are compared seed by seed; a difference counts if its 95 % interval, by Student's t, excludes zero, so several seeds are
needed. One of eight comparisons may do so by chance.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Annotated

import typer

from benchmarks.common import print_machine, print_table
from benchmarks.training import TASK, Run, mean_and_error, run_all, summary

BASE = "base"
COMMON = (
    *("--task", TASK, "--model", "tiny", "--recipe", "tinyzero-grpo"),
    *("eval.num_problems=512", "eval.every=0", "eval.greedy=false", "checkpoint.every=0"),
)
EIGHT = ("rollout.group_size=8",)
SETTINGS: Mapping[str, Sequence[str]] = {
    BASE: EIGHT,
    "3 samples": ("rollout.group_size=3",),
    "5 samples": ("rollout.group_size=5",),
    "temperature 0.6": (*EIGHT, "rollout.temperature=0.6"),
    "temperature 1.2": (*EIGHT, "rollout.temperature=1.2"),
    "no KL": (*EIGHT, "algorithm.kl_coefficient=0"),
    "KL 0.01": (*EIGHT, "algorithm.kl_coefficient=0.01"),
    "PPO": (*EIGHT, "algorithm.advantage_estimator=gae"),
    "adaptive length": (*EIGHT, "length_control.mode=adaptive"),
}
CLAIMS = {
    "8 samples beat 5": (BASE, "5 samples"),
    "5 samples beat 3": ("5 samples", "3 samples"),
    "temperature 1.0 beats 0.6": (BASE, "temperature 0.6"),
    "temperature 1.0 beats 1.2": (BASE, "temperature 1.2"),
    "KL 0.001 beats 0.01": (BASE, "KL 0.01"),
    "KL 0.001 beats none": (BASE, "no KL"),
    "GRPO beats PPO": (BASE, "PPO"),
    "adaptive length does no worse than full length": ("adaptive length", BASE),
}
"""Each report, with the setting that reached a higher accuracy, and the other."""
T_95 = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36, 9: 2.31, 10: 2.26}
"""Student's t at 97.5 %, by the number of seeds."""


def verdict(better: Sequence[Run], worse: Sequence[Run]) -> dict[str, str]:
    """The difference in final accuracy, seed by seed, and whether it agrees with the report."""
    gaps = [run.held_out()[1] - other.held_out()[1] for run, other in zip(better, worse, strict=True)]
    cells = {
        "tokens": f"{fmean(run.tokens for run in better) / fmean(run.tokens for run in worse):.2f}×",
        "time": f"{fmean(run.seconds for run in better) / fmean(run.seconds for run in worse):.2f}×",
    }
    if len(gaps) == 1:
        return {"difference": f"{gaps[0]:+.1f} points", **cells, "result": "none: one seed"}
    gap, error = mean_and_error(gaps)
    half = T_95[min(len(gaps), max(T_95))] * error
    result = "agrees" if gap > half else "contradicts" if gap < -half else "no difference seen"
    return {"difference": f"{gap:+.1f} points, 95 % interval ± {half:.1f}", **cells, "result": result}


def main(
    seeds: Annotated[str, typer.Option(help="seeds of the runs, separated by commas")] = "0",
    steps: Annotated[int, typer.Option(help="training steps of each run")] = 60,
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    jobs: Annotated[int, typer.Option(help="concurrent runs")] = 1,
    output: Annotated[Path | None, typer.Option(help="directory of the runs, which keeps finished ones")] = None,
) -> None:
    """Train the built-in model with each setting, and compare."""
    print_machine("tinyzero-trainer", "tinyzero-countdown", "torch", "transformers")
    last = (f"run.steps={steps}", f"run.device={device}")
    arguments = {name: [*COMMON, *settings, *last] for name, settings in SETTINGS.items()}
    found = run_all(arguments, seeds, output, jobs=jobs)
    base = found[BASE]
    title = f"{steps} steps, {len(base)} seeds, {base[0].problems()} puzzles at T = 1"
    print_table(title, {name: summary(runs) for name, runs in found.items()})
    print()
    print_table("reported at 3B", {claim: verdict(found[a], found[b]) for claim, (a, b) in CLAIMS.items()})


if __name__ == "__main__":
    typer.run(main)
