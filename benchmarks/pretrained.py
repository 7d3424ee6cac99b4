"""A pretrained chat model before and after supervised fine-tuning, and after GRPO, for several tasks and seeds.

    python benchmarks/pretrained.py --model DIR [--tasks countdown,multiply,gsm8k] [--seeds 0,1,2] [--gpus N]
        [--gsm8k FOLDER] [--limit SECONDS] [--output DIR] [train:KEY=VALUE …] [sft:KEY=VALUE …]

Held-out problems, sampled at temperature 1 and greedily; 95 % intervals (Wilson). Each run is two commands, `tinyzero
sft` and `tinyzero train`, whose seconds are from their start to their end. One that reaches the limit saves a
checkpoint, and the same command resumes it. GSM8K is read from FOLDER: train.jsonl and test.jsonl, as published.
Targets for SmolLM2-135M-Instruct on one H200: countdown at least 80 % within 20 minutes, multiply at least 90 %.
"""

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from queue import SimpleQueue
from tempfile import mkdtemp
from typing import Annotated, Any

import typer

from benchmarks.commands import KILLED, run
from benchmarks.common import TINYZERO, print_machine, print_table
from benchmarks.training import COLORS, metrics_of
from tinyzero_sdk.scoring.statistics import wilson
from tinyzero_trainer.monitoring.metrics_log import held_out_key, size_key

VERSIONS = ("tinyzero-trainer", "torch", "transformers")
GRACE_SECONDS = 40.0  # in which a run that reaches the limit may save a checkpoint
COMMANDS, POINTS = ("sft", "train"), ("before", "after sft", "after GRPO")
COMMON = {
    "sft": ["data.batch_size=256", "optimizer.learning_rate=5e-4", "checkpoint.every=100"],
    "train": [
        *("data.prompts_per_step=128", "rollout.group_size=16", "rollout.return_logprobs=always"),
        *("optimizer.num_mini_batches=4", "optimizer.learning_rate=4e-5", "optimizer.lr_schedule=cosine"),
        *("reward.num_workers=4", "checkpoint.every=0", "eval.num_problems_during=512"),
    ],
}
RECIPES: dict[str, dict[str, list[str]]] = {
    "countdown": {
        "sft": ["run.steps=300", "data.max_length=1200", "rollout.max_completion_tokens=1024", "eval.every=100"],
        "train": ["run.steps=40", "eval.every=10"],
    },
    "multiply": {
        "sft": ["run.steps=1000", "rollout.max_completion_tokens=128", "eval.every=250"],
        "train": ["run.steps=40", "eval.every=10"],
    },
    "gsm8k": {
        "sft": ["run.steps=90", "data.hook=solve", "rollout.max_completion_tokens=400", "eval.every=30"],
        "train": ["run.steps=40", "eval.every=10"],
    },
}
"""Settings of the two commands for each task; the model's own chat template, and the task's options as they are."""


class Runs:
    """The runs of one model, in one directory."""

    def __init__(self, model: Path, directory: Path, gsm8k: Path | None, overrides: list[str], limit: float) -> None:
        self.model, self.directory, self.gsm8k, self.overrides = model, directory, gsm8k, overrides
        self.deadline = time.monotonic() + limit - GRACE_SECONDS

    def take(self, task: str, seed: int, gpu: str) -> bool:
        """Run both commands, or what is left of them; False if the time was over."""
        place = self.directory / f"{task}-{seed}"
        for command in COMMANDS:
            output = place / command
            if (output / "done").exists():
                continue
            if (left := self.deadline - time.monotonic()) <= 0:
                return False
            words = self._words(task, command, seed, output)
            finished = run(
                [*TINYZERO, command, *words],
                left,
                grace=GRACE_SECONDS,
                on_line=lambda seconds, line, of=f"{task}-{seed} {command}": print(f"{of} {seconds:5.1f} s: {line}"),
                env={"CUDA_VISIBLE_DEVICES": gpu},
            )
            with (place / "seconds.jsonl").open("a") as file:
                file.write(json.dumps({"command": command, "seconds": finished.seconds}) + "\n")
            if finished.code:
                if finished.code in (KILLED, 143):
                    return False
                sys.exit(f"{task}, seed {seed}: tinyzero {command} failed")
            (output / "done").touch()
        return True

    def _words(self, task: str, command: str, seed: int, output: Path) -> list[str]:
        if (output / "checkpoints").is_dir() and any((output / "checkpoints").iterdir()):
            return ["--output", str(output), "--resume"]
        output.parent.mkdir(parents=True, exist_ok=True)
        model = self.model if command == "sft" else output.parent / "sft"
        own = [f"task.path={self.gsm8k}", "eval.num_problems=1319"] if task == "gsm8k" else ["eval.num_problems=1024"]
        chosen = [*COMMON[command], *RECIPES[task][command], f"run.seed={seed}", *own]
        of_command = [word.partition(":")[2] for word in self.overrides if word.startswith(f"{command}:")]
        settings = dict(word.split("=", 1) for word in [*chosen, *of_command])
        words = [f"{key}={value}" for key, value in settings.items()]
        return ["--task", task, "--model", str(model), "--output", str(output), *words]

    def result(self, task: str, seed: int) -> dict[str, Any] | None:
        """Accuracies and seconds of a run; None before its first evaluation."""
        place = self.directory / f"{task}-{seed}"
        rows = {command: metrics_of(place / command) for command in COMMANDS}
        measured = {command: [row for row in found if held_out_key(task) in row] for command, found in rows.items()}
        if not measured["sft"]:
            return None
        ends = [measured["sft"][0], measured["sft"][-1], *measured["train"][-1:]]
        spent = [json.loads(line) for line in (place / "seconds.jsonl").read_text().splitlines()]
        curve: list[list[float]] = []
        offset = 0.0
        for found in measured.values():
            curve += [[offset + row.get("time/elapsed_s", 0.0), row[held_out_key(task)]] for row in found]
            offset = curve[-1][0] if curve else 0.0
        return {
            "task": task,
            "seed": seed,
            "points": {name: point(row, task) for name, row in zip(POINTS, ends, strict=False)},
            "seconds": {name: sum(one["seconds"] for one in spent if one["command"] == name) for name in COMMANDS},
            "steps": {command: found[-1]["step"] if found else 0 for command, found in rows.items()},
            "curve": curve,
        }


