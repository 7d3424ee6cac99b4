"""The whole loop on a toy: what a run leaves, and that an interruption of any kind changes nothing."""

import json
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.trainer import preloaded
from tests.trainer.configurations import changed
from tinyzero_sdk.errors import BrokenTaskError, SettingsError, TinyZeroError
from tinyzero_sdk.settings import build, to_mapping
from tinyzero_trainer.checkpoint import store
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.config.compose import make_config
from tinyzero_trainer.controller import collector as collecting
from tinyzero_trainer.controller import heldout_eval, loop
from tinyzero_trainer.controller import step as training_step
from tinyzero_trainer.controller.loop import train
from tinyzero_trainer.errors import VllmError
from tinyzero_trainer.models.loading import ModelError
from tinyzero_trainer.rollout.build import TorchEngine
from tinyzero_trainer.training.policy import Policy
from tinyzero_trainer.utils.signals import Interrupted

STEPS = 5
UNTIMED = ("timing_", "perf/", "time/")


Configure = Callable[..., TrainConfig]


@pytest.fixture
def config(configure: Configure, tmp_path: Path) -> Configure:
    """Makes the configuration of a run of a few steps; `changes` are keys with `__` for the dot."""
    return lambda name="run", **changes: configure(tmp_path / name, **changes)


@pytest.fixture(scope="module")
def configure(warm_model: Path, toy_task: str) -> Configure:
    """The same, for a directory anywhere."""

    def make(output: Path, **changes: Any) -> TrainConfig:
        values: dict[str, Any] = {
            "run": {"task": toy_task, "output": str(output), "steps": STEPS, "device": "cpu"},
            "task": {"limit": 5},
            "model": {"path": str(warm_model)},
            "data": {"prompt_template": "base", "test_fraction": 0.4, "prompts_per_step": 4},
            "rollout": {"group_size": 4, "max_completion_tokens": 8, "max_num_seqs": 8},
            "optimizer": {"learning_rate": 1e-3, "num_mini_batches": 2, "micro_batch_tokens": 40},
            "algorithm": {"kl_coefficient": 0.05},
            "eval": {"num_problems": 8, "num_problems_during": 4, "every": 2},
            "checkpoint": {"every": 2},
            "log": {"rollouts_every": 2, "rollouts_count": 3},
        }
        return changed(values, changes)

    return make


