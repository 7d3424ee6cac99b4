"""A pretrained chat model before and after supervised fine-tuning, and after GRPO, for several tasks and seeds.

    python benchmarks/pretrained.py --model DIR [--recipes countdown,multiply,gsm8k,search,search-small] [--seeds 0,1,2]
        [--gpus 0,1] [--gsm8k FOLDER] [--limit SECONDS] [--output DIR] [train:KEY=VALUE …] [sft:KEY=VALUE …]

Held-out problems, sampled at temperature 1 and greedily; 95% intervals (Wilson). Each run is two commands, `tinyzero
sft` and `tinyzero train`, whose seconds are from their start to their end. One that reaches the limit saves a
checkpoint, and the same command resumes it. GSM8K is read from FOLDER: train.jsonl and test.jsonl, as published.
Targets for SmolLM2-135M-Instruct on one H200: countdown at least 80% within 20 minutes, multiply at least 90%.

`search` and `search-small` (a new decoder of 9.9M parameters) are on the terms of Stream of Search (arXiv 2404.03683):
countdown with four numbers and targets 10 to 100, a tenth of which is never trained on; held-out puzzles, and puzzles
with held-out targets. Published for 250M parameters, after policy improvement: 56.5% and 54.2%, greedily with up to
4,096 tokens (eval_neo.py of its repository).
"""

import json
import sys
import time
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from queue import SimpleQueue
from random import Random
from tempfile import mkdtemp
from typing import Annotated, Any, Literal

import typer

from benchmarks.commands import KILLED, run
from benchmarks.common import TINYZERO, print_machine, print_table
from benchmarks.training import COLORS, metrics_of
from tinyzero_sdk import load_task
from tinyzero_sdk.scoring.statistics import wilson
from tinyzero_sdk.settings import flatten, format_value, to_mapping
from tinyzero_trainer.config import DefaultModelConfig
from tinyzero_trainer.models.new_model import default_shape
from tinyzero_trainer.monitoring.metrics_log import held_out_key, size_key
from tinyzero_trainer.sft.default_model import PRESET

VERSIONS = ("tinyzero-trainer", "torch", "transformers")
GRACE_SECONDS = 40.0  # in which a run that reaches the limit may save a checkpoint
POINTS = ("before", "after sft", "after GRPO")
SFT = ["data.batch_size=128", "optimizer.learning_rate=5e-4", "checkpoint.every=400", "eval.num_problems=1024"]
GRPO = [
    *("data.prompts_per_step=128", "rollout.group_size=16", "rollout.return_logprobs=always"),
    *("optimizer.num_mini_batches=4", "optimizer.learning_rate=2e-5", "optimizer.lr_schedule=cosine"),
    *("reward.num_workers=4", "checkpoint.every=0", "eval.every=10", "eval.num_problems_during=512"),
]
SEARCH = ["run.steps=800", "data.max_length=1700", "rollout.max_completion_tokens=1536", "eval.every=400"]
PRODUCTS = ["data.hook=solve", "data.batch_size=256", "run.steps=800", "rollout.max_completion_tokens=128"]
GSM8K = ["task.path={gsm8k}", "eval.num_problems=1319"]
FOUR = "task.numbers=[4]"
PUZZLES = ["data.path={files}/train.jsonl", "data.test_path={files}/test.jsonl"]
SIZES = {"train": 120_000, "test": 12_000}  # puzzles of four numbers, before the targets are divided
COMPACT = "data.path={files}/compact.jsonl"
TARGETS = [FOUR, "data.test_path={files}/targets.jsonl"]
WHOLE = [*TARGETS, "rollout.max_completion_tokens=4096"]
_SHAPE = to_mapping(default_shape(DefaultModelConfig()))
SMALL = [
    f"{key}={format_value(value)}"
    for key, value in flatten({**PRESET["sft"], "settings": PRESET["settings"], "new_model": _SHAPE})
]
"""Settings of the default model, and of its reinforcement learning."""


@dataclass(frozen=True)
class Recipe:
    """Commands with their settings, in order; the model's own chat template and the task's own options if not given."""

    task: str
    commands: dict[str, list[str]]
    pretrained: bool = True
    """Otherwise a new decoder, as `tinyzero train` makes it on a GPU where none is named."""