def point(row: dict[str, Any], task: str) -> dict[str, float]:
    """Accuracy at temperature 1 with its interval, and greedily where it was measured."""
    accuracy, problems = row[held_out_key(task)], row[size_key(task)]
    low, high = wilson(accuracy, problems)
    greedy = row.get(f"val-aux/{task}/acc_greedy/mean@1")
    found = {"accuracy": accuracy, "low": low, "high": high, "problems": problems}
    return found if greedy is None else {**found, "greedy": greedy}


def print_results(results: list[dict[str, Any]]) -> None:
    """A row for each run."""

    def cell(found: dict[str, float] | None) -> str:
        if found is None:
            return "-"
        greedy = f", greedy {100 * found['greedy']:.1f}" if "greedy" in found else ""
        return f"{100 * found['accuracy']:.1f} % ({100 * found['low']:.1f} to {100 * found['high']:.1f}{greedy})"

    rows = {
        f"{one['task']}, seed {one['seed']}": {
            **{name: cell(one["points"].get(name)) for name in POINTS},
            "sft": f"{one['steps']['sft']} steps, {one['seconds']['sft']:.0f} s",
            "GRPO": f"{one['steps']['train']} steps, {one['seconds']['train']:.0f} s",
            "all told": f"{sum(one['seconds'].values()) / 60:.1f} min",
        }
        for one in results
    }
    print_table("held-out accuracy at T = 1", rows)


def plot(results: list[dict[str, Any]], file: Path) -> None:
    """Accuracy over seconds of training, a panel for each task and a line for each seed."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    tasks = list(dict.fromkeys(one["task"] for one in results))
    figure = Figure(figsize=(4.5 * len(tasks), 3.6), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(tasks), squeeze=False)[0]
    for panel, task in zip(panels, tasks, strict=True):
        for one, color in zip((one for one in results if one["task"] == task), COLORS, strict=False):
            seconds, accuracy = zip(*one["curve"], strict=True)
            label = f"seed {one['seed']}"
            panel.plot(
                [second / 60 for second in seconds], [100 * a for a in accuracy], "o-", ms=3, color=color, label=label
            )
        panel.set_title(task, loc="left", fontweight="bold")
        panel.set_xlabel("minutes of training, sft and then GRPO")
        panel.set_ylim(0, 100)
        panel.grid(alpha=0.25)
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("held-out accuracy (%)")
    panels[0].legend(frameon=False)
    figure.savefig(file)


def main(
    model: Annotated[Path, typer.Option(help="directory of the pretrained model")],
    overrides: Annotated[list[str] | None, typer.Argument(metavar="COMMAND:KEY=VALUE")] = None,
    tasks: Annotated[str, typer.Option(help="separated by commas")] = "countdown,multiply",
    seeds: Annotated[str, typer.Option(help="separated by commas")] = "0,1,2",
    gsm8k: Annotated[Path | None, typer.Option(help="folder of the published GSM8K")] = None,
    gpus: Annotated[int, typer.Option(help="concurrent runs, each on its own GPU")] = 1,
    limit: Annotated[float, typer.Option(help="seconds for everything; the same command goes on afterwards")] = 7200,
    output: Annotated[Path | None, typer.Option(help="directory of the runs", show_default="a new one")] = None,
) -> None:
    """Fine-tune and train a pretrained model, and measure what it learns and how long it takes."""
    directory = output or Path(mkdtemp(prefix="pretrained-"))
    directory.mkdir(parents=True, exist_ok=True)
    about = {**print_machine(*VERSIONS), "model": str(model)}
    runs = Runs(model, directory, gsm8k, overrides or [], limit)
    free: SimpleQueue[str] = SimpleQueue()
    for gpu in range(gpus):
        free.put(str(gpu))

    def take(job: tuple[str, str]) -> bool:
        gpu = free.get()
        try:
            return runs.take(job[0], int(job[1]), gpu)
        finally:
            free.put(gpu)

    jobs = list(product(tasks.split(","), seeds.split(",")))
    with ThreadPoolExecutor(gpus) as pool:
        whole = all(list(pool.map(take, jobs)))
    results = [found for task, seed in jobs if (found := runs.result(task, int(seed))) is not None]
    (directory / "results.json").write_text(json.dumps({**about, "runs": results}, indent=1), encoding="utf-8")
    print_results(results)
    plot(results, directory / "curves.png")
    if not whole:
        sys.exit("the time was over: the same command goes on")


if __name__ == "__main__":
    typer.run(main)
