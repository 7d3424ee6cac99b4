"""The plot of a run, drawn from its `metrics.jsonl`: accuracy, reward and length of completions over the steps."""

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinyzero_sdk.console import percent
from tinyzero_sdk.errors import TinyZeroError
from tinyzero_trainer.monitoring.metrics_log import (
    ACCURACY,
    HELD_OUT_LOSS,
    LENGTH,
    LOSS,
    REWARD,
    held_out_accuracies,
    read_metrics,
    size_key,
    task_key,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TASK_COLORS = ("#4477aa", "#cc3311", "#228833", "#aa3377", "#ccbb44", "#66ccee")
"""For several tasks, in a cycle; distinguishable with any colour vision (P. Tol's schemes)."""

TRAIN_COLOR, HELD_OUT_COLOR = TASK_COLORS[:2]
ALL_COLOR = "#555555"  # for several tasks together
Series = Sequence[tuple[int, float]]
"""(step, value), in the order of steps."""


class PlotError(TinyZeroError):
    """The plot cannot be written."""


def plot_curve(metrics: Path, output: Path, *, tasks: Sequence[str], model: str) -> None:
    """Draw a run's `metrics.jsonl` as PNG; `model` is for the title, and of several tasks each has a colour.

    Raises:
        PlotError: the plot cannot be written.
        DataError: the metrics cannot be read.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    rows = read_metrics(metrics)
    accuracy, reward, length, loss = (series(rows, name) for name in (ACCURACY, REWARD, LENGTH, LOSS))
    shaped = reward if reward != accuracy else []  # a reward of 1 or 0 is the accuracy
    labels = {"mean reward": shaped, "mean length of\ncompletions (tokens)": length, "loss": loss}
    lower = [(label, values) for label, values in labels.items() if values]
    measured = bool(tasks) or not lower  # fine-tuning on a file may have no task
    ratios = [2] * measured + [1] * len(lower)
    figure = Figure(figsize=(8, 2 + 2 * len(ratios)), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(ratios), 1, sharex=True, squeeze=False, height_ratios=ratios)[:, 0]
    if len(tasks) == 1:
        _draw_accuracy(axes[0], accuracy, _held_out(rows, tasks[0]), (TRAIN_COLOR, HELD_OUT_COLOR))
    else:
        for task, color in zip(tasks, cycle(TASK_COLORS), strict=False):
            trained = series(rows, task_key(task, "acc"))
            _draw_accuracy(axes[0], trained, _held_out(rows, task), (color, color), of=f"{task}, ")
    if measured:
        axes[0].set_ylabel("accuracy (%)")
        axes[0].margins(y=0.15)
    if axes[0].get_legend_handles_labels()[0]:
        axes[0].legend(loc="lower right" if len(tasks) == 1 else "best", frameon=False, fontsize=9)
    title = f"{' + '.join(tasks) or 'examples'}, {model}"
    axes[0].set_title(title, loc="left", fontsize=11, fontweight="bold", wrap=True)
    for panel, (label, values) in zip(axes[measured:], lower, strict=True):
        _draw_smoothed(panel, values, 1.0, TRAIN_COLOR if len(tasks) == 1 else ALL_COLOR)
        panel.set_ylabel(label)
        if values is loss and (points := series(rows, HELD_OUT_LOSS)):
            panel.plot(*zip(*points, strict=True), "o-", ms=4, lw=1, color=HELD_OUT_COLOR, label="held-out examples")
            panel.legend(loc="upper right", frameon=False, fontsize=9)
    axes[-1].set_xlabel("training step")
    axes[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    for panel in axes:
        panel.margins(x=0.12)  # for the numbers next to the first and the last point
        panel.grid(alpha=0.25)
        panel.spines[["top", "right"]].set_visible(False)
    try:
        figure.savefig(output, format="png")
    except OSError as error:
        raise PlotError(f"cannot write {output}: {error.strerror}") from error


def series(rows: Sequence[dict[str, Any]], name: str) -> list[tuple[int, float]]:
    """(step, value) wherever the metric has a value."""
    return [(row["step"], row[name]) for row in rows if row.get(name) is not None]


def smooth(values: Sequence[float], window: int) -> list[float]:
    """Centred running mean, over a shorter window at the ends.

    Example:
        >>> smooth([0, 3, 0, 3], 3)
        [1.5, 1.0, 2.0, 1.5]
    """
    half = window // 2
    windows = [values[max(0, index - half) : index + half + 1] for index in range(len(values))]
    return [sum(window) / len(window) for window in windows]


def _held_out(rows: Sequence[dict[str, Any]], task: str) -> Sequence[tuple[int, float, float | None]]:
    """(step, accuracy, its standard error if known)."""
    sizes = dict(series(rows, size_key(task)))
    accuracies = ((row["step"], held_out_accuracies(row).get(task)) for row in rows)
    return [
        (step, accuracy, (accuracy * (1 - accuracy) / sizes[step]) ** 0.5 if step in sizes else None)
        for step, accuracy in accuracies
        if accuracy is not None
    ]


def _draw_accuracy(
    axes: "Axes",
    accuracy: Series,
    held_out: Sequence[tuple[int, float, float | None]],
    colors: tuple[str, str],
    of: str = "",
) -> None:
    """Draw the accuracy on a task's training and held-out problems in these colours; `of` begins their labels."""
    _draw_smoothed(axes, accuracy, 100.0, colors[0], f"{of}training problems, running mean")
    if held_out:
        steps = [step for step, _, _ in held_out]
        percents = [100 * accuracy for _, accuracy, _ in held_out]
        errors = [100 * (error or 0.0) for _, _, error in held_out]
        known = any(error is not None for _, _, error in held_out)
        label = f"{of}held-out problems{', ± one standard error' if known else ''}"
        axes.errorbar(steps, percents, errors, fmt="o-", ms=4, lw=1, capsize=2, color=colors[1], label=label, zorder=3)
        for index, side, anchor in ((-1, 8, "left"), (0, -8, "right"))[: len(held_out)]:
            text, point = percent(percents[index] / 100), (steps[index], percents[index])
            axes.annotate(text, point, (side, 0), textcoords="offset points", ha=anchor, va="center", color=colors[1])


def _draw_smoothed(axes: "Axes", values: Series, scale: float, color: str, label: str | None = None) -> None:
    """Draw every step as a light line, and a running mean over a twentieth of the run as a strong one."""
    if not values:
        return
    steps = [step for step, _ in values]
    scaled = [scale * value for _, value in values]
    axes.plot(steps, scaled, color=color, alpha=0.3, lw=1)
    axes.plot(steps, smooth(scaled, max(3, len(scaled) // 20)), color=color, lw=1.8, label=label)
