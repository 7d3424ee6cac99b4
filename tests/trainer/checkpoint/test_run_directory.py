"""One process at a time, no run overwritten by accident, every refusal in one line."""

import os
import signal
import subprocess
import sys
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

from tinyzero_sdk.errors import DataError
from tinyzero_sdk.settings import build, to_mapping
from tinyzero_trainer.checkpoint import store as checkpoint
from tinyzero_trainer.checkpoint.run_directory import RunDirectory, RunDirectoryError
from tinyzero_trainer.config import TrainConfig

CONFIG = TrainConfig(tasks={"countdown": {"options": {"numbers": [3, 4]}}})


@pytest.fixture
def path(tmp_path):
    return tmp_path / "my run ✓"


def refusal(path, *, resume=False):
    with pytest.raises(RunDirectoryError) as refused:
        RunDirectory.open(path, resume=resume).__enter__()
    return str(refused.value)


def test_everything_has_its_place(path):
    with RunDirectory.open(path) as run:
        run.save_config(CONFIG, {"countdown": "1.2"})
        assert run.checkpoints.is_dir()
        names = [found.name for found in (run.completions, run.metrics, run.curve)]
        assert names == ["completions", "metrics.jsonl", "curve.png"]
    with path.joinpath("config.toml").open("rb") as file:
        assert build(TrainConfig, tomllib.load(file)) == CONFIG
    _, packages, tasks, *_ = path.joinpath("config.toml").read_text().splitlines()
    assert packages.startswith(f"# Versions: tinyzero-trainer {version('tinyzero-trainer')}, ")
    assert f"torch {version('torch')}" in packages
    assert tasks == "# Tasks: countdown 1.2"


@pytest.mark.slow
@pytest.mark.fault(
    "F3",
    "Two trainers in one directory",
    made="a second process opens the run while the first holds it",
    seen="… is in use by process …, started 20…; wait or stop it",
    kept="the first run, undisturbed; once it is killed, the directory is free",
    code=2,
)
def test_a_second_trainer_is_refused_and_the_process_that_holds_it_named(fault_row, path):
    program = """
import sys
from tinyzero_trainer.checkpoint.run_directory import RunDirectory
with RunDirectory.open(sys.argv[1]):
    print("in", flush=True)
    sys.stdin.read()
"""
    words = [sys.executable, "-c", program, str(path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout.readline() == "in\n"
        refused = refusal(path)
        assert f"is in use by process {first.pid}, started 20" in refused
        fault_row.check(refused, RunDirectoryError.exit_code)
        first.send_signal(signal.SIGKILL)
        first.wait(timeout=10)
        with RunDirectory.open(path):  # the system gave the lock back
            pass


@pytest.mark.parametrize("written", [None, "vllm.log"])
@pytest.mark.parametrize("exists", [False, True])
def test_a_run_that_fails_at_its_start_leaves_only_what_was_there_or_was_written(path, exists, written):
    def start(run):
        if written:
            (run.path / written).write_text("why")
        raise RuntimeError("no vLLM")

    if exists:
        path.mkdir()
    with pytest.raises(RuntimeError, match="no vLLM"), RunDirectory.open(path) as run:
        start(run)
    assert path.exists() == (exists or written is not None)
    assert not written or (path / written).exists()


def test_a_run_with_checkpoints_is_not_started_over(path):
    with RunDirectory.open(path) as run:
        run.save_config(CONFIG)
        checkpoint.save(run.checkpoints, 5, lambda directory: (directory / "weights").touch(), meta={})
    assert f"resume with: tinyzero train --output '{path}' --resume" in refusal(path)
    with RunDirectory.open(path, resume=True) as run:
        assert checkpoint.latest(run.checkpoints).step == 5


def test_a_run_killed_before_its_first_checkpoint_may_start_over_or_resume(path):
    for resume in (False, False, True):
        with RunDirectory.open(path, resume=resume) as run:
            assert not any(run.checkpoints.iterdir()), "what the killed run left is deleted"
            run.save_config(CONFIG)
            (run.checkpoints / f"step_1.tmp-{'a' * 32}").mkdir()


def test_what_is_not_a_run_directory_is_refused_and_stays_as_it_is(path):
    assert "holds no run to resume; leave out --resume to start one" in refusal(path, resume=True)
    assert not path.exists()
    path.mkdir()
    (path / "config.toml").write_text("mine = true")
    assert "is not from a run and would be overwritten" in refusal(path)
    assert [entry.name for entry in path.iterdir()] == ["config.toml"]
    for place in (path / "config.toml", Path(os.devnull)):
        assert refusal(place) == f"{place} is not a directory; give --output that of a run"
    assert "run.output is empty" in refusal("")


def test_saving_the_configuration_is_whole_or_not_at_all(path, monkeypatch):
    with RunDirectory.open(path) as run:
        run.save_config(CONFIG)
        before = run.config.read_text()

        def replace(source, target):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(Path, "replace", replace)
        with pytest.raises(DataError, match="No space left"):
            run.save_config(TrainConfig())
        assert run.config.read_text() == before
        assert to_mapping(CONFIG)["tasks"] == tomllib.loads(before)["tasks"]
