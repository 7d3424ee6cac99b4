"""Two tasks in one run: a small model is warm-started on countdown and multiply, then trained on both, 2 : 1.

    python benchmarks/two_tasks.py [--seeds 0] [--steps 40] [--device cpu] [--output DIR]

The warm start takes three minutes on an H200 and much longer without a GPU; an --output that holds its
model already does not repeat it. Held-out accuracy of each task before and after, sampled at temperature 1.
"""

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from benchmarks.common import TINYZERO, print_machine, print_table
from benchmarks.training import Run, run_all
from tinyzero_trainer.monitoring.metrics_log import size_key

TASKS = ("--task", "countdown:2", "--task", "multiply:1")
PROBLEMS = (
    "tasks.countdown.options.numbers=[3]",
    "tasks.countdown.options.number_range=[1,20]",
    "tasks.countdown.options.target_range=[1,50]",
    "tasks.multiply.options.digits=[2,2]",
    "training.test_fraction=0.125",
)
TRAINING = ("training.steps=4000", "training.batch_size=384", "training.max_tokens=128", "training.eval_size=512")
SETTINGS = (
    "settings.optimizer.learning_rate=2e-4",
    "settings.optimizer.beta2=0.99",
    "settings.optimizer.num_mini_batches=2",
    "settings.optimizer.micro_batch_tokens=2048",
    "settings.algorithm.kl_coefficient=0.1",
    "settings.algorithm.kl_estimator=exact",
)


def warm_start(model: Path, device: str) -> None:
    """Make the model, unless it is there."""
    if model.exists():
        return
    words = (*TASKS, "--output", str(model), *PROBLEMS, *TRAINING, *SETTINGS, f"run.device={device}")
    subprocess.run([*TINYZERO, "warmstart", *words], check=True)


def task_row(runs: list[Run], task: str) -> dict[str, str]:
    """Held-out accuracy of a task in every run."""
    rows, pairs = runs[0].rows, [run.held_out(task) for run in runs]
    return {
        "problems": f"{rows[-1][size_key(task)]:.0f}",
        "before": ", ".join(f"{before:.1f}" for before, _ in pairs) + " %",
        "after": ", ".join(f"{after:.1f}" for _, after in pairs) + " %",
        "mean problems per step": f"{sum(runs[0].series(f'task/{task}/prompts')) / (len(rows) - 1):.1f}",
    }


def main(
    seeds: Annotated[str, typer.Option(help="seeds of the runs, with commas between them")] = "0",
    steps: Annotated[int, typer.Option(help="training steps of each run")] = 40,
    device: Annotated[str, typer.Option(help="cpu or cuda; of the warm start, training is on the CPU")] = "cpu",
    output: Annotated[Path | None, typer.Option(help="directory that keeps model and runs")] = None,
) -> None:
    """Warm-start a model on two tasks, and train it on both."""
    print_machine("tinyzero-trainer", "tinyzero-countdown", "tinyzero-multiply", "torch", "transformers")
    with TemporaryDirectory() as folder:
        directory = output or Path(folder)
        warm_start(directory / "model", device)
        words = [*TASKS, "--model", str(directory / "model"), f"run.steps={steps}", "run.device=cpu"]
        words += ["eval.num_problems=512", "eval.every=0", "eval.greedy=false"]
        runs = run_all({"run": words}, seeds, directory, jobs=seeds.count(",") + 1)["run"]
    print_table(
        f"held-out accuracy, {steps} steps, seeds {seeds}",
        {task: task_row(runs, task) for task in ("countdown", "multiply")},
    )
    if fallen := [
        task for task in ("countdown", "multiply") for run in runs if run.held_out(task)[1] <= run.held_out(task)[0]
    ]:
        sys.exit(f"no higher accuracy on {', '.join(fallen)}")


if __name__ == "__main__":
    typer.run(main)
