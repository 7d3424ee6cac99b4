"""What a small model learns of countdown by GRPO, for several seeds, and where the time goes.

    python benchmarks/learn.py                       does the same as `make train`, with the built-in model on the CPU
    python benchmarks/learn.py --model default       does the same as `tinyzero train --task countdown` on a GPU
    python benchmarks/learn.py [--model DIR] [--seeds 0,1,2] [--gpus N] [--limit SECONDS] [--output DIR] [KEY=VALUE …]

One seed after another, or on N GPUs at a time. Held-out accuracy on 1,024 puzzles, sampled at temperature 1. KEY=VALUE
overrides settings of the runs: `algorithm.kl_coefficient=0`, `default_model.steps=800`. Results are written to DIR
after each seed. Targets for every seed: with the built-in model on 2 quiet cores 40 points higher and at least 68%
after at most 2.5 minutes of GRPO, the whole run within 3.5 minutes, a first line of output within 5 s, the evaluation
before training done within 10 s; with the default model on one H200 at least 90% within 5 minutes of GRPO.
"""

import json
import math
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean
from tempfile import mkdtemp
from typing import Annotated, Any

import typer

from benchmarks.commands import KILLED, Finished, device_name
from benchmarks.common import print_machine, print_table
from benchmarks.training import ENDS, TASK, metrics_of, outcome, plot_curves, train, with_error

VERSIONS = ("tinyzero-trainer", "tinyzero-countdown", "torch", "transformers")
GRACE_SECONDS = 30.0  # in which a run that reaches the limit may save a checkpoint


def learning(rows: list[dict[str, Any]], command: Finished, minutes: float) -> dict[str, Any]:
    """What a run achieved, from its metrics and from its command, whose times are seconds since its start."""
    found = outcome(rows, minutes)
    evaluated = (at for at, line in command.lines if line.startswith("held-out accuracy before training"))
    return {
        **found,
        "gain": 100 * (found["after"] - found["before"]),  # points
        "whole": command.code == 0,
        "first_line": command.lines[0][0],
        "evaluation": rows[0]["timing_s/testing"],  # without loading the model and generating problems
        "evaluated": next(evaluated, math.nan),
        "command": command.seconds,
    }


def print_results(runs: dict[int, dict[str, Any]], minutes: float) -> None:
    """A row for each seed, the times of a step's phases, and the worst of each result."""
    rows = {
        str(seed): {
            "before": with_error(run["before"], run["problems"]),
            f"within {minutes:g} min": with_error(run["within"], run["problems"]),
            "after": with_error(run["after"], run["problems"]),
            "gain": f"{run['gain']:+.1f} points",
            "GRPO": f"{run['seconds']:.0f} s",
            "steps": f"{run['steps']}",
            "tokens": f"{run['tokens'] / 1e6:.1f} M",
            "whole run": f"{run['command']:.0f} s",
            "evaluation before training": f"{run['evaluation']:.1f} s",
            "done after": f"{run['evaluated']:.1f} s",
            "first line after": f"{run['first_line']:.1f} s",
        }
        for seed, run in runs.items()
    }
    first = next(iter(runs.values()))
    print_table(f"seed ({first['parameters'] / 1e6:.1f} M parameters, {first['problems']:,.0f} puzzles, T = 1)", rows)
    print()
    ends = {f"first {ENDS} steps": "first_steps", f"last {ENDS} steps": "last_steps"}
    phases = {
        name.removeprefix("timing_s/"): {
            title: f"{fmean(run[end].get(name, math.nan) for run in runs.values()):.3f} s"
            for title, end in ends.items()
        }
        for name in sorted({name for run in runs.values() for name in run["last_steps"]})
    }
    if phases:
        print_table("phase of a step, mean over seeds", phases)
        print()
    before, within, gain, *times = (
        [run[key] for run in runs.values()]
        for key in ("before", "within", "gain", "command", "evaluated", "first_line")
    )
    whole, evaluated, first_line = (f"{max(seconds):.1f} s" for seconds in times)
    worst = {
        "least gain": f"{min(gain):.1f} points",
        "longest run": whole,
        "evaluated after": evaluated,
        "first line after": first_line,
        "before": f"{100 * min(before):.1f} to {100 * max(before):.1f}%",
        f"within {minutes:g} min": f"{100 * min(within):.1f}%",
    }
    print_table("worst seed", {what: {"result": cell} for what, cell in worst.items()})


