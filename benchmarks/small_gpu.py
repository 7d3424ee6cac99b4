"""What a small model of one's own learns on one GPU: warm-started once, then trained by GRPO for several seeds.

    python benchmarks/small_gpu.py [--seeds 0,1,2] [--gpus N] [--limit SECONDS] [--output DIR] [KEY=VALUE …]

Does what `tinyzero train --task countdown` does on a GPU, one seed after another, or with --gpus several at a time.
Held-out accuracy on 1,024 puzzles, sampled at temperature 1. Targets, for every seed, on one H200: from 10 to 40 % to
at least 82 % within 4 minutes of GRPO. Words are settings of the runs: `algorithm.kl_coefficient=0`,
`default_model.seconds=60`. `--model DIR` takes a model of `tinyzero warmstart` instead. What is done is written to DIR
after each seed.
"""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import fmean
from tempfile import mkdtemp
from typing import Annotated, Any

import typer

from benchmarks.common import TINYZERO, machine, print_machine, print_table
from benchmarks.learn import TASK, TRAINING_SECONDS, TRAINING_TOKENS, draw
from tinyzero_trainer.monitoring.metrics_log import held_out_key, read_metrics, size_key

VERSIONS = ("tinyzero-trainer", "tinyzero-countdown", "torch", "transformers")
TARGETS = {"before": "10 to 40 %", "within the time": "82 %"}
ENDS = 30
"""Steps at the beginning and the end of a run whose times are compared."""

GRACE_SECONDS = 30.0
"""For a run that was told to stop; then it is killed."""


def train(words: list[str], deadline: float, label: str, card: str | None = None) -> bool:
    """Run `tinyzero train`, its output with the time in front; False if it failed or the deadline ended it.

    Args:
        words: after `train`.
        deadline: by `time.monotonic`.
        label: in front of each line.
        card: the GPU that it sees; None = all.
    """
    started = time.monotonic()
    command = [*TINYZERO, "train", *words]
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", **({} if card is None else {"CUDA_VISIBLE_DEVICES": card})}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as process:
        stopped = False
        for line in _lines(process, deadline):
            if line is None:
                stopped = True
                process.send_signal(signal.SIGTERM)  # it saves what it has
                threading.Timer(GRACE_SECONDS, process.kill).start()
                print(f"{label}: the limit is reached, stopping", file=sys.stderr, flush=True)
                continue
            print(f"{label}, {time.monotonic() - started:5.1f} s: {line}", end="", file=sys.stderr, flush=True)
    if process.returncode and not stopped:
        print(f"{label}: tinyzero train {' '.join(words)} failed (see above)", file=sys.stderr, flush=True)
    return process.returncode == 0


