"""Runs as others see them, and deletion that never takes a run in progress, or what is not a run."""

import json
import os

import pytest

from tinyzero_trainer.checkpoint import store
from tinyzero_trainer.checkpoint.run_directory import RunDirectory, RunDirectoryError
from tinyzero_trainer.checkpoint.run_status import delete, find_runs, prune, status_of
from tinyzero_trainer.config import RunConfig, SftConfig, TrainConfig
from tinyzero_trainer.config.sft import SftRunConfig

CONFIG = TrainConfig(tasks={"countdown": {}}, run=RunConfig(steps=10))


def make_run(path, *, checkpoints=(), steps=0, config=CONFIG):
    with RunDirectory.open(path) as run:
        run.save_config(config)
        with run.metrics.open("w") as file:
            for step in range(steps + 1):
                accuracy = {"val-core/countdown/acc/mean@1": 0.1 + step / 100} if step % 4 == 0 else {}
                file.write(json.dumps({"step": step, **accuracy}) + "\n")
        for step in checkpoints:
            save = lambda directory: (directory / "weights").write_bytes(bytes(1000))  # noqa: E731
            store.save(run.checkpoints, step, save, meta={}, keep=9)
    return path


def test_a_stopped_run_says_how_far_it_came_and_how_to_resume_it(tmp_path):
    path = make_run(tmp_path / "my run", checkpoints=(4, 8), steps=9)
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 10, "val-core/countdown/acc/mean@1": 0.')  # is being written
    run = status_of(path)
    assert (run.state, run.step, run.steps, run.checkpoints) == ("stopped", 9, 10, (4, 8))
    assert run.accuracy == {"countdown": (0.1, pytest.approx(0.18))}
    assert run.resume == f"tinyzero train --output '{path}' --resume"
    assert run.bytes["checkpoints"] > 2000
    assert run.size == sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def test_the_states_of_a_run(tmp_path):
    aborted = status_of(make_run(tmp_path / "aborted", steps=2))
    assert (aborted.state, aborted.resume) == ("aborted", f"tinyzero train --output {aborted.path} --resume")
    assert status_of(make_run(tmp_path / "finished", steps=10, checkpoints=(10,))).state == "finished"
    with RunDirectory.open(make_run(tmp_path / "running", checkpoints=(4,)), resume=True) as run:
        status = status_of(run.path)
        assert (status.state, status.resume) == ("running", None)
    timed = SftConfig(tasks={"countdown": {}}, run=SftRunConfig(seconds=5.0))
    stopped = make_run(tmp_path / "seconds", steps=3, checkpoints=(3,), config=timed)
    assert (status_of(stopped).state, status_of(stopped).steps) == ("stopped", None)
    assert status_of(stopped).resume.startswith("tinyzero sft ")
    (stopped / "curve.png").touch()
    assert status_of(stopped).state == "finished"
    os.utime(stopped / "config.toml", (2e9, 2e9))  # resumed since
    assert status_of(stopped).state == "stopped"


def test_a_run_with_a_damaged_configuration_is_listed_as_such(tmp_path):
    path = make_run(tmp_path / "run", steps=2, checkpoints=(2,))
    (path / "config.toml").write_text("x = [1,")
    run = status_of(path)
    assert (run.state, run.step, run.checkpoints, run.resume) == ("unreadable", 2, (2,), None)
    assert run.fault.startswith(f"{path}/config.toml is not valid TOML: ")


def test_runs_are_found_below_a_directory_and_not_through_links(tmp_path):
    runs = [make_run(tmp_path / name) for name in ("a", "b/c/d")]
    (tmp_path / "link").symlink_to(runs[0])
    (tmp_path / "else").mkdir()
    (tmp_path / "else/config.toml").touch()
    assert find_runs(tmp_path) == runs
    assert find_runs(runs[0]) == [runs[0]]


def test_pruning_keeps_the_newest_intact_checkpoint(tmp_path):
    path = make_run(tmp_path / "run", checkpoints=(2, 4, 8))
    (path / "checkpoints/step_8/weights").write_bytes(b"damaged")
    assert prune(path) > 1000
    assert status_of(path).checkpoints == (4,)
    (path / "checkpoints/step_4/weights").write_bytes(b"damaged")
    with pytest.raises(store.CheckpointError, match=r"all checkpoints in .* are damaged"):
        prune(path)
    assert status_of(path).checkpoints == (4,)


def test_a_deleted_run_is_gone_and_nothing_behind_its_links(tmp_path):
    path, other = make_run(tmp_path / "run", checkpoints=(2,)), tmp_path / "precious"
    other.mkdir()
    (other / "file").touch()
    (path / "link").symlink_to(other)
    delete(path)
    assert sorted(found.name for found in tmp_path.rglob("*")) == ["file", "precious"]


def test_what_is_in_progress_or_not_a_run_is_never_deleted(tmp_path):
    path = make_run(tmp_path / "run", checkpoints=(2,))
    other = tmp_path / "other"
    (other / "checkpoints").mkdir(parents=True)
    (other / "config.toml").touch()
    with RunDirectory.open(path, resume=True):
        for remove in (delete, prune):
            with pytest.raises(RunDirectoryError, match=r"is in use by process .*; wait or stop it"):
                remove(path)
    for place in (other, tmp_path):
        with pytest.raises(RunDirectoryError, match="is not a run directory, so nothing in it is deleted"):
            delete(place)
    assert status_of(path).checkpoints == (2,)
