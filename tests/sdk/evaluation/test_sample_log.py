"""An evaluation that was stopped: what its file holds, and resuming from it."""

import json
import os
import signal
import subprocess
import sys
from itertools import product

import pytest

from tests.sdk.evaluation.conftest import rows_of
from tests.sdk.scoring.test_pool import eventually
from tinyzero_sdk.errors import DataError, SettingsError
from tinyzero_sdk.evaluation.sample_log import SampleFile
from tinyzero_sdk.scoring.outputs import RESULT_COLUMNS


def row(index):
    return {"extra_info": {"index": index}, "completion": "x"}


def test_a_torn_last_line_is_cut_off(tmp_path):
    path = tmp_path / "out.jsonl"
    with SampleFile(path, {"a": 1}) as file:
        assert file.append((0, 0), row(0))
        assert file.append((1, 0), row(1))
        assert not file.append((1, 0), row(1))
    whole = path.read_bytes()
    second = whole.index(b"\n") + 1
    for end in (second, second + 1, len(whole) - 2, len(whole) - 1):
        path.write_bytes(whole[:end])
        with SampleFile(path, {"a": 1}) as file:
            assert ((0, 0) in file, (1, 0) in file) == (True, False)
            file.append((1, 0), row(1))
        assert path.read_bytes() == whole


def test_one_writer_at_a_time(tmp_path):
    with SampleFile(tmp_path / "out.jsonl", {}), pytest.raises(SettingsError, match="another evaluation is writing to"):
        SampleFile(tmp_path / "out.jsonl", {})
    with pytest.raises(DataError, match="cannot write"):
        SampleFile(tmp_path / "no" / "out.jsonl", {})


def test_a_setting_that_is_new_or_gone_is_a_difference(tmp_path):
    with SampleFile(tmp_path / "out.jsonl", {"a": 1, "b": 2}) as file:
        file.append((0, 0), row(0))
    for settings, name in (({"a": 1}, "b=2, not b=null"), ({"a": 1, "b": 2, "c": "x"}, "c=null, .* c=x")):
        with pytest.raises(SettingsError, match=name):
            SampleFile(tmp_path / "out.jsonl", settings)


def evaluate_in_a_process(server, task, output):
    words = f"--task {task} --model m --endpoint {server.url} --size 30 -n 2 --output {output}".split()
    code = "from tinyzero_sdk.cli import main; main()"
    return subprocess.Popen(
        [sys.executable, "-c", code, "eval", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.slow
def test_a_killed_evaluation_resumes_to_the_same_result(server, task, tmp_path):
    server.delay = 0.05
    output = tmp_path / "out.jsonl"
    for killed in range(2):
        process = evaluate_in_a_process(server, task, output)
        assert eventually(
            lambda enough=10 + 16 * killed: output.exists() and output.read_bytes().count(b"\n") >= enough
        )
        process.kill()
        process.communicate()
    kept = {line for line in output.read_bytes().splitlines(keepends=True) if line.endswith(b"\n")}
    with output.open("ab") as file:
        file.write(b'{"torn')
    process = evaluate_in_a_process(server, task, output)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    rows = rows_of(output)
    assert [(row["extra_info"]["index"], row["sample"]) for row in rows] == list(product(range(30), range(2)))
    lines = [json.dumps({key: row[key] for key in row if key not in RESULT_COLUMNS}).encode() + b"\n" for row in rows]
    assert kept <= set(lines)  # completions that cost something are still there, unchanged
    assert len(kept) > 20


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_evaluation_says_how_to_resume(server, task, tmp_path, number, code):
    server.delay = 0.3
    output = tmp_path / "out.jsonl"
    process = evaluate_in_a_process(server, task, output)
    assert eventually(lambda: output.exists() and output.read_bytes().count(b"\n") >= 1)
    os.kill(process.pid, number)
    _, err = process.communicate(timeout=10)
    assert process.returncode == code
    assert " stored in " in err
    assert "the same command resumes there" in err
    assert "Traceback" not in err
