"""The tables of `several_gpus.py`, from the results of its jobs. Pure functions of those."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np

from benchmarks.common import table
from benchmarks.several.side_by_side import succeeded
from tinyzero_trainer.monitoring.metrics_log import LENGTH, REWARD

Found = Mapping[str, Mapping[str, Any]]

RECORDED = "1 (draws the rollouts)"
"""What the other jobs of part `same` are compared with."""

OWN_MODEL = "one_step_off: model"
WANTED = 1e-3
"""Largest relative difference of a loss that rounding may make."""

SETTLED = 10
"""Steps of part `one_step_off` before the second rate: the first have short completions, and may compile something."""

COMPARED = ("loss", "KL", "gradient norm")
RESUMED = {
    "reward": REWARD,
    "length": LENGTH,
    "loss": "actor/pg_loss",
    "gradient norm": "actor/grad_norm",
    "entropy": "actor/entropy",
    "engine to policy": "training/rollout_logprobs_diff_mean",
}
"""Metrics by which a resumed run is compared."""


def all_tables(found: Found) -> Iterator[str]:
    """Those for which there are results."""
    for shape in dict.fromkeys(name.removeprefix("same ").partition(":")[0] for name in found if "same " in name):
        yield from same(found, shape)
    yield from scaling(found, "weak", "the same work for each GPU")
    yield from scaling(found, "strong", "the same work in all")
    yield from tensor_parallel(found)
    yield from resume(found)
    yield from one_step_off(found)
    yield from failures(found)


def differences(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """|ours − theirs| of each step, relative to theirs, or to their mean size where a step's is smaller.

    Example:
        >>> differences([1.1, 0.0], [1.0, 0.5])
        [0.1, 0.666666666667]
    """
    size = fmean(abs(value) for value in theirs)
    pairs = zip(ours, theirs, strict=False)  # one that was stopped has fewer
    return [round(abs(mine - other) / max(abs(other), size, 1e-30), 12) for mine, other in pairs]


def same(found: Found, shape: str) -> Iterator[str]:
    """Largest differences to one GPU."""
    prefix = f"same {shape}: "
    if not succeeded(found, prefix + RECORDED):
        return
    theirs = found[prefix + RECORDED]["rows"]
    rows = {}
    for name in found:
        if not name.startswith(prefix) or not succeeded(found, name) or not found[name]["rows"]:
            continue
        ours = found[name]["rows"]
        largest = {key: _largest(ours, theirs, key) for key in COMPARED}
        rows[name.removeprefix(prefix)] = {
            **{key: "" if value is None else f"{value:.1e}" for key, value in largest.items()},
            "steps": str(len(ours)),
            "a step, but the first": f"{fmean(row['seconds'] for row in ours[1:] or ours):.2f} s",
            "loss as wanted": "yes" if (largest["loss"] or 0.0) <= WANTED else "NO",
        }
    title = f"{shape} on GPUs: largest relative difference to one (wanted ≤ {WANTED:g})"
    yield table(title, rows)


def _largest(ours: Sequence[Mapping[str, float]], theirs: Sequence[Mapping[str, float]], key: str) -> float | None:
    if key not in ours[0] or key not in theirs[0]:
        return None
    return max(differences([row[key] for row in ours], [row[key] for row in theirs]))


def scaling(found: Found, part: str, what: str) -> Iterator[str]:
    """Whole steps on 1, 2 and 4 GPUs: tokens a second, times one GPU's, and where the time goes."""
    names = [name for name in found if succeeded(found, name) and name.startswith(f"{part} ")]
    if not names:
        return
    if "weak 1" not in names and succeeded(found, "weak 1"):
        names.insert(0, "weak 1")
    base = found["weak 1"]["tokens_per_s"] if "weak 1" in names else None
    parts = sorted({key for name in names for key in found[name]["timing_s"]} - {"timing_s/step", "timing_s/testing"})
    rows = {}
    for name in sorted(names, key=lambda name: name.partition(" ")[2]):
        seconds = found[name]["timing_s"]
        rate = found[name]["tokens_per_s"]
        rows[name.partition(" ")[2]] = {
            "step": f"{seconds['timing_s/step']:.2f} s",
            "tokens/s": f"{rate:,.0f}",
            "×": "" if base is None else f"{rate / base:.2f}",
            **{key.removeprefix("timing_s/"): f"{seconds[key]:.2f} s" if key in seconds else "" for key in parts},
        }
    yield table(f"GPUs, {what}", rows)