@pytest.fixture(autouse=True)
def _no_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes as long as the training here; that of the whole run is enough."""
    monkeypatch.setattr(loop, "plot_curve", lambda *args, **kwargs: None)


def lines(output: str | Path) -> list[dict[str, Any]]:
    """The metrics of a run, without what the clock decides."""
    rows = [json.loads(line) for line in (Path(output) / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if not key.startswith(UNTIMED)} for row in rows]


@pytest.fixture(scope="module")
def whole_run(configure: Configure, tmp_path_factory: pytest.TempPathFactory) -> loop.TrainResult:
    """A run that nothing interrupted."""
    return train(configure(tmp_path_factory.mktemp("whole") / "run"))


@pytest.fixture
def whole(whole_run: loop.TrainResult) -> list[dict[str, Any]]:
    """Its metrics."""
    return lines(whole_run.output)


class Killed(BaseException):
    """Stands for a kill: nothing in the loop catches it."""


@contextmanager
def killed(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, call: int) -> Iterator[None]:
    """Let the `call`-th call of a function end the run as a kill would, before it does anything."""
    function, calls = getattr(owner, name), 0

    def deadly(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            raise Killed
        return function(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, deadly)
        with pytest.raises(Killed):
            yield


@pytest.mark.slow
def test_a_run_leaves_all_that_it_promises(whole_run: loop.TrainResult) -> None:
    output = whole_run.output
    rows = lines(output)
    assert [row["step"] for row in rows] == list(range(STEPS + 1))
    assert [row["step"] for row in rows if "val-core/toy_task/acc/mean@1" in row] == [0, 2, 4, 5]
    held_out = [row["val-core/toy_task/acc/mean@1"] for row in (rows[0], rows[-1])]
    assert whole_run.accuracy == {"toy_task": loop.Change(*held_out)}
    assert sorted(path.name for path in (output / "checkpoints").iterdir()) == ["step_4", "step_5"]
    assert (output / "curve.png").stat().st_size > 10_000
    rollouts = [json.loads(line) for line in (output / "rollouts" / "step_000002.jsonl").read_text().splitlines()]
    assert len(rollouts) == 3
    assert {"prompt", "completion", "ground_truth", "score", "reason"} <= rollouts[0].keys()


@pytest.mark.slow
def test_metrics_carry_verls_names(whole: list[dict[str, Any]]) -> None:
    names = {name for row in whole for name in row}
    groups, parts = ("critic/score", "critic/rewards", "response_length"), ("mean", "max", "min")
    assert {f"{group}/{part}" for group in groups for part in parts} <= names
    assert {"actor/pg_loss", "actor/kl_loss", "actor/entropy", "actor/grad_norm", "actor/lr"} <= names
    assert {"response_length/clip_ratio", "group/zero_std_frac", "reward/no_answer_frac"} <= names
    assert any(name.startswith("train/acc_by_difficulty/") for name in names)


@pytest.mark.slow
def test_the_line_after_a_checkpoint_says_how_long_it_took(whole_run: loop.TrainResult) -> None:
    rows = [json.loads(line) for line in (whole_run.output / "metrics.jsonl").read_text().splitlines()]
    saved = {row["step"]: row["timing_s/save_checkpoint"] for row in rows if "timing_s/save_checkpoint" in row}
    assert list(saved) == list(range(3, STEPS + 1, 2))
    assert all(seconds > 0 for seconds in saved.values())


@pytest.mark.slow
@pytest.mark.parametrize("step", [2, 3, 4])  # before a checkpoint, right after one, and a step later
def test_a_run_killed_at_any_step_resumes_to_the_same_metrics(step, config, whole_run, monkeypatch):
    run = config()
    with killed(monkeypatch, training_step.TrainingStep, "take", step):
        train(run)
    output = train(run, resume=True).output
    assert lines(output) == lines(whole_run.output)
    paths = [path / f"checkpoints/step_{STEPS}/model.safetensors" for path in (output, whole_run.output)]
    ours, theirs = map(load_file, paths)
    assert all(ours[name].equal(theirs[name]) for name in theirs)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("owner", "name", "call"),
    [
        (heldout_eval, "evaluate", 1),  # before training
        (heldout_eval, "evaluate", 3),  # at step 2: its line is not yet written
        (loop.MetricsLog, "append", 3),
        (store, "save", 2),  # line 4 is written, checkpoint 4 is not
        (Policy, "export", 2),  # amid a checkpoint
        (loop, "plot_curve", 1),  # everything is done
    ],
)
def test_a_run_killed_between_any_two_acts_resumes_to_the_same_metrics(owner, name, call, config, whole, monkeypatch):
    run = config()
    with killed(monkeypatch, owner, name, call):
        train(run)
    train(run, resume=True)
    assert lines(run.run.output) == whole


@pytest.mark.slow
@pytest.mark.parametrize(
    ("owner", "name", "call", "saved"),
    [
        (TorchEngine, "generate", 1, 0),  # the first evaluation
        (collecting, "generate", 3, 2),  # rollouts of step 3
        (Policy, "update", 3, 3),  # an update is finished: half of one cannot be saved
        (heldout_eval, "evaluate", 3, 2),  # the evaluation at step 2
        (store, "save", 1, 2),
    ],
)
def test_a_signal_in_any_phase_saves_what_is_done_and_the_run_resumes_from_there(
    owner, name, call, saved, config, whole, monkeypatch
):
    run, function, calls = config(), getattr(owner, name), 0

    def signalled(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            os.kill(os.getpid(), signal.SIGTERM)
        return function(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, signalled)
        with pytest.raises(Interrupted, match="--resume") as stopped:
            train(run)
    assert stopped.value.exit_code == 143
    checkpoints = sorted(path.name for path in (Path(run.run.output) / "checkpoints").iterdir())
    assert checkpoints[-1] == f"step_{saved}"
    train(run, resume=True)
    assert lines(run.run.output) == whole


@pytest.mark.parametrize(
    ("method", "call", "saved"),
    [
        ("generate", 7, 3),  # two evaluations, steps 1 and 2, an evaluation, step 3
        ("sleep", 4, 3),
        ("load_weights", 4, 2),  # after the update of step 4, which nobody can save as a whole step
    ],
)
@pytest.mark.slow
def test_an_engine_that_fails_for_good_costs_no_step_that_is_whole(method, call, saved, config, whole, monkeypatch):
    run, calls, function = config(), 0, getattr(TorchEngine, method)

    def failing(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            raise VllmError("vLLM failed 3 times")
        return function(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(TorchEngine, method, failing)
        with pytest.raises(VllmError, match="failed 3 times"):
            train(run)
    found = store.latest(Path(run.run.output) / "checkpoints")
    assert found is not None
    assert found.step == saved
    train(run, resume=True)
    assert lines(run.run.output) == whole


@pytest.mark.slow
def test_a_finished_run_can_be_lengthened(config: Configure, whole: list[dict[str, Any]]) -> None:
    train(config("short", run__steps=2))
    longer = config("short")
    train(longer, resume=True)
    assert [row["step"] for row in lines(longer.run.output)] == list(range(STEPS + 1))
    assert lines(longer.run.output)[3:] == whole[3:]
    assert "steps = 5" in (Path(longer.run.output) / "config.toml").read_text()


@pytest.mark.slow
def test_a_run_without_its_metrics_is_not_resumed(config: Configure) -> None:
    run = config(run__steps=2)
    file = train(run).output / "metrics.jsonl"
    rest = "".join(file.read_text().splitlines(keepends=True)[1:])
    for damage in ("", "garbage\n"):
        file.write_text(damage + rest)
        with pytest.raises(TinyZeroError, match="lacks the line of step 0"):
            train(run, resume=True)


@pytest.mark.slow
def test_another_configuration_is_not_resumed(config: Configure) -> None:
    train(config(run__steps=2))
    with pytest.raises(SettingsError, match=r"config\.toml has changed"):
        train(config(optimizer__learning_rate=2e-3), resume=True)


@pytest.mark.slow
def test_equal_seeds_give_equal_runs_and_other_seeds_others(config: Configure, whole: list[dict[str, Any]]) -> None:
    again, other = config("again"), config("other", run__seed=1, run__steps=1)
    train(again)
    train(other)
    assert lines(again.run.output) == whole
    assert lines(other.run.output) != whole[:2]


@pytest.mark.slow
@pytest.mark.usefixtures("real_workers")
def test_micro_batches_and_workers_do_not_change_what_is_learnt(config: Configure, whole: list[dict[str, Any]]) -> None:
    run = config("other", optimizer__micro_batch_tokens=10_000, run__steps=2)
    train(run)
    for ours, theirs in zip(lines(run.run.output)[:2], whole, strict=False):
        assert ours.keys() == theirs.keys()
        for key, value in ours.items():
            assert value == pytest.approx(theirs[key], rel=1e-3, abs=1e-5), key


def test_a_scorer_that_always_fails_stops_the_run(toy_task: str, config: Configure) -> None:
    values = config()
    failing = make_config(
        {
            "run": {"task": toy_task, "output": values.run.output, "device": "cpu", "steps": 1},
            "task": {"limit": 5, "fail": True},
            "model": {"path": values.model.path},
            "data": {"prompt_template": "base", "test_fraction": 0.4, "prompts_per_step": 2},
            "rollout": {"group_size": 2, "max_completion_tokens": 8},
            "eval": {"num_problems": 2, "num_problems_during": 2},
            "reward": {"max_failure_rate": 0.0},
        }
    )
    with pytest.raises(BrokenTaskError, match="a broken scorer"):
        train(failing)


def test_completions_that_the_model_was_not_made_for_stop_the_run(config: Configure) -> None:
    with pytest.raises(ModelError, match=r"rollout\.max_completion_tokens=64 exceed the 64 tokens"):
        train(config(rollout__max_completion_tokens=64))


@pytest.mark.slow
def test_a_full_disk_while_saving_stops_with_one_line_and_keeps_the_last_checkpoint(config, monkeypatch):
    run, calls = config(), 0
    export = Policy.export

    def full(*args: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise OSError(28, "No space left on device")
        export(*args)

    monkeypatch.setattr(Policy, "export", full)
    with pytest.raises(TinyZeroError, match="No space left on device"):
        train(run)
    assert [path.name for path in (Path(run.run.output) / "checkpoints").iterdir()] == ["step_2"]


@pytest.mark.slow
def test_threads_other_than_the_main_one_can_train(config: Configure) -> None:
    import threading

    run, results = config(run__steps=1), []
    thread = threading.Thread(target=lambda: results.append(train(run)))
    thread.start()
    thread.join()
    assert [result.output for result in results] == [Path(run.run.output)]


def train_or_resume(values: dict[str, Any]) -> None:
    """In a process of its own."""
    torch.set_num_threads(1)
    run = build(TrainConfig, values)
    train(run, resume=Path(run.run.output, "config.toml").exists())


@pytest.mark.nightly(reason="takes a minute; kills in each phase are tested with exceptions each time")
def test_sigkill_at_random_times_changes_nothing(config: Configure, whole: list[dict[str, Any]]) -> None:
    run = config("killed", checkpoint__every=1)
    metrics = Path(run.run.output) / "metrics.jsonl"
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([preloaded.__name__])

    def seen() -> int | None:
        return metrics.stat().st_mtime_ns if metrics.exists() else None

    for attempt in range(12):
        before, started = seen(), time.monotonic()
        child = context.Process(target=train_or_resume, args=(to_mapping(run),))
        child.start()
        while child.is_alive() and seen() == before and time.monotonic() - started < 60:
            time.sleep(0.01)
        child.join(timeout=0.1 * 2**attempt)  # ever later, so that each phase is hit and the last attempt gets through
        child.kill()
        child.join()
        if child.exitcode == 0:
            break
        assert child.exitcode == -signal.SIGKILL
    assert attempt >= 2, "it was killed several times"
    assert lines(run.run.output) == whole
