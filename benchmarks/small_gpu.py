"""What a small warm-started model learns on one GPU by GRPO, for several seeds.

    python benchmarks/small_gpu.py [--seeds 0,1,2] [--gpus N] [--limit SECONDS] [--output DIR] [KEY=VALUE …]

Runs `tinyzero train --task countdown` as a user with a GPU would, one seed after another or on N GPUs at a time.
Held-out accuracy on 1,024 puzzles, sampled at temperature 1. Targets, for every seed, on one H200: from 10 to 40 % to
at least 82 % within 4 minutes of GRPO. KEY=VALUE overrides settings of the runs: `algorithm.kl_coefficient=0`,
`default_model.seconds=60`. `--model DIR` takes a model made by `tinyzero warmstart` instead. Results are written to
DIR after each seed.
"""

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean
from tempfile import mkdtemp
from typing import Annotated, Any

import typer

from benchmarks.commands import device_name
from benchmarks.common import print_machine, print_table
from benchmarks.training import (
    SECONDS,
    TASK,
    TOKENS,
    learning_curve,
    mean_timings,
    metrics_of,
    plot_curves,
    train,
    with_error,
)

VERSIONS = ("tinyzero-trainer", "tinyzero-countdown", "torch", "transformers")
TARGETS = {"before": "10 to 40 %", "within the time": "82 %"}
ENDS = 30
"""Steps at the beginning and the end of a run whose times are compared."""

GRACE_SECONDS = 30.0
"""In which a run that reaches the limit may save a checkpoint."""


def outcome(rows: list[dict[str, Any]], minutes: float) -> dict[str, Any]:
    """Results of a run, from its metrics from step 0 on; `within` is the accuracy after `minutes` of training."""
    curve = learning_curve(rows)
    within = [point["accuracy"] for point in curve if point["seconds"] <= 60 * minutes]
    steps = [row for row in rows if row["step"]]
    return {
        "parameters": rows[0].get("model/parameters"),
        "problems": curve[0]["problems"],
        "before": curve[0]["accuracy"],
        "after": curve[-1]["accuracy"],
        "within_minutes": minutes,
        "within": within[-1],
        "steps": rows[-1]["step"],
        "seconds": rows[-1].get(SECONDS, 0.0),
        "tokens": rows[-1].get(TOKENS, 0.0),
        "curve": curve,
        "first_steps": mean_timings(steps[:ENDS]),
        "last_steps": mean_timings(steps[-ENDS:]),
    }


def print_results(runs: dict[int, dict[str, Any]], minutes: float) -> None:
    """A row for each seed, the times of a step's phases, and the worst of each result."""
    rows = {
        str(seed): {
            "before": with_error(run["before"], run["problems"]),
            f"within {minutes:g} min": with_error(run["within"], run["problems"]),
            "after": with_error(run["after"], run["problems"]),
            "GRPO": f"{run['seconds']:.0f} s",
            "steps": f"{run['steps']}",
            "tokens": f"{run['tokens'] / 1e6:.1f} M",
        }
        for seed, run in runs.items()
    }
    first = next(iter(runs.values()))
    print_table(f"seed ({first['parameters'] / 1e6:.1f} M parameters, {first['problems']:,.0f} puzzles, T = 1)", rows)
    print()
    ends = {f"first {ENDS} steps": "first_steps", f"last {ENDS} steps": "last_steps"}
    phases = {
        name.removeprefix("timing_s/"): {
            title: f"{fmean(run[end].get(name, float('nan')) for run in runs.values()):.3f} s"
            for title, end in ends.items()
        }
        for name in sorted({name for run in runs.values() for name in run["last_steps"]})
    }
    if phases:
        print_table("phase of a step, mean over seeds", phases)
    before, within = ([100 * run[key] for run in runs.values()] for key in ("before", "within"))
    worst = {"before": f"{min(before):.1f} to {max(before):.1f} %", "within the time": f"{min(within):.1f} %"}
    print("; ".join(f"{what} {value} (target {TARGETS[what]})" for what, value in worst.items()), flush=True)


def main(
    overrides: Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE", help="settings of the runs")] = None,
    seeds: Annotated[str, typer.Option(help="seeds of the runs, separated by commas")] = "0,1,2",
    steps: Annotated[int | None, typer.Option(help="steps of each run", show_default="the model's")] = None,
    minutes: Annotated[float, typer.Option(help="of GRPO, within which the target is to be reached")] = 4.0,
    limit: Annotated[float, typer.Option(help="seconds for everything; seeds left by then are not run")] = 1500,
    model: Annotated[
        Path | None, typer.Option(help="model to train", show_default="one that is warm-started first")
    ] = None,
    gpus: Annotated[int, typer.Option(help="concurrent runs, each on its own GPU")] = 1,
    output: Annotated[
        Path | None, typer.Option(help="directory for model, runs, results.json, curves.png", show_default="a new one")
    ] = None,
) -> None:
    """Warm-start a small model, train it for several seeds, and measure what it learns and where the time goes."""
    began, deadline = time.monotonic(), time.monotonic() + limit - GRACE_SECONDS
    directory = output or Path(mkdtemp(prefix="small-gpu-"))
    directory.mkdir(parents=True, exist_ok=True)
    chosen = ["--model", str(model)] if model else [f"default_model.directory={directory / 'model'}"]
    arguments = ["--task", TASK, *chosen, *([] if steps is None else [f"run.steps={steps}"]), *(overrides or [])]
    about = {**print_machine(*VERSIONS), "device": device_name(), "arguments": arguments}
    numbers = [int(seed) for seed in seeds.split(",")]
    visible = [str(index % gpus) if gpus > 1 else None for index in range(len(numbers))]

    def run_seed(seed: int, gpu: str | None) -> tuple[int, bool, list[dict[str, Any]]]:
        """If several runs find no warm-started model, the first makes it and the others wait for it."""
        run, left = directory / f"seed_{seed}", deadline - time.monotonic()
        if left <= 0:
            print(f"seed {seed}: no time left", file=sys.stderr, flush=True)
            return seed, False, []
        words = [*arguments, f"run.seed={seed}", "--output", str(run)]
        done = train(words, f"seed {seed}", limit=left, grace=GRACE_SECONDS, gpu=gpu)
        return seed, done.code == 0, metrics_of(run)

    runs: dict[int, dict[str, Any]] = {}
    metrics: dict[int, list[dict[str, Any]]] = {}
    for seed, whole, rows in ThreadPoolExecutor(gpus).map(run_seed, numbers, visible):
        if not rows:
            continue
        metrics[seed], runs[seed] = rows, outcome(rows, minutes) | {"whole": whole}
        content = {**about, "seconds": time.monotonic() - began, "seeds": runs}
        (directory / "results.json").write_text(json.dumps(content, indent=1), encoding="utf-8")
        after = {key: round(runs[seed][key], 4) for key in ("before", "within", "after", "seconds")}
        print(f"seed {seed}: {after}", file=sys.stderr, flush=True)
    if not runs:
        sys.exit("nothing was measured within the limit")
    for card in sorted((directory / "model").glob("*/README.md")):
        print(card.read_text(encoding="utf-8"))
    print_results(runs, minutes)
    if all(rows[-1]["step"] for rows in metrics.values()):
        plot_curves(metrics, directory / "curves.png")
    print(f"\n{about['device']}; results and curves: {directory}; {time.monotonic() - began:.0f} s in all", flush=True)


if __name__ == "__main__":
    typer.run(main)
