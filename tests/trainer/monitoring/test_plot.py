"""The plot shows what is in metrics.jsonl, and can be drawn from any run, however short."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure

from tinyzero_trainer.monitoring.metrics_log import (
    ACCURACY,
    LENGTH,
    REWARD,
    MetricsLog,
    held_out_key,
    size_key,
)
from tinyzero_trainer.monitoring.plot import PlotError, plot_curve, smooth

NUMBERS = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30)


@pytest.fixture
def metrics(tmp_path):
    """Write a run; row k holds the metrics of step k."""

    def write(rows):
        path = tmp_path / "metrics.jsonl"
        with MetricsLog(path, pytest.fail) as log:
            for step, row in enumerate(rows):
                log.append(step, row)
        return path

    return write


def before(accuracy=0.25, size=1024):
    return {held_out_key("countdown"): accuracy, size_key("countdown"): size}


@pytest.fixture
def drawn(monkeypatch):
    """The figures that were drawn."""
    figures, real = [], Figure.savefig

    def savefig(figure, *args, **kwargs):
        figures.append(figure)
        return real(figure, *args, **kwargs)

    monkeypatch.setattr(Figure, "savefig", savefig)
    return figures


def draw(metrics, tmp_path):
    output = tmp_path / "curve.png"
    plot_curve(metrics, output, tasks=["countdown"], model="Qwen/Qwen2.5-0.5B")
    assert output.read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
@pytest.mark.parametrize(("reward", "panels"), [(0.3, []), (0.4, ["mean reward"])])
def test_everything_is_labelled_and_a_reward_that_is_not_the_accuracy_is_drawn(
    metrics, tmp_path, drawn, reward, panels
):
    row = {ACCURACY: 0.3, REWARD: reward, LENGTH: 57.5}
    draw(metrics([before(), *[row] * 9, row | before(0.5)]), tmp_path)
    (figure,) = drawn
    top = figure.axes[0]
    assert top.get_title(loc="left") == "countdown, Qwen/Qwen2.5-0.5B"
    labels = [axes.get_ylabel().replace("\n", " ") for axes in figure.axes]
    assert labels == ["accuracy (%)", *panels, "mean length of completions (tokens)"]
    assert figure.axes[-1].get_xlabel() == "training step"
    assert {text.get_text() for text in top.texts} == {"25.0%", "50.0%"}
    assert len(top.get_legend().get_texts()) == 2


@pytest.mark.parametrize(
    "rows",
    [
        [],
        pytest.param([{}], marks=pytest.mark.slow),
        pytest.param([before()], marks=pytest.mark.slow),
        pytest.param([{}, {ACCURACY: 0.3, REWARD: 0.3, LENGTH: 57.5}], marks=pytest.mark.slow),
        [{}, {ACCURACY: float("nan"), LENGTH: 3.0}],
    ],
)
def test_a_very_short_run_can_be_drawn(metrics, tmp_path, rows):
    draw(metrics(rows), tmp_path)


@pytest.mark.slow
def test_a_directory_that_is_gone_is_one_line(metrics, tmp_path):
    with pytest.raises(PlotError, match=r"cannot write .*gone/curve\.png: No such file or directory"):
        plot_curve(metrics([before()]), tmp_path / "gone" / "curve.png", tasks=["countdown"], model="m")


@given(values=NUMBERS, window=st.integers(1, 9))
def test_smoothing_keeps_the_number_of_points_and_stays_within_their_range(values, window):
    smoothed = smooth(values, window)
    slack = 1e-9 * max(map(abs, values))  # of adding floats
    assert len(smoothed) == len(values)
    assert min(values) - slack <= min(smoothed)
    assert max(smoothed) <= max(values) + slack
    assert smooth(values, 1) == values


@pytest.mark.slow
@pytest.mark.parametrize("held_out", [True, False])
def test_the_loss_of_fine_tuning_is_drawn_alone_without_a_task(tmp_path, drawn, held_out):
    losses = {step: {"train/loss": 2 / step} for step in range(1, 6)}
    losses = {0: {"model/parameters": 1.0}, **losses}
    rows = [{"step": step, **values, **({"val/loss": 2.0} if held_out else {})} for step, values in losses.items()]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    plot_curve(tmp_path / "metrics.jsonl", tmp_path / "curve.png", tasks=[], model="a model")
    assert [axes.get_ylabel() for axes in drawn[0].axes] == ["loss"]
    assert drawn[0].axes[0].get_title(loc="left") == "examples, a model"
    assert len(drawn[0].axes[0].lines) == 2 + held_out
