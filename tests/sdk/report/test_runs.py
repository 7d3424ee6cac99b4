import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinyzero_sdk.errors import DataError
from tinyzero_sdk.report.runs import keep_extremes, open_run
from tinyzero_sdk.scoring.statistics import wilson


def write_metrics(path, rows, tail=""):
    path.mkdir(exist_ok=True)
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + tail)
    return path


def test_a_resumed_run_replaces_its_steps_and_a_line_being_written_waits(tmp_path):
    rows = [{"step": step, "loss": value} for step, value in ((1, 1.0), (2, 2.0), (3, 3.0), (2, 5.0))]
    run = open_run(write_metrics(tmp_path / "run", rows, 'not JSON\n{"step": 3, "lo'))
    assert (run.steps, run.curves["loss"]) == ([1, 2], (None, [1.0, 5.0]))


def test_a_sparse_metric_keeps_its_own_steps_and_has_the_band_of_its_problems(tmp_path):
    rows = [{"step": step, "loss": None if step == 2 else 1.0} for step in range(4)]
    rows[0] |= {"val-core/sum/acc/mean@1": 0.5, "val-aux/sum/size": 100.0}
    run = open_run(write_metrics(tmp_path / "run", rows))
    assert run.curves["loss"] == ([0, 1, 3], [1.0, 1.0, 1.0])
    assert run.curves["val-core/sum/acc/mean@1"] == ([0], [0.5])
    low, high = wilson(0.5, 100)
    assert run.bands["val-core/sum/acc/mean@1"] == ([low], [high])


def test_a_run_without_a_step_or_configuration_is_a_run(tmp_path):
    run = open_run(write_metrics(tmp_path / "run", []))
    assert (run.steps, run.curves, run.config, run.completion_files()) == ([], {}, {}, [])


def test_a_directory_without_metrics_is_refused_with_what_was_expected(tmp_path):
    with pytest.raises(DataError, match=r"not a run or a scored file; expected a directory with metrics\.jsonl"):
        open_run(tmp_path)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=300), st.sampled_from([4, 10, 50]))
def test_a_shortened_curve_keeps_its_ends_and_extremes(values, most):
    values = np.array(values)
    kept = keep_extremes(values, most)
    assert list(kept) == sorted(set(kept))
    assert len(kept) <= most + 2
    assert {kept[0], kept[-1]} == {0, len(values) - 1}
    assert (values[kept].min(), values[kept].max()) == (values.min(), values.max())
