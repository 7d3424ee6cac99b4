"""What every recipe does with the built-in tiny model: reward, held-out accuracy, tokens and time.

    python benchmarks/recipes.py [--seeds 0,1,2] [--steps 30] [--jobs 1] [--output DIR] [--write-docs]

Each recipe trains on the CPU, once for each seed; 256 held-out puzzles before and after. A reward has risen if its mean
over the last five steps is above that over the first five, over all sampled groups and in the mean of the seeds.
`--write-docs` puts table and plot into docs/algorithms.md.
"""

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Annotated

import typer

from benchmarks.common import machine, table
from benchmarks.training import Run, accuracy_over_steps, problems, row, run_all
from tinyzero_trainer.config.recipes import recipe_names
from tinyzero_trainer.monitoring.metrics_log import REWARD
from tinyzero_trainer.monitoring.plot import smooth

TASK = "countdown"
VERSIONS = ("tinyzero-trainer", "tinyzero-countdown", "torch", "transformers")
DOCS = Path(__file__).parents[1] / "docs"
COMMON = ("eval.num_problems=256", "eval.every=0", "eval.greedy=false", "run.device=cpu")
COLOR, OTHERS = "#4477aa", "#bbbbbb"


NONE = "(no recipe)"
"""A row of its own: what suits the tiny model, alone."""
LORA = "grpo-lora"
"""Another: the recipe grpo with adapters of rank 8, at ten times the learning rate."""


def words(recipe: str, steps: int) -> list[str]:
    """What stands after `tinyzero train`."""
    adapters = ("lora.rank=8", "optimizer.learning_rate=2e-3") if recipe == LORA else ()
    named = () if recipe == NONE else ("--recipe", "grpo" if recipe == LORA else recipe)
    return ["--task", TASK, *named, f"run.steps={steps}", *COMMON, *adapters]


def draw(found: Mapping[str, list[Run]], output: Path) -> None:
    """A panel for each recipe, with all others in grey behind it."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = 4
    lines = {name: smooth(accuracy_over_steps(runs), 5) for name, runs in found.items()}
    rows = -(-len(lines) // columns)
    figure = Figure(figsize=(11, 2.3 * rows + 0.4), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flatten()
    for axes, (name, line) in zip(panels, lines.items(), strict=False):
        for other in lines.values():
            axes.plot(range(1, len(other) + 1), other, color=OTHERS, lw=0.7)
        axes.plot(range(1, len(line) + 1), line, color=COLOR, lw=2)
        axes.set_title(name, loc="left", fontsize=10, fontweight="bold")
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelbottom=True)
    for axes in panels[len(lines) :]:
        axes.set_visible(False)
    figure.supxlabel("training step", fontsize=10)
    figure.supylabel("training puzzles solved (%),\nmean of seeds, running mean", fontsize=10)
    figure.savefig(output, format="png")


def write_docs(text: str, found: Mapping[str, list[Run]]) -> None:
    """Replace what stands between the two marks of docs/algorithms.md, and its picture."""
    page = DOCS / "algorithms.md"
    content, marks = page.read_text(), r"(<!-- recipes: begin -->\n).*?(<!-- recipes: end -->)"
    picture = "![Share of training puzzles solved over the steps, one panel for each recipe](images/recipes.png)"
    page.write_text(re.sub(marks, lambda mark: f"{mark[1]}{text}\n\n{picture}\n{mark[2]}", content, flags=re.DOTALL))
    draw(found, DOCS / "images" / "recipes.png")


def main(
    recipes: Annotated[str, typer.Option(help="names with commas between them; all if empty")] = "",
    seeds: Annotated[str, typer.Option(help="seeds of the runs, with commas between them")] = "0,1,2",
    steps: Annotated[int, typer.Option(help="training steps of each run")] = 30,
    jobs: Annotated[int, typer.Option(help="runs at a time, which share the cores")] = 1,
    output: Annotated[Path | None, typer.Option(help="directory that keeps the runs, and has some perhaps")] = None,
    write: Annotated[bool, typer.Option("--write-docs", help="put table and plot into docs/algorithms.md")] = False,
) -> None:
    """Train the built-in model by every recipe."""
    names = recipes.split(",") if recipes else [NONE, *recipe_names(), LORA]
    found = run_all({name: words(name, steps) for name in names}, seeds, output, jobs=jobs)
    runs = next(iter(found.values()))
    where = ", ".join(f"{name} {value}" for name, value in machine(*VERSIONS).items())
    title = f"recipe ({steps} steps, {len(runs)} seeds, {problems(runs, TASK)} puzzles)"
    text = f"{table(title, {f'`{name}`': row(runs, TASK) for name, runs in found.items()})}\n{where}; {jobs} at a time."
    print(text)
    if write:
        write_docs(text, found)
    risen = {
        name: fmean(last - first for first, last in (run.ends(REWARD) for run in runs)) for name, runs in found.items()
    }
    if fallen := [name for name, change in risen.items() if change <= 0]:
        sys.exit(f"no higher reward with {', '.join(fallen)}")
    print(f"\nall {len(risen)} recipes raised the reward, by {min(risen.values()):.2f} at the least")


if __name__ == "__main__":
    typer.run(main)