RECIPES = {
    "countdown": Recipe("countdown", {"sft": [*SFT, *SEARCH], "train": [*GRPO, "run.steps=20"]}),
    "multiply": Recipe(
        "multiply",
        {
            "sft": [*SFT, *PRODUCTS, "eval.every=400"],
            "train": [*GRPO, "run.steps=20", "optimizer.learning_rate=1e-5"],
        },
    ),
    "gsm8k": Recipe(
        "gsm8k",
        {
            "sft": [*SFT, *GSM8K, "run.steps=180", "rollout.max_completion_tokens=400", "eval.every=60"],
            "train": [*GRPO, *GSM8K, "run.steps=60", "optimizer.learning_rate=4e-5"],
        },
    ),
    "search": Recipe(
        "countdown",
        {
            "sft": [*SFT, *SEARCH, FOUR, "data.path={files}/chat.jsonl", "run.steps=1200", "eval.every=600"],
            "train": [*GRPO, FOUR, *PUZZLES, "rollout.group_size=8", "run.steps=12", "eval.every=6"],
            "eval": WHOLE,
            "eval greedily": WHOLE,
        },
    ),
    "search-small": Recipe(
        "countdown",
        {
            "warmstart": [FOUR, COMPACT, "data.test_fraction=0.0625", "run.steps=1600", *SMALL],
            "train": [FOUR, *PUZZLES, "run.steps=60", "eval.every=20"],
            "eval": TARGETS,
            "eval greedily": TARGETS,
        },
        pretrained=False,
    ),
}


class Runs:
    """The runs of one model, in one directory."""

    def __init__(self, model: Path, directory: Path, gsm8k: Path | None, overrides: list[str], limit: float) -> None:
        self.model, self.directory, self.overrides = model, directory, overrides
        self.places = {"gsm8k": gsm8k, "files": directory / "files"}
        self.deadline = time.monotonic() + limit - GRACE_SECONDS

    def take(self, name: str, seed: int, gpu: str) -> bool:
        """Run all commands of a recipe, or what is left of them; False if the time was over."""
        place = self.directory / f"{name}-{seed}"
        place.mkdir(parents=True, exist_ok=True)
        for command in RECIPES[name].commands:
            output = place / command
            if (place / f"{command}.done").exists():
                continue
            if (left := self.deadline - time.monotonic()) <= 0:
                return False

            def show(seconds: float, line: str, title: str = f"{name}-{seed} {command}") -> None:
                print(f"{title} {seconds:5.1f} s: {line}")

            finished = run(
                [*TINYZERO, command.split()[0], *self._words(name, command, seed, output)],
                left,
                grace=GRACE_SECONDS,
                on_line=show,
                env={"CUDA_VISIBLE_DEVICES": gpu},
            )
            with (place / "seconds.jsonl").open("a") as file:
                file.write(json.dumps({"command": command, "seconds": finished.seconds}) + "\n")
            if finished.code:
                if finished.code in (KILLED, 143):
                    return False
                sys.exit(f"{name}, seed {seed}: tinyzero {command} failed")
            (place / f"{command}.done").write_text(finished.output)
        return True

    def _words(self, name: str, command: str, seed: int, output: Path) -> list[str]:
        if (output / "checkpoints").is_dir() and any((output / "checkpoints").iterdir()):
            return ["--output", str(output), "--resume"]
        recipe = RECIPES[name]
        first = next(iter(recipe.commands))
        verb, *greedily = command.split()
        model = {first: self.model, "train": output.parent / first, "eval": output.parent / "train"}[verb]
        of_command = [word.partition(":")[2] for word in self.overrides if word.startswith(f"{verb}:")]
        chosen = [word.format_map(self.places) for word in recipe.commands[command]]
        settings = dict(word.split("=", 1) for word in [*chosen, f"run.seed={seed}", *of_command])
        words = ["--task", recipe.task, *(f"{key}={value}" for key, value in settings.items())]
        words += ["--json"] if verb == "eval" else ["--output", str(output)]
        words += ["--temperature", "0"] if greedily else []
        return words if command == "warmstart" else ["--model", str(model), *words]

    def result(self, name: str, seed: int) -> dict[str, Any] | None:
        """Accuracies and seconds of a run; None before its first evaluation."""
        place, recipe = self.directory / f"{name}-{seed}", RECIPES[name]
        first, key = next(iter(recipe.commands)), held_out_key(recipe.task)
        rows = {command: metrics_of(place / command) for command in (first, "train")}
        measured = {command: [row for row in found if key in row] for command, found in rows.items()}
        if not measured[first]:
            return None
        ends = [measured[first][0], measured[first][-1], *measured["train"][-1:]]
        points = {point: accuracy(row, recipe.task) for point, row in zip(POINTS, ends, strict=False)}
        if not recipe.pretrained:
            del points["before"]  # a new decoder is evaluated after its fine-tuning only
        if (file := place / "eval.done").exists():
            found = evaluated(file)
            low, high = wilson(found["accuracy"], found["problems"])
            points["held-out targets"] = {"accuracy": found["accuracy"], "low": low, "high": high}
            if (file := place / "eval greedily.done").exists():
                points["held-out targets"]["greedy"] = evaluated(file)["accuracy"]
        curve: list[list[float]] = []
        offset = 0.0
        for command in measured.values():
            curve += [[offset + row.get("time/elapsed_s", 0.0), row[key]] for row in command]
            offset = curve[-1][0] if curve else 0.0
        spent = [json.loads(line) for line in (place / "seconds.jsonl").read_text().splitlines()]
        return {
            "recipe": name,
            "seed": seed,
            "points": points,
            "seconds": {of: sum(one["seconds"] for one in spent if one["command"] == of) for of in rows},
            "steps": {command: found[-1]["step"] if found else 0 for command, found in rows.items()},
            "curve": curve,
        }


