"""The whole loop with rollouts a batch ahead, in one process: the engine has a model of its own, as an actor would."""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.runs import Configure, assert_same_weights, killed, lines, on_call, short_run
from tinyzero_sdk.errors import TinyZeroError
from tinyzero_trainer.checkpoint import store
from tinyzero_trainer.config import RayConfig, TrainConfig
from tinyzero_trainer.controller import collector as collecting
from tinyzero_trainer.controller import heldout_eval, loop, rollout_batch
from tinyzero_trainer.controller.checkpointer import STATE_DIRECTORY
from tinyzero_trainer.controller.loop import train
from tinyzero_trainer.controller.rollout_batch import BATCH_FILE
from tinyzero_trainer.controller.step import TrainingStep
from tinyzero_trainer.errors import WorkerDiedError
from tinyzero_trainer.executors.base import Workers
from tinyzero_trainer.executors.build import build_workers
from tinyzero_trainer.models.loading import LanguageModel, load_model
from tinyzero_trainer.rollout import RolloutEngine
from tinyzero_trainer.rollout.build import build_engine
from tinyzero_trainer.rollout.weight_source import named_weights
from tinyzero_trainer.training.policy import Policy
from tinyzero_trainer.types import Generation
from tinyzero_trainer.utils.signals import Interrupted

STEPS = 4


class DedicatedEngine:
    """A rollout engine that has the policy's weights as of the last `load_weights`."""

    def __init__(self, config: TrainConfig, policy: LanguageModel) -> None:
        self._policy, copied = policy, load_model(config.model.path, torch.device("cpu"))
        self._state, self._engine = copied.model.state_dict(), build_engine(config, copied)
        self._generating = threading.Lock()
        self.load_weights()

    @torch.no_grad()
    def load_weights(self) -> None:
        assert not self._generating.locked(), "weights were sent to an engine that generates"
        for name, tensor in named_weights(self._policy.model):
            self._state[name].copy_(tensor)
        self._engine.load_weights()

    def sleep(self) -> None:
        self._engine.sleep()

    def close(self) -> None:
        self._engine.close()

    def generate(self, *args: Any, **options: Any) -> list[list[Generation]]:
        with self._generating:
            return self._engine.generate(*args, **options)


@contextmanager
def dedicated_workers(config: TrainConfig, **given: Any) -> Iterator[Workers]:
    """The workers of a run on Ray, without it."""
    here = replace(config.run, executor="local")
    config = replace(config, run=here, ray=RayConfig(), rollout=replace(config.rollout, max_async_level=0))
    with build_workers(config, **given) as workers:
        engine: RolloutEngine = DedicatedEngine(config, workers.language_model)
        yield replace(workers, engine=engine)


@pytest.fixture(autouse=True, scope="module")
def _dedicated() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "build_workers", dedicated_workers)
        patch.setattr(loop, "plot_curve", lambda *args, **kwargs: None)
        yield


@pytest.fixture(scope="module")
def configure(warm_model: Path, toy_task: str) -> Configure:
    settings = {
        "run": {"task": toy_task, "steps": STEPS, "executor": "ray"},
        "task__limit": 15,
        "rollout": {"max_async_level": 1, "return_logprobs": "always", "num_engines": 1},
        "rollout_correction__is_level": "token",
        "algorithm__entropy_coefficient": 0.1,
        "curriculum__buckets": 2,
        "length_control": {"mode": "adaptive", "warmup_steps": 1, "min_tokens": 4, "every": 1},
        "eval__greedy": False,
    }
    return lambda output, **changes: short_run(warm_model, output, **{**settings, **changes})


@pytest.fixture(scope="module")
def whole(configure: Configure, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a run that nothing interrupted."""
    return train(configure(tmp_path_factory.mktemp("whole") / "run")).output


def batch_of(run: Path, step: int) -> Path:
    return run / f"checkpoints/step_{step}" / STATE_DIRECTORY / BATCH_FILE


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
        (rollout_batch, "to_json", 1),
    ],
)
def test_a_run_killed_anywhere_resumes_to_the_same_metrics(owner, name, call, configure, whole, tmp_path, monkeypatch):
    run = configure(tmp_path / "run")
    with killed(monkeypatch, owner, name, call):
        train(run)
    train(run, resume=True)
    assert lines(run.run.output) == lines(whole)
    assert_same_weights(run.run.output, whole, STEPS)


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
    run, terminate = configure(tmp_path / "run"), partial(os.kill, os.getpid(), signal.SIGTERM)
    with (
        on_call(monkeypatch, owner, name, call, terminate),
        pytest.raises(Interrupted, match=f"after step {saved}, which is saved"),
    ):
        train(run)
    assert batch_of(tmp_path / "run", saved).exists() == (saved > 0)
    train(run, resume=True)
    assert lines(run.run.output) == lines(whole)


@pytest.mark.slow
def test_an_engine_that_dies_during_an_update_costs_no_step(configure, tmp_path, monkeypatch):
    run = configure(tmp_path / "run", run__steps=3)
    death = WorkerDiedError("the rollout engine", "has died", policy_intact=True)
    with (  # batch 3, during the update of step 2, which is evaluated too
        on_call(monkeypatch, collecting, "generate", 3, death),
        pytest.raises(TinyZeroError, match=r"the rollout engine has died; step 2 is saved; resume with: "),
    ):
        train(run)
    assert store.latest(tmp_path / "run/checkpoints").step == 2
    train(run, resume=True)
    rows = lines(run.run.output)
    assert [row.get("staleness/steps") for row in rows] == [None, 0, 1, 0], "newer weights sample the failed batch"
    assert "val-core/toy_task/acc/mean@1" in rows[2]
