"""The tables of `several_gpus.py`: pure functions of the results of its jobs."""

from collections.abc import Iterator, Mapping, Sequence
from math import sqrt
from statistics import fmean
from typing import Any

import numpy as np

from benchmarks.common import table
from benchmarks.several.jobs import succeeded
from tinyzero_trainer.monitoring.metrics_log import LENGTH, REWARD

Results = Mapping[str, Mapping[str, Any]]

RECORDED = "1 (samples the rollouts)"  # the run that the other jobs of suite `parity` are compared with
DEFAULT_MODEL = "async_levels: model"
TOLERANCE = 1e-3  # largest relative difference of a loss that rounding may cause
SETTLED = 10
"""Steps of suite `async_levels` before the second rate: the first have short completions, and may compile kernels."""

EXPLAINING = {
    "response_length/mean": "mean length",
    "response_length/max": "longest",
    "staleness/steps": "steps old",
    "staleness/steps_max": "oldest",
    "timing_s/wait_for_rollouts": "waiting (s)",
    "timing_s/step": "step (s)",
}
"""Metrics that tell why levels differ, by what the table of suite `async_levels` calls them."""

COMPARED = ("loss", "KL", "gradient norm")
RESUMED = {
    "reward": REWARD,
    "length": LENGTH,
    "loss": "actor/pg_loss",
    "gradient norm": "actor/grad_norm",
    "entropy": "actor/entropy",
    "engine to policy": "training/rollout_logprobs_diff_mean",
}
"""Metrics in which a resumed run is compared."""


def all_tables(results: Results) -> Iterator[str]:
    """The tables for which there are results, then a line for each failure."""
    succeeding = {name: result for name, result in results.items() if "error" not in result}
    for shape in ("10M", "0.5B"):
        yield from parity(succeeding, shape)
    yield from scaling(succeeding, "weak", "constant work per GPU")
    yield from scaling(succeeding, "strong", "constant work in total")
    yield from tensor_parallel(succeeding)
    yield from resume(succeeding)
    yield from async_levels(succeeding)
    for name, result in results.items():
        if reason := result.get("error") or result.get("failed"):
            yield f"{name}: {reason.splitlines()[0]}"


