"""What `make train` achieves: the built-in tiny model learns countdown on the CPU, for several seeds.

    python benchmarks/learn.py [--seeds 0,1,2] [--output DIR]

Held-out accuracy on 1,024 puzzles, sampled at temperature 1, before and after. Targets, for every seed, on 2 cores:
20 points higher within 8 minutes, a first line of output within 5 s, the evaluation before training done within 45 s.
"""

import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from benchmarks.common import TINYZERO, print_machine, print_table
from tinyzero_trainer.monitoring.metrics_log import ACCURACY, held_out_key, read_metrics, size_key
from tinyzero_trainer.monitoring.plot import series, smooth

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TASK = "countdown"
TARGETS = {"least gain": "20 points", "longest run": "480 s", "evaluated after": "45 s", "first line after": "5 s"}
COLORS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377")  # told apart with any colour vision
TRAINING_SECONDS, TRAINING_TOKENS = "time/elapsed_s", "tokens/response_total"


@dataclass(frozen=True, slots=True)
class Times:
    """Wall-clock seconds from the start of the command."""

    first_line: float
    """Until its first line of output."""

    evaluated: float
    """Until it says how accurate the model is before training."""

    whole: float
    """Until it has ended."""


@dataclass(frozen=True, slots=True)
class Learning:
    """What one run achieved."""

    problems: int
    """Held-out problems."""

    before: float
    """Share of them solved before training."""

    after: float
    """Share of them solved after it."""

    evaluation_seconds: float
    """Of the evaluation before training, sampled and greedy, without loading and drawing problems."""

    times: Times
    """Of the command."""

    @property
    def points(self) -> float:
        """By how many points the accuracy rose."""
        return 100 * (self.after - self.before)

    def percent(self, share: float) -> str:
        """An accuracy with its standard error."""
        return f"{100 * share:.1f} ± {100 * (share * (1 - share) / self.problems) ** 0.5:.1f} %"


def train(seed: int, directory: Path) -> Times:
    """Run the command as `make train` does; its output is passed on to standard error."""
    command = [*TINYZERO, "train", "--task", TASK, "--model", "tiny", f"run.seed={seed}", "--output", str(directory)]
    started, first_line, evaluated = time.perf_counter(), 0.0, 0.0
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            seconds = time.perf_counter() - started
            first_line = first_line or seconds
            if line.startswith("held-out accuracy before training"):
                evaluated = seconds
            print(f"seed {seed}, {seconds:5.1f} s: {line}", end="", file=sys.stderr, flush=True)
    if process.returncode:
        sys.exit(f"training with seed {seed} failed (see above)")
    return Times(first_line, evaluated, time.perf_counter() - started)


def learning(metrics: list[dict[str, Any]], times: Times) -> Learning:
    """What the metrics of a run, from step 0 to the last, say was learnt."""
    first, last = metrics[0], metrics[-1]
    problems, accuracy = size_key(TASK), held_out_key(TASK)
    assert first["step"] == 0
    assert first[problems] == last[problems]
    return Learning(int(first[problems]), first[accuracy], last[accuracy], first["timing_s/testing"], times)


def print_results(learnt: dict[int, Learning]) -> None:
    """A row for each seed, and the verdict: the worst of each."""
    rows = {
        str(seed): {
            "accuracy before": run.percent(run.before),
            "after": run.percent(run.after),
            "gain": f"{run.points:+.1f} points",
            "whole run": f"{run.times.whole:.0f} s",
            "evaluation before training": f"{run.evaluation_seconds:.1f} s",
            "done after": f"{run.times.evaluated:.1f} s",
            "first line after": f"{run.times.first_line:.1f} s",
        }
        for seed, run in learnt.items()
    }
    problems = next(iter(learnt.values())).problems
    print_table(f"seed ({problems:,} held-out puzzles, T = 1)", rows)
    worst = {
        "least gain": f"{min(run.points for run in learnt.values()):.1f} points",
        "longest run": f"{max(run.times.whole for run in learnt.values()):.0f} s",
        "evaluated after": f"{max(run.times.evaluated for run in learnt.values()):.1f} s",
        "first line after": f"{max(run.times.first_line for run in learnt.values()):.1f} s",
    }
    print("; ".join(f"{what} {value} (target {TARGETS[what]})" for what, value in worst.items()))


def draw(runs: Mapping[Any, list[dict[str, Any]]], output: Path) -> None:
    """The curves of all runs, by their seed or name, over seconds of training and over generated tokens."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    by_seconds, by_tokens = figure.subplots(1, 2, sharey=True)
    for (name, metrics), color in zip(runs.items(), COLORS, strict=False):
        label = name if isinstance(name, str) else f"seed {name}"
        _draw_run(by_seconds, metrics, TRAINING_SECONDS, 1.0, color, label)
        _draw_run(by_tokens, metrics, TRAINING_TOKENS, 1e-6, color, label)
    by_seconds.set_xlabel("seconds of training, without the evaluations")
    by_tokens.set_xlabel("generated tokens (millions)")
    by_seconds.set_ylabel("accuracy (%)")
    by_seconds.set_title("points: held-out puzzles; lines: training puzzles, running mean", loc="left", fontsize=10)
    by_seconds.legend(loc="lower right", frameon=False)
    for axes in (by_seconds, by_tokens):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(output, format="png")


def _draw_run(axes: "Axes", metrics: list[dict[str, Any]], over: str, scale: float, color: str, label: str) -> None:
    """Held-out accuracy as points with their standard errors, that of the training batches as a line."""
    place = {row["step"]: scale * row.get(over, 0) for row in metrics}  # step 0 took no training
    steps, trained = zip(*series(metrics, ACCURACY), strict=True)
    axes.plot([place[step] for step in steps], smooth([100 * share for share in trained], 5), lw=1.2, color=color)
    sizes = dict(series(metrics, size_key(TASK)))
    steps, shares = zip(*series(metrics, held_out_key(TASK)), strict=True)
    errors = [100 * (share * (1 - share) / sizes[step]) ** 0.5 for step, share in zip(steps, shares, strict=True)]
    points = ([place[step] for step in steps], [100 * share for share in shares])
    axes.errorbar(*points, errors, fmt="o", ms=5, capsize=3, color=color, label=label)


def main(
    seeds: Annotated[str, typer.Option(help="seeds of the runs, with commas between them")] = "0,1,2",
    output: Annotated[Path | None, typer.Option(help="directory that keeps the runs and a picture of them")] = None,
) -> None:
    """Train the built-in model for several seeds, and measure what it learns and how long it takes."""
    print_machine("tinyzero-trainer", "tinyzero-countdown", "torch", "transformers")
    with TemporaryDirectory() as folder:
        directories = {int(seed): (output or Path(folder)) / f"seed_{seed}" for seed in seeds.split(",")}
        times = {seed: train(seed, directory) for seed, directory in directories.items()}
        metrics = {seed: read_metrics(directory / "metrics.jsonl") for seed, directory in directories.items()}
    print_results({seed: learning(metrics[seed], times[seed]) for seed in metrics})
    if output is not None:
        draw(metrics, output / "curves.png")


if __name__ == "__main__":
    typer.run(main)
