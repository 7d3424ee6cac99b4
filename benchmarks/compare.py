"""Runs of a small model that differ in their settings, side by side: recipes, reported experiments, two tasks.

    python benchmarks/compare.py recipes [--recipes grpo,…] [--seeds 0,1,2] [--jobs 1] [--output DIR] [--write-docs]
    python benchmarks/compare.py ablations [--seeds 0,1,2] [--steps 100] [--device cuda] [--jobs 14] [--output DIR]
    python benchmarks/compare.py two-tasks [--seeds 0,1,2] [--device cuda] [--output DIR]

Run again with the same DIR, each repeats no finished run. Held-out accuracy is sampled at temperature 1.
"""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from tempfile import mkdtemp
from typing import Annotated, Any

import typer

from benchmarks.commands import run
from benchmarks.common import TINYZERO, machine, print_machine, print_table, table, with_content
from benchmarks.training import SECONDS, TASK, TOKENS, metrics_of
from tinyzero_sdk.scoring.statistics import student_t
from tinyzero_sdk.workers.process import count_cores
from tinyzero_trainer.config.recipes import recipe_names
from tinyzero_trainer.monitoring.metrics_log import ACCURACY, LENGTH, REWARD, held_out_key, size_key
from tinyzero_trainer.monitoring.plot import smooth

app = typer.Typer(help="Train a small model with several settings, and compare.", add_completion=False)

Seeds = Annotated[str, typer.Option(help="seeds of the runs, separated by commas")]
Steps = Annotated[int, typer.Option(help="training steps of each run")]
Jobs = Annotated[int, typer.Option(help="concurrent runs, which share the cores")]
Output = Annotated[
    Path | None, typer.Option(help="directory of the runs, which keeps finished ones", show_default="a new one")
]

VERSIONS = ("tinyzero-trainer", "tinyzero-countdown", "torch", "transformers")
EVALUATION = ("eval.every=0", "eval.greedy=false")
DOCS = Path(__file__).parents[1] / "docs"
ENDS = 5  # steps at the beginning and the end of a run whose mean reward is compared


@dataclass(frozen=True, slots=True)
class Run:
    """One run, by its metrics from step 0 to the last."""

    rows: list[dict[str, Any]]

    def series(self, name: str) -> list[float]:
        """A metric of every training step."""
        return [row[name] for row in self.rows[1:]]

    def ends(self, name: str) -> tuple[float, float]:
        """Mean of a metric over the first and over the last `ENDS` steps."""
        values = self.series(name)
        return fmean(values[:ENDS]), fmean(values[-ENDS:])

    def held_out(self, task: str = TASK) -> tuple[float, float]:
        """Held-out accuracy before and after training, in percent."""
        return 100 * self.rows[0][held_out_key(task)], 100 * self.rows[-1][held_out_key(task)]

    def problems(self, task: str = TASK) -> int:
        """Held-out problems of the last evaluation."""
        return int(self.rows[-1][size_key(task)])


