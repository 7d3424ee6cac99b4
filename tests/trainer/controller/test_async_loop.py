"""The whole loop with rollouts a batch ahead, in one process: the engine has a model of its own, as an actor would."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from tests.trainer.configurations import changed
from tests.trainer.controller.dedicated_engine import dedicated_workers
from tinyzero_sdk.errors import TinyZeroError
from tinyzero_trainer.checkpoint import store
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.controller import collector as collecting
from tinyzero_trainer.controller import heldout_eval, loop, pending_batch
from tinyzero_trainer.controller.checkpointer import STATE_DIRECTORY
from tinyzero_trainer.controller.loop import train
from tinyzero_trainer.controller.pending_batch import BATCH_FILE
from tinyzero_trainer.controller.step import TrainingStep
from tinyzero_trainer.errors import WorkerDiedError
from tinyzero_trainer.training.policy import Policy
from tinyzero_trainer.utils.signals import Interrupted

STEPS = 4
UNTIMED = ("timing_", "perf/", "time/")


@pytest.fixture(autouse=True, scope="module")
def _dedicated() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "build_workers", dedicated_workers)
        patch.setattr(loop, "plot_curve", lambda *args, **kwargs: None)
        yield


Configure = Callable[..., TrainConfig]


@pytest.fixture(scope="module")
def configure(warm_model: Path, toy_task: str) -> Configure:
    def make(output: Path, **changes: Any) -> TrainConfig:
        values: dict[str, Any] = {
            "run": {"task": toy_task, "output": str(output), "steps": STEPS, "device": "cpu", "executor": "ray"},
            "task": {"limit": 15},
            "model": {"path": str(warm_model)},
            "data": {"prompt_template": "base", "test_fraction": 0.4, "prompts_per_step": 4},
            "rollout": {"group_size": 4, "max_completion_tokens": 8, "max_async_level": 1}
            | {"return_logprobs": "always", "num_engines": 1},
            "rollout_correction": {"is_level": "token"},
            "optimizer": {"learning_rate": 1e-3},
            "algorithm": {"entropy_coefficient": 0.1},
            "curriculum": {"buckets": 2},
            "length_control": {"mode": "adaptive", "warmup_steps": 1, "min_tokens": 4, "every": 1},
            "eval": {"num_problems": 8, "num_problems_during": 4, "every": 2, "greedy": False},
            "checkpoint": {"every": 2},
            "log": {"rollouts_every": 0},
        }
        return changed(values, changes)

    return make


@pytest.fixture(scope="module")
def whole(configure: Configure, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a run that nothing interrupted."""
    return train(configure(tmp_path_factory.mktemp("whole") / "run")).output


def lines(output: str | Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (Path(output) / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if not key.startswith(UNTIMED)} for row in rows]


def batch_of(run: Path, step: int) -> Path:
    return run / f"checkpoints/step_{step}" / STATE_DIRECTORY / BATCH_FILE


def on_call(patch: pytest.MonkeyPatch, owner: Any, name: str, call: int, act: Callable[[], None]) -> None:
    """Let something happen right before the `call`-th call of a function."""
    function, calls = getattr(owner, name), 0

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call:
            act()
        return function(*args, **kwargs)

    patch.setattr(owner, name, wrapped)


class Killed(BaseException):
    """Stands for a kill: nothing in the loop catches it."""


def kill() -> None:
    raise Killed


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.slow
def test_samples_are_a_step_old_and_weighed(whole: Path) -> None:
    rows = lines(whole)
    assert [row.get("staleness/steps") for row in rows] == [None, 0, 1, 1, 1]
    divergences = [row["staleness/kl"] for row in rows[1:]]
    assert divergences[0] == pytest.approx(0, abs=1e-6)
    assert min(divergences[1:]) > 1e-5, "the policy has moved since"
    assert all(row["rollout_corr/rollout_is_mean"] <= 2.0 for row in rows[1:])
    assert batch_of(whole, 2).exists()
    assert not batch_of(whole, STEPS).exists(), "there is no next batch"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("owner", "name", "call"),
    [
        (TrainingStep, "take", 4),
        (collecting, "generate", 4),  # in the thread, during the update
        (heldout_eval, "evaluate", 2),
        (store, "save", 2),
        (pending_batch, "to_json", 1),
    ],
)
def test_a_run_killed_anywhere_resumes_to_the_same_metrics(owner, name, call, configure, whole, tmp_path, monkeypatch):
    run = configure(tmp_path / "run")
    with monkeypatch.context() as patch:
        on_call(patch, owner, name, call, kill)
        with pytest.raises(Killed):
            train(run)
    train(run, resume=True)
    assert lines(run.run.output) == lines(whole)
    ours, theirs = (
        load_file(output / f"checkpoints/step_{STEPS}/model.safetensors") for output in (tmp_path / "run", whole)
    )
    assert all(ours[name].equal(theirs[name]) for name in theirs)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("owner", "name", "call", "saved"),
    [
        (Policy, "update", 3, 3),
        (collecting, "generate", 1, 0),  # before anything was sampled
        (collecting, "generate", 4, 3),  # during the update
        (heldout_eval, "evaluate", 2, 2),
    ],
)
def test_a_signal_saves_the_batch_under_way_and_the_run_resumes_with_it(
    owner, name, call, saved, configure, whole, tmp_path, monkeypatch
):
    run = configure(tmp_path / "run")
    with monkeypatch.context() as patch:
        on_call(patch, owner, name, call, terminate)
        with pytest.raises(Interrupted, match=f"after step {saved}, which is saved"):
            train(run)
    assert batch_of(tmp_path / "run", saved).exists() == (saved > 0)
    train(run, resume=True)
    assert lines(run.run.output) == lines(whole)


@pytest.mark.slow
def test_an_engine_that_dies_during_an_update_costs_no_step(configure, tmp_path, monkeypatch):
    run = configure(tmp_path / "run", run__steps=3)

    def die() -> None:
        raise WorkerDiedError("the rollout engine", "has died", policy_intact=True)

    with monkeypatch.context() as patch:
        on_call(patch, collecting, "generate", 3, die)  # batch 3, beside the update of step 2, which is evaluated too
        with pytest.raises(TinyZeroError, match=r"the rollout engine has died; step 2 is saved; resume with: "):
            train(run)
    found = store.latest(tmp_path / "run/checkpoints")
    assert found is not None
    assert found.step == 2
    train(run, resume=True)
    rows = lines(run.run.output)
    assert [row.get("staleness/steps") for row in rows] == [None, 0, 1, 0], "newer weights sample the failed batch"
    assert "val-core/toy_task/acc/mean@1" in rows[2]
