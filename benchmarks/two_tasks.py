"""Two tasks in one run: a small model is warm-started on countdown and multiply, then trained on both, 2 : 1.

    python benchmarks/two_tasks.py [--seeds 0] [--steps 40] [--device cpu] [--output DIR]

The warm start takes three minutes on an H200 and much longer without a GPU; it is not repeated if DIR already holds its
model. Held-out accuracy of each task before and after, sampled at temperature 1.
"""

import subprocess
import sys
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from benchmarks.common import TINYZERO, print_machine, print_table
from benchmarks.training import Run, run_all

TASKS = ("--task", "countdown:2", "--task", "multiply:1")
WARM_START = (
    "tasks.countdown.options.numbers=[3]",
    "tasks.countdown.options.number_range=[1,20]",
    "tasks.countdown.options.target_range=[1,50]",
    "tasks.multiply.options.digits=[2,2]",
    "training.test_fraction=0.125",
    *("training.steps=4000", "training.batch_size=384", "training.max_tokens=128", "training.eval_size=512"),
    "settings.optimizer.learning_rate=2e-4",
    "settings.optimizer.beta2=0.99",
    "settings.optimizer.num_mini_batches=2",
    "settings.optimizer.micro_batch_tokens=2048",
    "settings.algorithm.kl_coefficient=0.1",
    "settings.algorithm.kl_estimator=exact",
)


def task_row(runs: list[Run], task: str) -> dict[str, str]:
    """Held-out accuracy of a task in every run."""
    accuracies, prompts = [run.held_out(task) for run in runs], runs[0].series(f"task/{task}/prompts")
    return {
        "problems": str(runs[0].problems(task)),
        "before": ", ".join(f"{before:.1f}" for before, _ in accuracies) + " %",
        "after": ", ".join(f"{after:.1f}" for _, after in accuracies) + " %",
        "mean problems per step": f"{fmean(prompts):.1f}",
    }


def main(
    seeds: Annotated[str, typer.Option(help="seeds of the runs, separated by commas")] = "0",
    steps: Annotated[int, typer.Option(help="training steps of each run")] = 40,
    device: Annotated[str, typer.Option(help="cpu or cuda, for the warm start; training is on the CPU")] = "cpu",
    output: Annotated[Path | None, typer.Option(help="directory that keeps the model and the runs")] = None,
) -> None:
    """Warm-start a model on two tasks, and train it on both."""
    print_machine("tinyzero-trainer", "tinyzero-countdown", "tinyzero-multiply", "torch", "transformers")
    with TemporaryDirectory() as folder:
        directory = output or Path(folder)
        model = directory / "model"
        if not model.exists():
            command = [*TINYZERO, "warmstart", *TASKS, "--output", str(model), *WARM_START, f"run.device={device}"]
            subprocess.run(command, check=True)
        arguments = [*TASKS, "--model", str(model), f"run.steps={steps}", "run.device=cpu"]
        arguments += ["eval.num_problems=512", "eval.every=0", "eval.greedy=false"]
        runs = run_all({"run": arguments}, seeds, directory, jobs=seeds.count(",") + 1)["run"]
    names = ("countdown", "multiply")
    print_table(f"held-out accuracy, {steps} steps, seeds {seeds}", {name: task_row(runs, name) for name in names})
    if fallen := [name for name in names for run in runs if run.held_out(name)[1] <= run.held_out(name)[0]]:
        sys.exit(f"no higher accuracy on {', '.join(fallen)}")


if __name__ == "__main__":
    typer.run(main)