def run_all(
    arguments: Mapping[str, Sequence[str]], seeds: str, output: Path | None, *, jobs: int
) -> dict[str, list[Run]]:
    """Train once for each setting, with its arguments of `tinyzero train`, and each seed.

    A run that `output` already holds is not repeated.
    """
    folder = output or Path(mkdtemp(prefix="compare-"))
    threads = {"OMP_NUM_THREADS": str(max(1, count_cores() // jobs)), "OMP_WAIT_POLICY": "PASSIVE"}

    def train_one(name: str, seed: int) -> Run:
        directory = folder / f"{name.replace(' ', '-')}-{seed}"
        if not (directory / "curve.png").exists():  # the last file that a run writes
            command = [*TINYZERO, "train", *arguments[name], f"run.seed={seed}", "--output", str(directory)]
            done = run([*command, *(["--resume"] if directory.exists() else [])], env=threads)
            if done.code:
                sys.exit(f"{' '.join(command)} failed:\n{done.output}")
            print(f"{name}, seed {seed}: done", file=sys.stderr, flush=True)
        return Run(metrics_of(directory))

    numbers = [int(seed) for seed in seeds.split(",")]
    with ThreadPoolExecutor(jobs) as pool:
        # Seed by seed, so that what is done when the script is stopped can be compared.
        futures = {(name, seed): pool.submit(train_one, name, seed) for seed in numbers for name in arguments}
        return {name: [futures[name, seed].result() for seed in numbers] for name in arguments}


def summary(runs: Sequence[Run]) -> dict[str, str]:
    """The cells of a table: means over seeds, ± their standard error."""
    reward, length = ([run.ends(name) for run in runs] for name in (REWARD, LENGTH))
    accuracy = [run.held_out() for run in runs]
    return {
        "reward, first five steps": _mean([first for first, _ in reward], 2),
        "last five": _mean([last for _, last in reward], 2),
        "held-out before": _mean([before for before, _ in accuracy], 1, " %"),
        "after": _mean([after for _, after in accuracy], 1, " %"),
        "length first": f"{fmean(first for first, _ in length):.0f}",
        "last": f"{fmean(last for _, last in length):.0f}",
        "tokens": f"{mean_total(runs, TOKENS) / 1000:.0f} k",
        "time": f"{mean_total(runs, SECONDS):.0f} s",
    }


def mean_total(runs: Sequence[Run], name: str) -> float:
    """Of `TOKENS` or `SECONDS`, at the end of the runs."""
    return fmean(run.rows[-1][name] for run in runs)


def mean_and_error(values: Sequence[float]) -> tuple[float, float]:
    """Mean of two values or more, and its standard error."""
    return fmean(values), stdev(values) / len(values) ** 0.5


def _mean(values: Sequence[float], digits: int, unit: str = "") -> str:
    if len(values) == 1:
        return f"{values[0]:.{digits}f}{unit}"
    mean, error = mean_and_error(values)
    return f"{mean:.{digits}f} ± {error:.{digits}f}{unit}"


# ---- recipes ---------------------------------------------------------------------------------------------------------

NO_RECIPE, LORA = "(no recipe)", "grpo-lora"
"""Two additional rows: the tiny model's defaults; and adapters of rank 8, at ten times the learning rate."""


@app.command()
def recipes(
    recipes: Annotated[str, typer.Option(help="names separated by commas", show_default="all")] = "",
    seeds: Seeds = "0,1,2",
    steps: Steps = 30,
    jobs: Jobs = 1,
    output: Output = None,
    write: Annotated[
        bool, typer.Option("--write-docs", help="write table and plot to docs/training/algorithms.md")
    ] = False,
) -> None:
    """Train the built-in model on the CPU with every recipe; the reward rises with each, in the mean over seeds."""

    def arguments(name: str) -> list[str]:
        adapters = ("lora.rank=8", "optimizer.learning_rate=2e-3") if name == LORA else ()
        named = () if name == NO_RECIPE else ("--recipe", "grpo" if name == LORA else name)
        chosen = ("--task", TASK, *named, f"run.steps={steps}", "run.device=cpu", "eval.num_problems=256")
        return [*chosen, *EVALUATION, *adapters]

    alone = [name for name in recipe_names() if name != "distill"]  # which needs a teacher
    names = recipes.split(",") if recipes else [NO_RECIPE, *alone, LORA]
    found = run_all({name: arguments(name) for name in names}, seeds, output, jobs=jobs)
    runs = next(iter(found.values()))
    where = ", ".join(f"{name} {value}" for name, value in machine(*VERSIONS).items())
    title = f"recipe ({steps} steps, {len(runs)} seeds, {runs[0].problems()} puzzles)"
    shown = table(title, {f"`{name}`": summary(runs) for name, runs in found.items()})
    text = f"{shown}\n{where}; {jobs} concurrent runs."
    print(text)
    if write:
        page = DOCS / "training/algorithms.md"
        plot = "![Share of training puzzles solved over the steps, one panel for each recipe](../images/recipes.png)"
        page.write_text(with_content(page.read_text(), {"recipes": f"{text}\n\n{plot}\n"}))
        draw(found, DOCS / "images" / "recipes.png")
    risen = {
        name: fmean(last - first for first, last in (run.ends(REWARD) for run in runs)) for name, runs in found.items()
    }
    if fallen := [name for name, change in risen.items() if change <= 0]:
        sys.exit(f"no higher reward with {', '.join(fallen)}")
    print(f"\nall {len(risen)} recipes raised the reward, by at least {min(risen.values()):.2f}")


def draw(found: Mapping[str, list[Run]], output: Path) -> None:
    """A panel for each recipe, with the others in grey: share of correct completions over steps, mean over seeds."""
    from matplotlib.figure import Figure

    columns = 4
    lines = {
        name: smooth([100 * fmean(step) for step in zip(*(run.series(ACCURACY) for run in runs), strict=True)], 5)
        for name, runs in found.items()
    }
    rows = -(-len(lines) // columns)
    figure = Figure(figsize=(11, 2.3 * rows + 0.4), dpi=130, layout="constrained")
    panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flatten()
    for axes, (name, line) in zip(panels, lines.items(), strict=False):
        for other in lines.values():
            axes.plot(range(1, len(other) + 1), other, color="#bbbbbb", lw=0.7)
        axes.plot(range(1, len(line) + 1), line, color="#4477aa", lw=2)
        axes.set_title(name, loc="left", fontsize=10, fontweight="bold")
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelbottom=True)
    for axes in panels[len(lines) :]:
        axes.set_visible(False)
    figure.supxlabel("training step", fontsize=10)
    figure.supylabel("training puzzles solved (%),\nmean of seeds, running mean", fontsize=10)
    figure.savefig(output, format="png")


# ---- ablations -------------------------------------------------------------------------------------------------------

BASE = "base"
EIGHT = ("rollout.group_size=8",)
SETTINGS: Mapping[str, Sequence[str]] = {
    BASE: EIGHT,
    "3 samples": ("rollout.group_size=3",),
    "5 samples": ("rollout.group_size=5",),
    "temperature 0.6": (*EIGHT, "rollout.temperature=0.6"),
    "temperature 1.2": (*EIGHT, "rollout.temperature=1.2"),
    "no KL": (*EIGHT, "algorithm.kl_coefficient=0"),
    "KL 0.01": (*EIGHT, "algorithm.kl_coefficient=0.01"),
    "PPO": (*EIGHT, "algorithm.advantage_estimator=gae"),
    "adaptive length": (*EIGHT, "length_control.mode=adaptive"),
}
"""One setting at a time differs from the recipe tinyzero-grpo (KL 0.001, temperature 1) with 8 samples."""

CLAIMS = {
    "8 samples beat 5": (BASE, "5 samples"),
    "5 samples beat 3": ("5 samples", "3 samples"),
    "temperature 1.0 beats 0.6": (BASE, "temperature 0.6"),
    "temperature 1.0 beats 1.2": (BASE, "temperature 1.2"),
    "KL 0.001 beats 0.01": (BASE, "KL 0.01"),
    "KL 0.001 beats none": (BASE, "no KL"),
    "GRPO beats PPO": (BASE, "PPO"),
    "adaptive length does no worse than full length": ("adaptive length", BASE),
}
"""What users of TinyZero reported at 3B, with the setting that reached a higher accuracy, and the other."""


@app.command()
def ablations(
    seeds: Seeds = "0",
    steps: Steps = 60,
    device: Annotated[str, typer.Option(help="cpu or cuda")] = "cpu",
    jobs: Jobs = 1,
    output: Output = None,
) -> None:
    """Repeat experiments that users of TinyZero reported at 3B with the built-in tiny model."""
    print_machine(*VERSIONS)
    common = ("--task", TASK, "--model", "tiny", "--recipe", "tinyzero-grpo", "eval.num_problems=512", *EVALUATION)
    last = ("checkpoint.every=0", f"run.steps={steps}", f"run.device={device}")
    arguments = {name: [*common, *settings, *last] for name, settings in SETTINGS.items()}
    found = run_all(arguments, seeds, output, jobs=jobs)
    base = found[BASE]
    title = f"{steps} steps, {len(base)} seeds, {base[0].problems()} puzzles at T = 1"
    print_table(title, {name: summary(runs) for name, runs in found.items()})
    print()
    print_table("reported at 3B", {claim: verdict(found[a], found[b]) for claim, (a, b) in CLAIMS.items()})


def verdict(better: Sequence[Run], worse: Sequence[Run]) -> dict[str, str]:
    """The difference in final accuracy, seed by seed; it counts if its 95% interval, by Student's t, excludes zero."""
    gaps = [run.held_out()[1] - other.held_out()[1] for run, other in zip(better, worse, strict=True)]
    cells = {
        name: f"{mean_total(better, metric) / mean_total(worse, metric):.2f}×"
        for name, metric in (("tokens", TOKENS), ("time", SECONDS))
    }
    if len(gaps) == 1:
        return {"difference": f"{gaps[0]:+.1f} points", **cells, "result": "none: one seed"}
    gap, error = mean_and_error(gaps)
    half = student_t(len(gaps) - 1) * error
    result = "agrees" if gap > half else "contradicts" if gap < -half else "no difference seen"
    return {"difference": f"{gap:+.1f} points, 95% interval ± {half:.1f}", **cells, "result": result}


# ---- two tasks -------------------------------------------------------------------------------------------------------

TASKS = ("--task", "countdown:2", "--task", "multiply:1")
WARM_START = (
    "tasks.countdown.options.numbers=[3]",
    "tasks.countdown.options.number_range=[1,20]",
    "tasks.countdown.options.target_range=[1,50]",
    "tasks.multiply.options.digits=[2,2]",
    *("data.test_fraction=0.125", "data.batch_size=384", "run.steps=4000"),
    *("rollout.max_completion_tokens=128", "eval.num_problems=512", "eval.num_problems_during=512"),
    "settings.optimizer.learning_rate=2e-4",
    "settings.optimizer.beta2=0.99",
    "settings.optimizer.num_mini_batches=2",
    "settings.optimizer.micro_batch_tokens=2048",
    "settings.algorithm.kl_coefficient=0.1",
    "settings.algorithm.kl_estimator=exact",
)


@app.command()
def two_tasks(
    seeds: Seeds = "0",
    steps: Steps = 40,
    device: Annotated[str, typer.Option(help="cpu or cuda, for the warm start; training is on the CPU")] = "cpu",
    output: Output = None,
) -> None:
    """Warm-start a model on countdown and multiply (three minutes on an H200), and train it on both, 2 : 1."""
    print_machine(*VERSIONS, "tinyzero-multiply")
    directory = output or Path(mkdtemp(prefix="two-tasks-"))
    model = directory / "model"
    if not model.exists():
        command = [*TINYZERO, "warmstart", *TASKS, "--output", str(model), *WARM_START, f"run.device={device}"]
        subprocess.run(command, check=True)
    arguments = [*TASKS, "--model", str(model), f"run.steps={steps}", "run.device=cpu", "eval.num_problems=512"]
    runs = run_all({"run": [*arguments, *EVALUATION]}, seeds, directory, jobs=seeds.count(",") + 1)["run"]
    rows, fallen = {}, []
    for task in ("countdown", "multiply"):
        before, after = zip(*(run.held_out(task) for run in runs), strict=True)
        rows[task] = {
            "problems": str(runs[0].problems(task)),
            "before": ", ".join(f"{accuracy:.1f}" for accuracy in before) + " %",
            "after": ", ".join(f"{accuracy:.1f}" for accuracy in after) + " %",
            "mean problems per step": f"{fmean(runs[0].series(f'task/{task}/prompts')):.1f}",
        }
        fallen += [task] if any(last <= first for first, last in zip(before, after, strict=True)) else []
    print_table(f"held-out accuracy, {steps} steps, seeds {seeds}", rows)
    if fallen:
        sys.exit(f"no higher accuracy on {', '.join(fallen)}")


if __name__ == "__main__":
    app()