def main(
    overrides: Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE", help="settings of the runs")] = None,
    model: Annotated[str, typer.Option(help="tiny; default = warm-started first; or the directory of one")] = "tiny",
    seeds: Annotated[str, typer.Option(help="seeds of the runs, separated by commas")] = "0,1,2",
    steps: Annotated[int | None, typer.Option(help="steps of each run", show_default="the model's")] = None,
    minutes: Annotated[float, typer.Option(help="of GRPO, after which the accuracy is shown")] = 4.0,
    limit: Annotated[float, typer.Option(help="seconds for everything; seeds left by then are not run")] = 3600,
    gpus: Annotated[int, typer.Option(help="concurrent runs, each on its own GPU")] = 1,
    output: Annotated[
        Path | None, typer.Option(help="directory for model, runs, results.json, curves.png", show_default="a new one")
    ] = None,
) -> None:
    """Train a small model for several seeds, and measure what it learns and how long it takes."""
    began, deadline = time.monotonic(), time.monotonic() + limit - GRACE_SECONDS
    directory = output or Path(mkdtemp(prefix="learn-"))
    directory.mkdir(parents=True, exist_ok=True)
    chosen = [f"default_model.directory={directory / 'model'}"] if model == "default" else ["--model", model]
    arguments = ["--task", TASK, *chosen, *([] if steps is None else [f"run.steps={steps}"]), *(overrides or [])]
    about = {**print_machine(*VERSIONS), "device": device_name(), "arguments": arguments}
    numbers = [int(seed) for seed in seeds.split(",")]
    visible = [str(index % gpus) if gpus > 1 else None for index in range(len(numbers))]

    def run_seed(seed: int, gpu: str | None) -> tuple[int, Finished | None]:
        """If several runs find no warm-started model, the first makes it and the others wait for it."""
        left = deadline - time.monotonic()
        if left <= 0:
            print(f"seed {seed}: no time left", file=sys.stderr, flush=True)
            return seed, None
        words = [*arguments, f"run.seed={seed}", "--output", str(directory / f"seed_{seed}")]
        return seed, train(words, f"seed {seed}", limit=left, grace=GRACE_SECONDS, gpu=gpu)

    runs: dict[int, dict[str, Any]] = {}
    metrics: dict[int, list[dict[str, Any]]] = {}
    failed = []
    for seed, command in ThreadPoolExecutor(gpus).map(run_seed, numbers, visible):
        rows = metrics_of(directory / f"seed_{seed}")
        failed += [seed] if command and command.code not in (0, KILLED) else []
        if command is None or not rows:
            continue
        metrics[seed], runs[seed] = rows, learning(rows, command, minutes)
        content = {**about, "seconds": time.monotonic() - began, "seeds": runs}
        (directory / "results.json").write_text(json.dumps(content, indent=1), encoding="utf-8")
    if failed or not runs:
        sys.exit(f"training failed with seed {failed[0]} (see above)" if failed else "nothing was measured in time")
    for card in sorted((directory / "model").glob("*/README.md")):
        print(card.read_text(encoding="utf-8"))
    print_results(runs, minutes)
    if all(rows[-1]["step"] for rows in metrics.values()):
        plot_curves(metrics, directory / "curves.png")
    used = os.times()
    seconds = f"{time.monotonic() - began:.0f} s in all, {used.children_user + used.children_system:.0f} s of CPU time"
    print(f"\n{about['device']}; results and curves: {directory}; {seconds}", flush=True)


if __name__ == "__main__":
    typer.run(main)