def _lines(process: "subprocess.Popen[str]", deadline: float) -> Iterator[str | None]:
    """What a process prints; None once, at the deadline."""
    lines: queue.Queue[str | None] = queue.Queue()
    assert process.stdout is not None
    stream = process.stdout

    def read() -> None:
        for line in stream:
            lines.put(line)
        lines.put(None)

    threading.Thread(target=read, daemon=True).start()
    told = False
    while True:
        try:
            line = lines.get(timeout=None if told else max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            told = True
            yield None
            continue
        if line is None:
            return
        yield line


def outcome(rows: list[dict[str, Any]], minutes: float) -> dict[str, Any]:
    """What the metrics of a run say; a run that was stopped early has no `after`.

    Args:
        rows: from step 0 on.
        minutes: of training, in which the target is to be reached.
    """
    accuracy, size = held_out_key(TASK), size_key(TASK)
    curve = [
        {
            "step": row["step"],
            "seconds": row.get(TRAINING_SECONDS, 0.0),
            "tokens": row.get(TRAINING_TOKENS, 0.0),
            "accuracy": row[accuracy],
            "problems": row[size],
        }
        for row in rows
        if accuracy in row
    ]
    in_time = [point for point in curve if point["seconds"] <= 60 * minutes]
    steps = [row for row in rows if row["step"]]
    return {
        "parameters": rows[0].get("model/parameters"),
        "problems": curve[0]["problems"],
        "before": curve[0]["accuracy"],
        "after": curve[-1]["accuracy"],
        "within_minutes": minutes,
        "within": in_time[-1]["accuracy"],
        "steps": rows[-1]["step"],
        "seconds": rows[-1].get(TRAINING_SECONDS, 0.0),
        "tokens": rows[-1].get(TRAINING_TOKENS, 0.0),
        "curve": curve,
        "first_steps": _means(steps[:ENDS]),
        "last_steps": _means(steps[-ENDS:]),
    }


def _means(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Means of times and rates over those of the steps that have them; of the evaluations nothing."""
    names = sorted({name for row in rows for name in row if name.startswith(("timing_s/", "perf/"))})
    return {
        name: fmean(values)
        for name in names
        if name != "timing_s/testing" and (values := [row[name] for row in rows if row.get(name) is not None])
    }


def print_results(found: dict[int, dict[str, Any]], minutes: float) -> None:
    """A row for each seed, where the time of a step goes, and the verdict: the worst of each."""
    within = f"within {minutes:g} min"
    rows = {
        str(seed): {
            "before": _percent(run["before"], run["problems"]),
            within: _percent(run["within"], run["problems"]),
            "after": _percent(run["after"], run["problems"]),
            "GRPO": f"{run['seconds']:.0f} s",
            "steps": f"{run['steps']}",
            "tokens": f"{run['tokens'] / 1e6:.1f} M",
        }
        for seed, run in found.items()
    }
    first = next(iter(found.values()))
    print_table(f"seed ({first['parameters'] / 1e6:.1f} M parameters, {first['problems']:,.0f} puzzles, T = 1)", rows)
    print()
    phases = {
        name.removeprefix("timing_s/"): {
            f"first {ENDS} steps": f"{_mean(found, 'first_steps', name):.3f} s",
            f"last {ENDS} steps": f"{_mean(found, 'last_steps', name):.3f} s",
        }
        for name in sorted({name for run in found.values() for name in run["last_steps"] if "timing_s/" in name})
    }
    if phases:
        print_table("part of a step, mean over seeds", phases)
    worst = {
        "before": f"{min(100 * run['before'] for run in found.values()):.1f} to "
        f"{max(100 * run['before'] for run in found.values()):.1f} %",
        "within the time": f"{min(100 * run['within'] for run in found.values()):.1f} %",
    }
    print("; ".join(f"{what} {value} (target {TARGETS[what]})" for what, value in worst.items()), flush=True)


def _percent(share: float, problems: float) -> str:
    return f"{100 * share:.1f} ± {100 * (share * (1 - share) / problems) ** 0.5:.1f} %"


def _mean(found: dict[int, dict[str, Any]], steps: str, name: str) -> float:
    values = [run[steps][name] for run in found.values() if name in run[steps]]
    return fmean(values) if values else float("nan")


def device_name() -> str:
    """The GPU by nvidia-smi, with the driver; `CPU` without one."""
    command = ("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return "CPU"
    return done.stdout.strip().splitlines()[0] if done.stdout.strip() else "CPU"


def main(
    words: Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE", help="settings of the runs")] = None,
    seeds: Annotated[str, typer.Option(help="seeds of the runs, with commas between them")] = "0,1,2",
    steps: Annotated[int | None, typer.Option(help="steps of each run", show_default="what suits the model")] = None,
    minutes: Annotated[float, typer.Option(help="of GRPO, in which the target is to be reached")] = 4.0,
    limit: Annotated[float, typer.Option(help="seconds for everything; what has not been done by then is left")] = 1500,
    model: Annotated[
        Path | None, typer.Option(help="model to train", show_default="one that is warm-started first")
    ] = None,
    gpus: Annotated[int, typer.Option(help="seeds at a time, each on a GPU of its own")] = 1,
    output: Annotated[
        Path | None, typer.Option(help="directory for model, runs, results.json, curves.png", show_default="a new one")
    ] = None,
) -> None:
    """Make a small model, train it for several seeds, and measure what it learns and where the time goes."""
    began, deadline = time.monotonic(), time.monotonic() + limit - GRACE_SECONDS
    print_machine(*VERSIONS)
    directory = output or Path(mkdtemp(prefix="small-gpu-"))
    directory.mkdir(parents=True, exist_ok=True)
    chosen = ["--model", str(model)] if model else [f"default_model.directory={directory / 'model'}"]
    common = ["--task", TASK, *chosen, *([] if steps is None else [f"run.steps={steps}"]), *(words or [])]
    found: dict[int, dict[str, Any]] = {}
    metrics: dict[int, list[dict[str, Any]]] = {}
    about = {**machine(*VERSIONS), "device": device_name(), "words": common}
    numbers = [int(seed) for seed in seeds.split(",")]
    cards = [str(place % gpus) if gpus > 1 else None for place in range(len(numbers))]

    def run_seed(seed: int, card: str | None) -> tuple[int, bool, list[dict[str, Any]]]:
        if time.monotonic() >= deadline:
            print(f"seed {seed}: no time left", file=sys.stderr, flush=True)
            return seed, False, []
        run = directory / f"seed_{seed}"
        # Of several that find no model the first makes it, and the others wait.
        whole = train([*common, f"run.seed={seed}", "--output", str(run)], deadline, f"seed {seed}", card)
        return seed, whole, read_metrics(run / "metrics.jsonl") if (run / "metrics.jsonl").exists() else []

    for seed, whole, rows in ThreadPoolExecutor(gpus).map(run_seed, numbers, cards):
        if not rows:
            continue
        metrics[seed], found[seed] = rows, outcome(rows, minutes) | {"whole": whole}
        content = {**about, "seconds": time.monotonic() - began, "seeds": found}
        (directory / "results.json").write_text(json.dumps(content, indent=1), encoding="utf-8")
        after = {key: round(found[seed][key], 4) for key in ("before", "within", "after", "seconds")}
        print(f"seed {seed}: {after}", file=sys.stderr, flush=True)
    if not found:
        sys.exit("nothing was measured within the limit")
    for card in sorted((directory / "model").glob("*/README.md")):
        print(card.read_text(encoding="utf-8"))
    print_results(found, minutes)
    if all(rows[-1]["step"] for rows in metrics.values()):
        draw(metrics, directory / "curves.png")
    print(f"\n{about['device']}; results and curves: {directory}; {time.monotonic() - began:.0f} s in all", flush=True)


if __name__ == "__main__":
    typer.run(main)
