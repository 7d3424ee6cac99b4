"""What the benchmarks of whole training runs share: `tinyzero train` for many settings and seeds, several at a time.

Not a benchmark: run by itself it does nothing.
"""

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.common import TINYZERO
from tinyzero_sdk.workers.process import count_cores
from tinyzero_trainer.monitoring.metrics_log import ACCURACY, LENGTH, REWARD, held_out_key, read_metrics, size_key

ENDS = 5
"""Steps at the beginning and the end of a run whose mean reward is compared."""


@dataclass(frozen=True, slots=True)
class Run:
    """One finished run, from its metrics."""

    rows: list[dict[str, Any]]
    """Its lines, from step 0 to the last."""

    def series(self, name: str) -> list[float]:
        """A metric of every step from the first on."""
        return [row[name] for row in self.rows[1:]]

    def ends(self, name: str) -> tuple[float, float]:
        """Mean of a metric over the first and over the last `ENDS` steps."""
        values = self.series(name)
        return fmean(values[:ENDS]), fmean(values[-ENDS:])

    def held_out(self, task: str) -> tuple[float, float]:
        """Held-out accuracy before and after, in percent."""
        return 100 * self.rows[0][held_out_key(task)], 100 * self.rows[-1][held_out_key(task)]

    @property
    def seconds(self) -> float:
        """Of training alone, without loading and evaluations."""
        return float(self.rows[-1]["time/elapsed_s"])

    @property
    def tokens(self) -> float:
        """Generated in training."""
        return float(self.rows[-1]["tokens/response_total"])


def run_all(
    settings: Mapping[str, Sequence[str]], seeds: str, output: Path | None, *, jobs: int
) -> dict[str, list[Run]]:
    """Train once for each setting and seed; a run that `output` holds already is not repeated.

    Args:
        settings: the words after `tinyzero train`, by a name for the setting.
        seeds: of the runs, with commas between them.
        output: keeps a run directory for each; without it they are thrown away at the end.
        jobs: runs at a time, which share the cores.
    """
    if output is None:
        with TemporaryDirectory() as folder:
            return run_all(settings, seeds, Path(folder), jobs=jobs)
    numbers = [int(seed) for seed in seeds.split(",")]
    threads = str(max(1, count_cores() // jobs))
    environment = {**os.environ, "OMP_NUM_THREADS": threads, "OMP_WAIT_POLICY": "PASSIVE"}

    def train(name: str, seed: int) -> Run:
        directory = output / f"{name.replace(' ', '-')}-{seed}"
        metrics = directory / "metrics.jsonl"
        if not (directory / "curve.png").exists():  # what a run makes last
            command = [*TINYZERO, "train", *settings[name], f"run.seed={seed}", "--output", str(directory)]
            command += ["--resume"] if directory.exists() else []
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
            if done.returncode:
                sys.exit(f"{' '.join(command)} failed:\n{done.stderr}")
            print(f"{name}, seed {seed}: done", file=sys.stderr, flush=True)
        return Run(read_metrics(metrics))

    with ThreadPoolExecutor(jobs) as pool:
        # Seed by seed, so that what was done when it is stopped can be compared.
        futures = {(name, seed): pool.submit(train, name, seed) for seed in numbers for name in settings}
        return {name: [futures[name, seed].result() for seed in numbers] for name in settings}


def row(runs: Sequence[Run], task: str) -> dict[str, str]:
    """The cells of a table: means over seeds, ± their standard error."""
    reward, length = [run.ends(REWARD) for run in runs], [run.ends(LENGTH) for run in runs]
    accuracy = [run.held_out(task) for run in runs]
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


def problems(runs: Sequence[Run], task: str) -> int:
    """How many held-out problems a run was evaluated on at its end."""
    return int(runs[0].rows[-1][size_key(task)])


def accuracy_over_steps(runs: Sequence[Run]) -> list[float]:
    """Share of all sampled completions that were correct at each step, in percent: mean over seeds."""
    return [100 * fmean(step) for step in zip(*(run.series(ACCURACY) for run in runs), strict=True)]


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Mean of two values or more, and its standard error."""
    return fmean(values), stdev(values) / len(values) ** 0.5


def _mean(values: Sequence[float], digits: int, unit: str = "") -> str:
    if len(values) == 1:
        return f"{values[0]:.{digits}f}{unit}"
    mean, error = mean_and_error(values)
    return f"{mean:.{digits}f} ± {error:.{digits}f}{unit}"