def make_files(directory: Path) -> None:
    """Puzzles of four numbers, a tenth of whose targets is never trained on, as in Stream of Search.

    Training puzzles, the same worked out for two prompt templates, held-out puzzles with the other targets, and puzzles
    with these.
    """
    if directory.exists():
        return
    rows: dict[str, list[str]] = {name: [] for name in ("train", "test", "targets", "chat", "compact")}
    parts = [(split, start) for split, size in SIZES.items() for start in range(0, size, PART)]
    with ProcessPoolExecutor() as pool:
        for found in pool.map(make_rows, *zip(*parts, strict=True)):
            for name, lines in found.items():
                rows[name] += lines
    directory.mkdir(parents=True)
    for name, lines in rows.items():
        kept = lines[:1024] if name in ("test", "targets") else lines
        (directory / f"{name}.jsonl").write_text("".join(kept), encoding="utf-8")


PART = 2_000  # puzzles


def make_rows(split: Literal["train", "test"], start: int) -> dict[str, list[str]]:
    """Of one part of a split, the lines for each file."""
    task = load_task("countdown", options={"numbers": [4]})
    held_out = set(Random(0).sample(range(10, 101), 9))
    rows: dict[str, list[str]] = defaultdict(list)
    for number, item in enumerate(task.dataset(split, PART, start=start), start):
        truth, key = item.ground_truth, task.item_key(item)
        is_trained = truth["target"] not in held_out
        if split == "test" or is_trained:
            row = {"data_source": "countdown", "ground_truth": truth, "extra_info": {"key": key}}
            rows[split if is_trained else "targets"].append(f"{json.dumps(row)}\n")
        if split == "train" and is_trained:
            completion = task.demonstrate(item, number)
            for template in ("chat", "compact"):
                example = {"prompt": task.make_prompt(item, template), "completion": completion}
                rows[template].append(f"{json.dumps(example)}\n")
    return rows


def evaluated(printed: Path) -> dict[str, Any]:
    """The summary that `tinyzero eval --json` printed."""
    text = printed.read_text()
    found: dict[str, Any] = json.JSONDecoder().raw_decode(text, text.index("{"))[0]
    return found


def accuracy(row: dict[str, Any], task: str) -> dict[str, float]:
    """Accuracy at temperature 1 with its interval, and greedily where it was measured."""
    found, problems = row[held_out_key(task)], row[size_key(task)]
    low, high = wilson(found, problems)
    greedy = row.get(f"val-aux/{task}/acc_greedy/mean@1")
    return {"accuracy": found, "low": low, "high": high, **({} if greedy is None else {"greedy": greedy})}


