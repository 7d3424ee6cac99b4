"""What each recipe does with the built-in tiny model: reward, held-out accuracy, tokens and time.

    python benchmarks/recipes.py [--seeds 0,1,2] [--steps 30] [--jobs 1] [--output DIR] [--write-docs]

Each recipe trains on the CPU, once for each seed; 256 held-out puzzles before and after. A reward has risen if its mean
over the last five steps is above that over the first five, over all sampled groups and in the mean of the seeds.
`--write-docs` writes the table and the plot to docs/algorithms.md.
"""

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Annotated

import typer

from benchmarks.common import machine, table
from benchmarks.training import TASK, Run, run_all, summary
from tinyzero_trainer.config.recipes import recipe_names
from tinyzero_trainer.monitoring.metrics_log import ACCURACY, REWARD
from tinyzero_trainer.monitoring.plot import smooth

VERSIONS = ("tinyzero-trainer", "tinyzero-countdown", "torch", "transformers")
DOCS = Path(__file__).parents[1] / "docs"
COMMON = ("eval.num_problems=256", "eval.every=0", "eval.greedy=false", "run.device=cpu")
COLOR, OTHERS = "#4477aa", "#bbbbbb"


NONE = "(no recipe)"
"""An additional row: the tiny model's own defaults."""
LORA = "grpo-lora"
"""Another: the recipe grpo with adapters of rank 8, at ten times the learning rate."""


def arguments(recipe: str, steps: int) -> list[str]:
    """Of `tinyzero train`."""
    adapters = ("lora.rank=8", "optimizer.learning_rate=2e-3") if recipe == LORA else ()
    named = () if recipe == NONE else ("--recipe", "grpo" if recipe == LORA else recipe)
    return ["--task", TASK, *named, f"run.steps={steps}", *COMMON, *adapters]


def draw(found: Mapping[str, list[Run]], output: Path) -> None:
    """A panel for each recipe, with the others in grey: share of correct completions over steps, mean over seeds."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = 4
    lines = {
        name: smooth([100 * fmean(step) for step in zip(*(run.series(ACCURACY) for run in runs), strict=True)], 5)
        for name, runs in found.items()
    }
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
    """Replace the text between the two marks of docs/algorithms.md, and the plot."""
    page = DOCS / "algorithms.md"
    content, marks = page.read_text(), r"(<!-- recipes: begin -->\n).*?(<!-- recipes: end -->)"
    plot = "![Share of training puzzles solved over the steps, one panel for each recipe](images/recipes.png)"
    page.write_text(re.sub(marks, lambda mark: f"{mark[1]}{text}\n\n{plot}\n{mark[2]}", content, flags=re.DOTALL))
    draw(found, DOCS / "images" / "recipes.png")


def main(
    recipes: Annotated[str, typer.Option(help="names separated by commas; default: all")] = "",
    seeds: Annotated[str, typer.Option(help="seeds of the runs, separated by commas")] = "0,1,2",
    steps: Annotated[int, typer.Option(help="training steps of each run")] = 30,
    jobs: Annotated[int, typer.Option(help="concurrent runs, which share the cores")] = 1,
    output: Annotated[Path | None, typer.Option(help="directory of the runs, which keeps finished ones")] = None,
    write: Annotated[bool, typer.Option("--write-docs", help="write table and plot to docs/algorithms.md")] = False,
) -> None:
    """Train the built-in model with every recipe."""
    names = recipes.split(",") if recipes else [NONE, *recipe_names(), LORA]
    found = run_all({name: arguments(name, steps) for name in names}, seeds, output, jobs=jobs)
    runs = next(iter(found.values()))
    where = ", ".join(f"{name} {value}" for name, value in machine(*VERSIONS).items())
    title = f"recipe ({steps} steps, {len(runs)} seeds, {runs[0].problems()} puzzles)"
    rows = {f"`{name}`": summary(runs) for name, runs in found.items()}
    text = f"{table(title, rows)}\n{where}; {jobs} concurrent runs."
    print(text)
    if write:
        write_docs(text, found)
    risen = {
        name: fmean(last - first for first, last in (run.ends(REWARD) for run in runs)) for name, runs in found.items()
    }
    if fallen := [name for name, change in risen.items() if change <= 0]:
        sys.exit(f"no higher reward with {', '.join(fallen)}")
    print(f"\nall {len(risen)} recipes raised the reward, by at least {min(risen.values()):.2f}")


if __name__ == "__main__":
    typer.run(main)