def tensor_parallel(found: Found) -> Iterator[str]:
    """What each step of these runs took, and how far the engine is from the policy."""
    rows = {}
    for name in found:
        if not name.startswith("tensor_parallel ") or not succeeded(found, name):
            continue
        for row in found[name]["rows"]:
            if row["step"]:
                rows[f"{name.partition(' ')[2]}, step {row['step']}"] = {
                    **{key: f"{row[f'timing_s/{key}']:.2f} s" for key in ("step", "gen", "update_actor")},
                    "update_weights": f"{row['timing_s/update_weights']:.2f} s",
                    "log-prob difference engine to policy": _shown(row.get(RESUMED["engine to policy"])),
                }
    if rows:
        yield table("GPUs, engine spread over two", rows)


def resume(found: Found) -> Iterator[str]:
    """The first resumed step beside that of the run without a break."""
    names = [name for name in found if name.startswith("resume: ") and succeeded(found, name)]
    if not names:
        return
    for step in (3, 4):
        rows = {}
        for name in names:
            row: Mapping[str, float] = next((row for row in found[name]["rows"] if row["step"] == step), {})
            rows[name.removeprefix("resume: ")] = {what: _shown(row.get(key)) for what, key in RESUMED.items()}
        yield table(f"10M, saved on 2 after step 2: step {step}", rows)


def one_step_off(found: Found) -> Iterator[str]:
    """How fast and how well all learn, also after the time and the tokens up to which all were evaluated."""
    prefix = "one_step_off: "
    runs = {
        name.removeprefix(prefix): found[name]
        for name in found
        if name.startswith(prefix) and name != OWN_MODEL and succeeded(found, name)
    }
    if not runs:
        return
    seconds, tokens = (min(run["curve"][-1][key] for run in runs.values()) for key in ("seconds", "tokens"))
    rows = {
        name: {
            "before": _percent(run["before"]),
            f"after {seconds:.0f} s": _percent(reached(run["curve"], "seconds", seconds)),
            f"after {tokens / 1e6:.1f} M tokens": _percent(reached(run["curve"], "tokens", tokens)),
            "at the end": _percent(run["after"]),
            "steps": str(run["steps"]),
            "training": f"{run['seconds']:.0f} s",
            "tokens/s": f"{run['tokens_per_s']:,.0f}",
            f"after step {SETTLED}": "" if (rate := run.get("settled_tokens_per_s")) is None else f"{rate:,.0f}",
            "a step at the end": f"{run['last_steps']['timing_s/step']:.2f} s" if run["last_steps"] else "",
        }
        for name, run in runs.items()
    }
    yield table("held-out accuracy, 2 GPUs", rows)


def reached(curve: Sequence[Mapping[str, float]], over: str, limit: float) -> float:
    """Accuracy at a limit, on the line between the evaluations before and after it.

    Example:
        >>> reached([{"seconds": 0, "accuracy": 0.1}, {"seconds": 10, "accuracy": 0.5}], "seconds", 5.0)
        0.3
    """
    return float(np.interp(limit, [point[over] for point in curve], [point["accuracy"] for point in curve]))


def failures(found: Found) -> Iterator[str]:
    """Jobs without a result, or with half of one, and the first line of why."""
    for name, result in found.items():
        if why := result.get("error") or result.get("failed"):
            yield f"{name}: {why.splitlines()[0]}"


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _shown(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"
