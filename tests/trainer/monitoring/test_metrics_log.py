"""metrics.jsonl keeps every number exactly, and a resumed run continues it as if it had never stopped."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinyzero_sdk.errors import DataError
from tinyzero_trainer.monitoring import metrics_log
from tinyzero_trainer.monitoring.metrics_log import MetricsError, MetricsLog, held_out_key, read_metrics

NUMBERS = st.floats() | st.integers(-(2**60), 2**60) | st.just(10**400)
ROW = st.dictionaries(st.text().filter(lambda name: name != "step"), NUMBERS, max_size=8)
TORN = st.binary(max_size=9).filter(lambda line: b"\n" not in line)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "metrics.jsonl"


def write(path, steps):
    with MetricsLog(path, pytest.fail) as log:
        for step in steps:
            log.append(step, {"critic/score/mean": step / 3})


@given(row=ROW)
def test_numbers_come_back_exactly_and_nonfinite_ones_as_null(tmp_path_factory, row):
    path = tmp_path_factory.getbasetemp() / "metrics.jsonl"
    with MetricsLog(path, pytest.fail) as log:
        log.cut_after(-1)
        log.append(7, row)
    expected = {
        name: None if value in (math.inf, -math.inf) or value != value else value for name, value in row.items()
    }
    assert read_metrics(path) == [{"step": 7} | expected]


def test_metrics_are_in_alphabetical_order_and_can_be_read_as_soon_as_they_are_appended(path):
    with MetricsLog(path, pytest.fail) as log:
        log.append(0, {"b": 1.0, held_out_key("countdown"): 0.25, "a": 2})
        assert path.read_text() == '{"step": 0, "a": 2, "b": 1.0, "val-core/countdown/acc/mean@1": 0.25}\n'


def test_numbers_of_other_libraries_are_numbers(path):
    with MetricsLog(path, pytest.fail) as log:
        log.append(1, {"a": np.float32(0.1), "b": np.int64(3), "c": np.array(2.5), "d": np.float64("nan")})
    assert read_metrics(path) == [{"step": 1, "a": float(np.float32(0.1)), "b": 3, "c": 2.5, "d": None}]


@given(written=st.integers(0, 6), checkpoint=st.integers(-1, 6), torn=TORN)
def test_cut_and_continued_is_the_same_file_as_never_stopped(tmp_path_factory, written, checkpoint, torn):
    directory = tmp_path_factory.mktemp("run")
    checkpoint = min(checkpoint, written)
    write(directory / "straight", range(8))
    write(directory / "stopped", range(written + 1))
    with (directory / "stopped").open("ab") as file:
        file.write(torn)
    with MetricsLog(directory / "stopped", pytest.fail) as log:
        log.cut_after(checkpoint)
        for step in range(checkpoint + 1, 8):
            log.append(step, {"critic/score/mean": step / 3})
    assert (directory / "stopped").read_bytes() == (directory / "straight").read_bytes()
    assert sorted(entry.name for entry in directory.iterdir()) == ["stopped", "straight"]


@pytest.mark.parametrize("line", ["nonsense", "[1]", '{"loss": 1}', '{"step": "1"}', ""])
def test_a_broken_line_is_named(path, line):
    path.write_text(f'{{"step": 0}}\n{line}\n')
    with pytest.raises(DataError, match=r"metrics\.jsonl, line 2: expected a JSON object with a step"):
        read_metrics(path)


def test_a_file_that_cannot_be_read_or_written_is_named(path, tmp_path):
    with pytest.raises(DataError, match=r"cannot read .*: No such file or directory"):
        read_metrics(path)
    with pytest.raises(MetricsError, match=r"cannot write .*: Is a directory"):
        MetricsLog(tmp_path, pytest.fail)


class FullDisk:
    """Has room for so many bytes of a file."""

    def __init__(self, path, room):
        self.path, self.room = path, room

    def write(self, content):
        if not self.room:
            raise OSError(28, "No space left on device")
        size = min(self.room, len(content))
        with self.path.open("ab") as file:
            file.write(content[:size])
        self.room -= size
        return size

    def close(self):
        pass


def test_lines_that_find_no_room_are_written_later_and_told_of_once(path):
    warnings = []
    with MetricsLog(path, warnings.append) as log:
        log._file.close()
        log._file = FullDisk(path, 20)
        for step in range(5):
            log.append(step, {"a": step / 3})
        assert path.read_bytes() == b'{"step": 0, "a": 0.0'
        with pytest.raises(MetricsError, match=r"cannot write .*metrics\.jsonl: No space left on device$"):
            log.flush()
        assert len(warnings) == 1
        log._file.room = 10**6
        log.append(5, {"a": 5 / 3})
    assert read_metrics(path) == [{"step": step, "a": step / 3} for step in range(6)]


def test_what_waits_for_room_is_bounded(path, monkeypatch):
    monkeypatch.setattr(metrics_log, "WAITING_BYTES", 99)
    with MetricsLog(path, [].append) as log:
        log._file.close()
        log._file = FullDisk(path, 0)
        for step in range(4):
            log.append(step, {"a": 1.0})
        with pytest.raises(MetricsError, match="No space left on device"):
            log.append(4, {"a": 1.0})
