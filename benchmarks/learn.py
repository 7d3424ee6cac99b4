"""What `make train` achieves: the built-in tiny model learns countdown on the CPU, for several seeds.

    python benchmarks/learn.py [--seeds 0,1,2] [--output DIR]

Held-out accuracy on 1,024 puzzles, sampled at temperature 1, before and after. Targets, for every seed, on 2 cores:
20 points higher within 8 minutes, a first line of output within 5 s, the evaluation before training done within 45 s.
"""

import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from benchmarks.commands import Finished
from benchmarks.common import print_machine, print_table
from benchmarks.training import TASK, metrics_of, plot_curves, train, with_error
from tinyzero_trainer.monitoring.metrics_log import held_out_key, size_key

TARGETS = {"least gain": "20 points", "longest run": "480 s", "evaluated after": "45 s", "first line after": "5 s"}


@dataclass(frozen=True, slots=True)
class Learning:
    """What one run achieved; times are seconds after the start of the command."""

    problems: int
    before: float
    """Held-out accuracy before training, 0 to 1."""

    after: float
    gain: float
    """In points."""

    evaluation: float
    """Seconds of the evaluation before training, sampled and greedy, without loading and drawing problems."""

    evaluated: float
    """When the accuracy before training was printed."""

    first_line: float
    whole: float


def learning(metrics: list[dict[str, Any]], command: Finished) -> Learning:
    """What a run achieved, from its metrics and what its command printed."""
    first, last = metrics[0], metrics[-1]
    assert first["step"] == 0
    assert first[size_key(TASK)] == last[size_key(TASK)]
    before, after = first[held_out_key(TASK)], last[held_out_key(TASK)]
    evaluated = next(at for at, line in command.lines if line.startswith("held-out accuracy before training"))
    times = (first["timing_s/testing"], evaluated, command.lines[0][0], command.seconds)
    return Learning(int(first[size_key(TASK)]), before, after, 100 * (after - before), *times)


def print_results(runs: dict[int, Learning]) -> None:
    """A row for each seed, and the worst of each result."""
    rows = {
        str(seed): {
            "accuracy before": with_error(run.before, run.problems),
            "after": with_error(run.after, run.problems),
            "gain": f"{run.gain:+.1f} points",
            "whole run": f"{run.whole:.0f} s",
            "evaluation before training": f"{run.evaluation:.1f} s",
            "done after": f"{run.evaluated:.1f} s",
            "first line after": f"{run.first_line:.1f} s",
        }
        for seed, run in runs.items()
    }
    problems = next(iter(runs.values())).problems
    print_table(f"seed ({problems:,} held-out puzzles, T = 1)", rows)
    worst = {
        "least gain": f"{min(run.gain for run in runs.values()):.1f} points",
        "longest run": f"{max(run.whole for run in runs.values()):.0f} s",
        "evaluated after": f"{max(run.evaluated for run in runs.values()):.1f} s",
        "first line after": f"{max(run.first_line for run in runs.values()):.1f} s",
    }
    print("; ".join(f"{what} {value} (target {TARGETS[what]})" for what, value in worst.items()))


def main(
    seeds: Annotated[str, typer.Option(help="seeds of the runs, separated by commas")] = "0,1,2",
    output: Annotated[Path | None, typer.Option(help="directory that keeps the runs and a plot of them")] = None,
) -> None:
    """Train the built-in model for several seeds, and measure what it learns and how long it takes."""
    print_machine("tinyzero-trainer", "tinyzero-countdown", "torch", "transformers")
    runs, metrics = {}, {}
    with TemporaryDirectory() as folder:
        for seed in map(int, seeds.split(",")):
            directory = (output or Path(folder)) / f"seed_{seed}"
            arguments = ["--task", TASK, "--model", "tiny", f"run.seed={seed}", "--output", str(directory)]
            command = train(arguments, f"seed {seed}")
            if command.code:
                sys.exit(f"training with seed {seed} failed (see above)")
            metrics[seed] = metrics_of(directory)
            runs[seed] = learning(metrics[seed], command)
    print_results(runs)
    if output is not None:
        plot_curves(metrics, output / "curves.png")


if __name__ == "__main__":
    typer.run(main)
