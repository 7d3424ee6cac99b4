"""What the benchmarks of whole training runs share: running `tinyzero train`, reading its metrics, and plotting them.

Not a benchmark: it has no results.
"""

import math
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from benchmarks.commands import Finished, run
from benchmarks.common import TINYZERO
from tinyzero_trainer.monitoring.metrics_log import ACCURACY, held_out_key, read_metrics, size_key
from tinyzero_trainer.monitoring.plot import series, smooth

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TASK = "countdown"
SECONDS, TOKENS = "time/elapsed_s", "tokens/response_total"
"""Metrics: seconds of training so far, without loading and evaluations, and tokens generated in training so far."""

COLORS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377")  # safe for colour-blind readers
ENDS = 30  # steps at the beginning and the end of a run whose times are compared


def train(
    arguments: Sequence[str], label: str, *, limit: float = math.inf, grace: float = 0.0, gpu: str | None = None
) -> Finished:
    """Run `tinyzero train`; each line of its output goes to standard error, after the label and the seconds.

    A run that reaches its limit (seconds) has `grace` seconds to save a checkpoint; it sees one GPU, or all.
    """

    def show(seconds: float, line: str) -> None:
        print(f"{label}, {seconds:5.1f} s: {line}", file=sys.stderr, flush=True)

    env = {} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu}
    return run([*TINYZERO, "train", *arguments], limit, grace=grace, on_line=show, env=env)


def metrics_of(directory: Path) -> list[dict[str, Any]]:
    """The metrics of a run so far; empty before the first line."""
    file = directory / "metrics.jsonl"
    return read_metrics(file) if file.exists() else []


def learning_curve(rows: Sequence[dict[str, Any]]) -> list[dict[str, float]]:
    """The evaluations of a run: step, seconds and tokens of training until then, accuracy, and number of problems."""
    return [
        {
            "step": row["step"],
            "seconds": row.get(SECONDS, 0.0),
            "tokens": row.get(TOKENS, 0.0),
            "accuracy": row[held_out_key(TASK)],
            "problems": row[size_key(TASK)],
        }
        for row in rows
        if held_out_key(TASK) in row
    ]


def outcome(rows: Sequence[dict[str, Any]], minutes: float) -> dict[str, Any]:
    """Results of a run, from its metrics from step 0 on; `within` is the accuracy after `minutes` of training."""
    curve, steps = learning_curve(rows), [row for row in rows if row["step"]]
    return {
        "parameters": rows[0].get("model/parameters"),
        "problems": curve[0]["problems"],
        "before": curve[0]["accuracy"],
        "after": curve[-1]["accuracy"],
        "within_minutes": minutes,
        "within": [point["accuracy"] for point in curve if point["seconds"] <= 60 * minutes][-1],
        "steps": rows[-1]["step"],
        "seconds": rows[-1].get(SECONDS, 0.0),
        "tokens": rows[-1].get(TOKENS, 0.0),
        "curve": curve,
        "first_steps": mean_timings(steps[:ENDS]),
        "last_steps": mean_timings(steps[-ENDS:]),
    }


def mean_timings(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Mean seconds of each phase (`timing_s/…`) over the steps that have it, except evaluation."""
    names = sorted({name for row in rows for name in row if name.startswith("timing_s/")} - {"timing_s/testing"})
    values = {name: [row[name] for row in rows if row.get(name) is not None] for name in names}
    return {name: fmean(found) for name, found in values.items() if found}


def with_error(accuracy: float, problems: float) -> str:
    """An accuracy in percent, with its standard error over problems."""
    return f"{100 * accuracy:.1f} ± {100 * (accuracy * (1 - accuracy) / problems) ** 0.5:.1f}%"


def plot_curves(runs: Mapping[Any, list[dict[str, Any]]], output: Path) -> None:
    """Plot the metrics of all runs, by seed or name, over seconds of training and over generated tokens."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5), dpi=150, layout="constrained")
    by_seconds, by_tokens = figure.subplots(1, 2, sharey=True)
    for (name, rows), color in zip(runs.items(), COLORS, strict=False):
        label = name if isinstance(name, str) else f"seed {name}"
        _plot_run(by_seconds, rows, SECONDS, 1.0, color, label)
        _plot_run(by_tokens, rows, TOKENS, 1e-6, color, label)
    by_seconds.set_xlabel("seconds of training, without the evaluations")
    by_tokens.set_xlabel("generated tokens (millions)")
    by_seconds.set_ylabel("accuracy (%)")
    by_seconds.set_title("points: held-out puzzles; lines: training puzzles, running mean", loc="left", fontsize=10)
    by_seconds.legend(loc="lower right", frameon=False)
    for axes in (by_seconds, by_tokens):
        axes.grid(alpha=0.25)
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(output, format="png")


def _plot_run(axes: "Axes", rows: list[dict[str, Any]], over: str, scale: float, color: str, label: str) -> None:
    """Held-out accuracy as points with their standard errors, that of the training batches as a line."""
    x = {row["step"]: scale * row.get(over, 0) for row in rows}  # step 0 took no training
    steps, trained = zip(*series(rows, ACCURACY), strict=True)
    axes.plot([x[step] for step in steps], smooth([100 * accuracy for accuracy in trained], 5), lw=1.2, color=color)
    points = [(x[point["step"]], point["accuracy"], point["problems"]) for point in learning_curve(rows)]
    at, percents = [at for at, _, _ in points], [100 * p for _, p, _ in points]
    errors = [100 * (p * (1 - p) / problems) ** 0.5 for _, p, problems in points]
    axes.errorbar(at, percents, errors, fmt="o", ms=5, capsize=3, color=color, label=label)
