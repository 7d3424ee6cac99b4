"""What the benchmarks of whole training runs share: running `tinyzero train`, reading its metrics, and plotting them.

Not a benchmark: it has no results.
"""

import math
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from benchmarks.commands import Finished, run
from benchmarks.common import TINYZERO
from tinyzero_sdk.workers.process import count_cores
from tinyzero_trainer.monitoring.metrics_log import ACCURACY, LENGTH, REWARD, held_out_key, read_metrics, size_key
from tinyzero_trainer.monitoring.plot import series, smooth

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TASK = "countdown"
SECONDS, TOKENS = "time/elapsed_s", "tokens/response_total"
"""Metrics: seconds of training so far, without loading and evaluations, and tokens generated in training so far."""

COLORS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377")  # safe for colour-blind readers
ENDS = 5
"""Steps at the beginning and the end of a run whose mean reward is compared."""


def train(
    arguments: Sequence[str], label: str, *, limit: float = math.inf, grace: float = 0.0, gpu: str | None = None
) -> Finished:
    """Run `tinyzero train`; each line of its output goes to standard error, after the label and the seconds.

    Args:
        arguments: after `train`.
        label: of the run.
        limit: seconds.
        grace: seconds in which a run that reaches its limit may save a checkpoint.
        gpu: the only GPU that it sees; None = all.
    """

    def show(seconds: float, line: str) -> None:
        print(f"{label}, {seconds:5.1f} s: {line}", file=sys.stderr, flush=True)

    env = {} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu}
    return run([*TINYZERO, "train", *arguments], limit, grace=grace, on_line=show, env=env)


def metrics_of(directory: Path) -> list[dict[str, Any]]:
    """The metrics of a run so far; empty before the first line."""
    file = directory / "metrics.jsonl"
    return read_metrics(file) if file.exists() else []


@dataclass(frozen=True, slots=True)
class Run:
    """One run, by its metrics."""

    rows: list[dict[str, Any]]
    """From step 0 to the last."""

    def series(self, name: str) -> list[float]:
        """A metric of every training step."""
        return [row[name] for row in self.rows[1:]]

    def ends(self, name: str) -> tuple[float, float]:
        """Mean of a metric over the first and over the last `ENDS` steps."""
        values = self.series(name)
        return fmean(values[:ENDS]), fmean(values[-ENDS:])

    def held_out(self, task: str = TASK) -> tuple[float, float]:
        """Held-out accuracy before and after training, in percent."""
        return 100 * self.rows[0][held_out_key(task)], 100 * self.rows[-1][held_out_key(task)]

    def problems(self, task: str = TASK) -> int:
        """Held-out problems of the last evaluation."""
        return int(self.rows[-1][size_key(task)])

    @property
    def seconds(self) -> float:
        return float(self.rows[-1][SECONDS])

    @property
    def tokens(self) -> float:
        return float(self.rows[-1][TOKENS])


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


def mean_timings(rows: Sequence[dict[str, Any]]) -> dict[str, float]:
    """Mean seconds of each phase (`timing_s/…`) over the steps that have it, except evaluation."""
    names = sorted({name for row in rows for name in row if name.startswith("timing_s/")} - {"timing_s/testing"})
    values = {name: [row[name] for row in rows if row.get(name) is not None] for name in names}
    return {name: fmean(found) for name, found in values.items() if found}


def with_error(accuracy: float, problems: float) -> str:
    """An accuracy in percent, with its standard error over problems."""
    return f"{100 * accuracy:.1f} ± {100 * (accuracy * (1 - accuracy) / problems) ** 0.5:.1f} %"


def run_all(
    arguments: Mapping[str, Sequence[str]], seeds: str, output: Path | None, *, jobs: int
) -> dict[str, list[Run]]:
    """Train once for each setting and seed; a run that `output` already holds is not repeated.

    Args:
        arguments: of `tinyzero train`, by a name for the setting.
        seeds: of the runs, separated by commas.
        output: keeps a run directory for each; without it they are deleted at the end.
        jobs: concurrent runs, which share the cores.
    """
    if output is None:
        with TemporaryDirectory() as folder:
            return run_all(arguments, seeds, Path(folder), jobs=jobs)
    threads = {"OMP_NUM_THREADS": str(max(1, count_cores() // jobs)), "OMP_WAIT_POLICY": "PASSIVE"}

    def train_one(name: str, seed: int) -> Run:
        directory = output / f"{name.replace(' ', '-')}-{seed}"
        if not (directory / "curve.png").exists():  # the last file that a run writes
            command = [*TINYZERO, "train", *arguments[name], f"run.seed={seed}", "--output", str(directory)]
            done = run([*command, *(["--resume"] if directory.exists() else [])], env=threads)
            if done.code:
                sys.exit(f"{' '.join(command)} failed:\n{done.output}")
            print(f"{name}, seed {seed}: done", file=sys.stderr, flush=True)
        return Run(metrics_of(directory))

    numbers = [int(seed) for seed in seeds.split(",")]
    with ThreadPoolExecutor(jobs) as pool:
        # Seed by seed, so that what is done when the script is stopped can be compared.
        futures = {(name, seed): pool.submit(train_one, name, seed) for seed in numbers for name in arguments}
        return {name: [futures[name, seed].result() for seed in numbers] for name in arguments}


def summary(runs: Sequence[Run]) -> dict[str, str]:
    """The cells of a table: means over seeds, ± their standard error."""
    reward, length = ([run.ends(name) for run in runs] for name in (REWARD, LENGTH))
    accuracy = [run.held_out() for run in runs]
    return {
        "reward, first five steps": _mean([first for first, _ in reward], 2),
        "last five": _mean([last for _, last in reward], 2),
        "held-out before": _mean([before for before, _ in accuracy], 1, " %"),
        "after": _mean([after for _, after in accuracy], 1, " %"),
        "length first": f"{fmean(first for first, _ in length):.0f}",
        "last": f"{fmean(last for _, last in length):.0f}",
        "tokens": f"{fmean(run.tokens for run in runs) / 1000:.0f} k",
        "time": f"{fmean(run.seconds for run in runs):.0f} s",
    }


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Mean of two values or more, and its standard error."""
    return fmean(values), stdev(values) / len(values) ** 0.5


def _mean(values: Sequence[float], digits: int, unit: str = "") -> str:
    if len(values) == 1:
        return f"{values[0]:.{digits}f}{unit}"
    mean, error = mean_and_error(values)
    return f"{mean:.{digits}f} ± {error:.{digits}f}{unit}"


def plot_curves(runs: Mapping[Any, list[dict[str, Any]]], output: Path) -> None:
    """Plot the metrics of all runs, by seed or name, over seconds of training and over generated tokens."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
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
