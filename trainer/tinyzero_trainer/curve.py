"""The picture of a run, drawn from its `metrics.jsonl`: accuracy, reward and length of completions over the steps."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinyzero_sdk.errors import TinyZeroError
from tinyzero_trainer.metrics import ACCURACY, LENGTH, REWARD, held_out_key, read_metrics, size_key

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TRAIN_COLOR, HELD_OUT_COLOR = "#4477aa", "#cc3311"  # told apart with any colour vision
MAX_TITLE = 70
Series = Sequence[tuple[int, float]]
"""(step, value), in the order of steps."""


class CurveError(TinyZeroError):
    """The picture cannot be written."""


def draw_curve(metrics: Path, output: Path, *, task: str, model: str) -> None:
    """Draw a run as PNG.

    Args:
        metrics: the run's `metrics.jsonl`.
        output: the PNG.
        task: name of the task, as in the metrics' names.
        model: for the title.

    Raises:
        CurveError: the picture cannot be written.
        DataError: the metrics cannot be read.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    rows = read_metrics(metrics)
    accuracy, reward, length = (series(rows, name) for name in (ACCURACY, REWARD, LENGTH))
    held_out, sizes = series(rows, held_out_key(task)), dict(series(rows, size_key(task)))
    shaped = reward if reward != accuracy else []  # a reward of 1 or 0 is the accuracy
    panels = 1 + bool(shaped) + bool(length)
    figure = Figure(figsize=(8, 2 + 2 * panels), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(panels, 1, sharex=True, squeeze=False, height_ratios=[2, 1, 1][:panels])[:, 0]
    _draw_accuracy(axes[0], accuracy, held_out, sizes)
    axes[0].set_title(_title(task, model), loc="left", fontsize=11, fontweight="bold")
    lower = [("mean reward", shaped), ("mean length of\ncompletions (tokens)", length)]
    for panel, (label, values) in zip(axes[1:], [pair for pair in lower if pair[1]], strict=True):
        _draw_smoothed(panel, values, 1.0)
        panel.set_ylabel(label)
    axes[-1].set_xlabel("training step")
    axes[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    for panel in axes:
        panel.margins(x=0.12)  # room for the figures beside the first and the last point
        panel.grid(alpha=0.25)
        panel.spines[["top", "right"]].set_visible(False)
    try:
        figure.savefig(output, format="png")
    except OSError as error:
        raise CurveError(f"cannot write {output}: {error.strerror}") from error


def series(rows: Sequence[dict[str, Any]], name: str) -> list[tuple[int, float]]:
    """(step, value) wherever the metric has a value."""
    return [(row["step"], row[name]) for row in rows if row.get(name) is not None]


def smooth(values: Sequence[float], window: int) -> list[float]:
    """Running mean, centred; at the ends over the half window that there is.

    Example:
        >>> smooth([0, 3, 0, 3], 3)
        [1.5, 1.0, 2.0, 1.5]
    """
    half = window // 2
    windows = [values[max(0, place - half) : place + half + 1] for place in range(len(values))]
    return [sum(part) / len(part) for part in windows]


def _draw_accuracy(axes: "Axes", accuracy: Series, held_out: Series, sizes: dict[int, float]) -> None:
    _draw_smoothed(axes, accuracy, 100.0, "training problems, running mean")
    if held_out:
        steps, shares = zip(*held_out, strict=True)
        errors = [
            100 * (share * (1 - share) / sizes[step]) ** 0.5 if step in sizes else 0.0 for step, share in held_out
        ]
        percents = [100 * share for share in shares]
        label = "held-out problems, ± one standard error" if sizes else "held-out problems"
        axes.errorbar(
            steps, percents, errors, fmt="o-", ms=4, lw=1, capsize=2, color=HELD_OUT_COLOR, label=label, zorder=3
        )
        for place, side, anchor in ((-1, 8, "left"), (0, -8, "right"))[: len(held_out)]:
            axes.annotate(
                f"{percents[place]:.1f} %",
                (steps[place], percents[place]),
                (side, 0),
                textcoords="offset points",
                ha=anchor,
                va="center",
                color=HELD_OUT_COLOR,
            )
    axes.set_ylabel("accuracy (%)")
    axes.margins(y=0.15)
    if accuracy or held_out:
        axes.legend(loc="lower right", frameon=False, fontsize=9)


def _draw_smoothed(axes: "Axes", values: Series, scale: float, label: str | None = None) -> None:
    """Every step in a light line, and a running mean over a twentieth of the run in a strong one."""
    if not values:
        return
    steps = [step for step, _ in values]
    scaled = [scale * value for _, value in values]
    axes.plot(steps, scaled, color=TRAIN_COLOR, alpha=0.3, lw=1)
    axes.plot(steps, smooth(scaled, max(3, len(scaled) // 20)), color=TRAIN_COLOR, lw=1.8, label=label)


def _title(task: str, model: str) -> str:
    title = f"{task}, {model}"
    return title if len(title) <= MAX_TITLE else f"{task}, …{model[len(title) - MAX_TITLE :]}"