def differences(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """|ours − theirs| of each step, relative to theirs, or to their mean size if that is larger.

    Example:
        >>> differences([1.1, 0.0], [1.0, 0.5])
        [0.1, 0.666666666667]
    """
    size = fmean(abs(value) for value in theirs)
    pairs = zip(ours, theirs, strict=False)  # a run that was stopped has fewer
    return [round(abs(mine - other) / max(abs(other), size, 1e-30), 12) for mine, other in pairs]


def parity(results: Results, shape: str) -> Iterator[str]:
    """Largest differences to one GPU."""
    prefix = f"parity {shape}: "
    if not succeeded(results, prefix + RECORDED):
        return
    theirs = results[prefix + RECORDED]["rows"]
    rows = {}
    for name, result in results.items():
        if not name.startswith(prefix) or not (ours := result["rows"]):
            continue
        largest = {
            key: max(differences([row[key] for row in ours], [row[key] for row in theirs]))
            for key in COMPARED
            if key in ours[0]
        }
        rows[name.removeprefix(prefix)] = {
            **{key: f"{largest[key]:.1e}" if key in largest else "" for key in COMPARED},
            "steps": str(len(ours)),
            "step, without the first": f"{fmean(row['seconds'] for row in ours[1:] or ours):.2f} s",
            "loss on target": "yes" if largest["loss"] <= TOLERANCE else "NO",
        }
    yield table(f"{shape} on GPUs: largest relative difference to one (target for the loss ≤ {TOLERANCE:g})", rows)


def scaling(results: Results, suite: str, title: str) -> Iterator[str]:
    """Whole steps on 1, 2 and 4 GPUs: tokens/s, the speed-up over one GPU, and where the time goes."""
    if not any(name.startswith(f"{suite} ") for name in results):
        return
    names = [name for name in results if name == "weak 1" or name.startswith(f"{suite} ")]
    base = results["weak 1"]["tokens_per_s"] if "weak 1" in results else None
    phases = sorted({phase for name in names for phase in results[name]["timing_s"]} - {"timing_s/step"})
    rows = {}
    for count, name in sorted((name.partition(" ")[2], name) for name in names):
        seconds, rate = results[name]["timing_s"], results[name]["tokens_per_s"]
        rows[count] = {
            "step": f"{seconds['timing_s/step']:.2f} s",
            "tokens/s": f"{rate:,.0f}",
            "×": "" if base is None else f"{rate / base:.2f}",
            **{one.removeprefix("timing_s/"): f"{seconds[one]:.2f} s" if one in seconds else "" for one in phases},
        }
    yield table(f"GPUs, {title}", rows)


def tensor_parallel(results: Results) -> Iterator[str]:
    """The times of each step, and the distance of the engine from the policy."""
    phases = ("step", "gen", "update_actor", "update_weights")
    rows = {
        f"{name.partition(' ')[2]}, step {row['step']}": {
            **{phase: f"{row[f'timing_s/{phase}']:.2f} s" for phase in phases},
            "log-prob difference engine to policy": _digits(row.get(RESUMED["engine to policy"])),
        }
        for name, result in results.items()
        if name.startswith("tensor_parallel ")
        for row in result["rows"]
        if row["step"]
    }
    if rows:
        yield table("GPUs, engine split over two", rows)


def resume(results: Results) -> Iterator[str]:
    """The first two resumed steps, next to those of the uninterrupted run."""
    runs = {name.removeprefix("resume: "): run["rows"] for name, run in results.items() if name.startswith("resume: ")}
    for step in (3, 4) if runs else ():
        rows = {}
        for name, metrics in runs.items():
            row: Mapping[str, float] = next((row for row in metrics if row["step"] == step), {})
            rows[name] = {metric: _digits(row.get(key)) for metric, key in RESUMED.items()}
        yield table(f"10M, saved on 2 GPUs after step 2: step {step}", rows)


def async_levels(results: Results) -> Iterator[str]:
    """Speed and accuracy of all runs, also after the time and the tokens that all of them reached."""
    prefix = "async_levels: "
    runs = {
        name.removeprefix(prefix): result
        for name, result in results.items()
        if name.startswith(prefix) and name != DEFAULT_MODEL
    }
    if not runs:
        return
    seconds, tokens = (min(run["curve"][-1][key] for run in runs.values()) for key in ("seconds", "tokens"))
    rows = {
        name: {
            "before": _interval(run["before"], run["problems"]),
            f"after {seconds:.0f} s": _interval(accuracy_at(run["curve"], "seconds", seconds), run["problems"]),
            f"after {tokens / 1e6:.1f} M tokens": _interval(
                accuracy_at(run["curve"], "tokens", tokens), run["problems"]
            ),
            "at the end": _interval(run["after"], run["problems"]),
            "steps": str(run["steps"]),
            "training": f"{run['seconds']:.0f} s",
            "tokens/s": f"{run['tokens_per_s']:,.0f}",
            f"after step {SETTLED}": "" if (rate := run.get("settled_tokens_per_s")) is None else f"{rate:,.0f}",
        }
        for name, run in runs.items()
    }
    yield table("held-out accuracy with 95 % intervals", rows)
    explained = {
        name: {key: f"{run['means'][metric]:.2f}" for metric, key in EXPLAINING.items()} for name, run in runs.items()
    }
    yield table("means over all steps", explained)


def _interval(accuracy: float, problems: float) -> str:
    """With its interval of 95 %, in percent.

    Example:
        >>> _interval(0.5, 1024)
        '50.0 ± 3.1%'
    """
    return f"{100 * accuracy:.1f} ± {196 * sqrt(accuracy * (1 - accuracy) / problems):.1f}%"


def accuracy_at(curve: Sequence[Mapping[str, float]], over: str, limit: float) -> float:
    """Accuracy at a limit, interpolated between the evaluations before and after it.

    Example:
        >>> accuracy_at([{"seconds": 0, "accuracy": 0.1}, {"seconds": 10, "accuracy": 0.5}], "seconds", 2.5)
        0.2
    """
    return float(np.interp(limit, [point[over] for point in curve], [point["accuracy"] for point in curve]))


def _digits(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"