def print_results(results: list[dict[str, Any]]) -> None:
    """A row for each run."""
    names = list(dict.fromkeys(name for one in results for name in one["points"]))

    def cell(found: dict[str, float] | None) -> str:
        if found is None:
            return "-"
        greedy = f", greedy {100 * found['greedy']:.1f}" if "greedy" in found else ""
        return f"{100 * found['accuracy']:.1f}% ({100 * found['low']:.1f} to {100 * found['high']:.1f}{greedy})"

    rows = {
        f"{one['recipe']}, seed {one['seed']}": {
            **{name: cell(one["points"].get(name)) for name in names},
            **{command: f"{steps} steps, {one['seconds'][command]:.0f} s" for command, steps in one["steps"].items()},
            "all told": f"{sum(one['seconds'].values()) / 60:.1f} min",
        }
        for one in results
    }
    print_table("held-out accuracy at T = 1", rows)


def plot(results: list[dict[str, Any]], file: Path) -> None:
    """Accuracy over seconds of training, a panel for each task and a line for each seed."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    recipes = list(dict.fromkeys(one["recipe"] for one in results))
    figure = Figure(figsize=(4.5 * len(recipes), 3.6), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(recipes), squeeze=False)[0]
    for panel, recipe in zip(panels, recipes, strict=True):
        for one in (one for one in results if one["recipe"] == recipe):
            minutes = [second / 60 for second, _ in one["curve"]]
            percent = [100 * accuracy for _, accuracy in one["curve"]]
            color = COLORS[one["seed"] % len(COLORS)]
            panel.plot(minutes, percent, "o-", ms=3, color=color, label=f"seed {one['seed']}")
        panel.set_title(recipe, loc="left", fontweight="bold")
        panel.set_xlabel("minutes of training, sft and then GRPO")
        panel.set_ylim(0, 100 if panel.get_ylim()[1] > 50 else None)
        panel.grid(alpha=0.25)
        panel.spines[["top", "right"]].set_visible(False)
        panel.legend(frameon=False, loc="lower right")
    panels[0].set_ylabel("held-out accuracy (%)")
    figure.savefig(file)


def main(
    model: Annotated[Path, typer.Option(help="directory of the pretrained model")],
    overrides: Annotated[list[str] | None, typer.Argument(metavar="COMMAND:KEY=VALUE")] = None,
    recipes: Annotated[str, typer.Option(help=f"separated by commas: {', '.join(RECIPES)}")] = "countdown,multiply",
    seeds: Annotated[str, typer.Option(help="separated by commas")] = "0,1,2",
    gsm8k: Annotated[Path | None, typer.Option(help="folder of the published GSM8K")] = None,
    gpus: Annotated[str, typer.Option(help="separated by commas; each takes one run after the other")] = "0",
    limit: Annotated[float, typer.Option(help="seconds for everything; the same command goes on afterwards")] = 7200,
    output: Annotated[Path | None, typer.Option(help="directory of the runs", show_default="a new one")] = None,
) -> None:
    """Fine-tune and train a pretrained model, and measure what it learns and how long it takes."""
    directory = output or Path(mkdtemp(prefix="pretrained-"))
    directory.mkdir(parents=True, exist_ok=True)
    about = {**print_machine(*VERSIONS), "model": str(model)}
    runs = Runs(model, directory, gsm8k, overrides or [], limit)
    free: SimpleQueue[str] = SimpleQueue()
    for gpu in gpus.split(","):
        free.put(gpu)

    def take(job: tuple[str, str]) -> bool:
        gpu = free.get()
        try:
            return runs.take(job[0], int(job[1]), gpu)
        finally:
            free.put(gpu)

    jobs = list(product(recipes.split(","), seeds.split(",")))
    if any(name.startswith("search") for name, _ in jobs):
        make_files(directory / "files")
    with ThreadPoolExecutor(free.qsize()) as pool:
        whole = all(list(pool.map(take, jobs)))
    results = [found for name, seed in jobs if (found := runs.result(name, int(seed))) is not None]
    (directory / "results.json").write_text(json.dumps({**about, "runs": results}, indent=1), encoding="utf-8")
    print_results(results)
    plot(results, directory / "curves.png")
    if not whole:
        sys.exit("the time was over: the same command goes on")


if __name__ == "__main__":
    typer.run(main)
