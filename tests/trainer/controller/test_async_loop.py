"""The whole loop with groups in flight (`rollout.max_async_level`), in one process.

The engine samples between updates, so that a run does not depend on the clock; or in a thread, with weights of its own.
"""

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

from tests.trainer.rollout import reference_ops
from tests.trainer.runs import Configure, assert_same_weights, killed, lines, on_call, short_run
from tinyzero_trainer.checkpoint import store
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.controller import collector as collecting
from tinyzero_trainer.controller import ending, heldout_eval, in_flight, session
from tinyzero_trainer.controller.checkpointer import STATE_DIRECTORY
from tinyzero_trainer.controller.in_flight import IN_FLIGHT_FILE, GroupsInFlight, load_in_flight
from tinyzero_trainer.controller.loop import train
from tinyzero_trainer.controller.step import TrainingStep
from tinyzero_trainer.executors.base import Workers
from tinyzero_trainer.executors.build import build_workers
from tinyzero_trainer.rollout import TorchEngine
from tinyzero_trainer.rollout.background_engine import BackgroundEngine
from tinyzero_trainer.rollout.torch.cuda_graph.engine import GraphEngine
from tinyzero_trainer.rollout.weight_source import named_weights
from tinyzero_trainer.training.policy import Policy
from tinyzero_trainer.utils.signals import Interrupted

STEPS = 6


@contextmanager
def in_a_thread(config: TrainConfig, **given: Any) -> Iterator[Workers]:
    """The workers of a run on one GPU, whose engine samples beside the update."""
    with build_workers(config, **given) as workers:
        model = workers.language_model.model
        device = torch.device("cpu")
        options: dict[str, Any] = {"dtype": torch.float32, "device": device, "kernels": reference_ops}
        inner = GraphEngine(workers.language_model, partial(named_weights, model), max_num_seqs=24, **options)
        engine = BackgroundEngine(inner, device)
        try:
            yield replace(workers, engine=engine)
        finally:
            engine.close()


@pytest.fixture(autouse=True, scope="module")
def _often_checked() -> Iterator[None]:
    """Engines look for finished completions, few tokens long here, after every step."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TorchEngine, "check_every", 1)
        patch.setattr(ending, "plot_curve", lambda *args, **kwargs: None)
        yield


@pytest.fixture(scope="module")
def configure(warm_model: Path, toy_task: str) -> Configure:
    settings = {
        "run": {"task": toy_task, "steps": STEPS},
        "task__limit": 15,
        "rollout": {"max_async_level": 2, "return_logprobs": "always", "max_num_seqs": 64, "temperature": 1.4},
        "rollout_correction__is_level": "token",
        "algorithm__entropy_coefficient": 0.1,
        "curriculum__buckets": 2,
        "length_control": {"mode": "adaptive", "warmup_steps": 1, "min_tokens": 4, "every": 1},
        "eval__greedy": False,
        "rollout__max_completion_tokens": 24,
    }
    return lambda output, **changes: short_run(warm_model, output, **{**settings, **changes})


@pytest.fixture(scope="module")
def whole(configure: Configure, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a run that nothing interrupted."""
    return train(configure(tmp_path_factory.mktemp("whole") / "run")).output


def saved_groups(run: Path, step: int) -> list[in_flight.Admitted]:
    found = load_in_flight(run / f"checkpoints/step_{step}" / STATE_DIRECTORY / IN_FLIGHT_FILE)
    assert found is not None
    return found.groups


@pytest.mark.slow
def test_samples_are_some_steps_old_and_weighed(whole: Path) -> None:
    rows = lines(whole)[1:]
    assert rows[0]["staleness/steps_max"] == 0
    assert {row["staleness/steps_max"] for row in rows[1:]} <= {0, 1, 2}
    assert max(row["staleness/steps"] for row in rows) > 0
    assert rows[0]["staleness/kl"] == pytest.approx(0, abs=1e-6)
    assert max(row["staleness/kl"] for row in rows) > 1e-5, "the policy has moved since"
    assert all(row["rollout_corr/rollout_is_mean"] <= 2.0 for row in rows)
    assert [row["staleness/groups_in_flight"] for row in rows[:4]] == [8] * 4
    assert rows[-1]["staleness/groups_in_flight"] == 0
    groups = saved_groups(whole, 4)
    assert len(groups) == 8
    under_way = [each for group in groups for each in group.group.completions if not group.group.is_complete(each)]
    assert any(each.token_ids for each in under_way), "the test is of completions that are cut in two"
    assert not saved_groups(whole, STEPS), "there is no next batch"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("owner", "name", "call"),
    [
        (TrainingStep, "take", 4),
        (TorchEngine, "advance", 7),
        (collecting, "score", 4),
        (heldout_eval, "evaluate", 2),
        (store, "save", 2),
        (GroupsInFlight, "snapshot", 1),
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
        (TorchEngine, "advance", 1, 0),  # before anything was sampled
        (TorchEngine, "advance", 6, None),  # within a batch, which is then sampled again
        (heldout_eval, "evaluate", 2, 2),
    ],
)
def test_a_signal_saves_what_is_in_flight_and_the_run_resumes_with_it(
    owner, name, call, saved, configure, whole, tmp_path, monkeypatch
):
    run, terminate = configure(tmp_path / "run"), partial(os.kill, os.getpid(), signal.SIGTERM)
    with (
        on_call(monkeypatch, owner, name, call, terminate),
        pytest.raises(Interrupted, match=f"after step {'' if saved is None else saved}.*, which is saved"),
    ):
        train(run)
    train(run, resume=True)
    assert lines(run.run.output) == lines(whole)


@pytest.mark.slow
@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("refill", [0, 2])
def test_an_engine_in_a_thread_samples_beside_the_update_and_a_killed_run_goes_on(
    level, refill, configure, tmp_path, monkeypatch
):
    monkeypatch.setattr(session, "build_workers", in_a_thread)
    run = configure(tmp_path / "run", rollout__max_async_level=level, data__max_refill_rounds=refill)
    with killed(monkeypatch, Policy, "update", 4):
        train(run)
    assert not [thread.name for thread in threading.enumerate() if thread.name == "rollouts"]
    newest = store.latest(tmp_path / "run/checkpoints").step
    kept = saved_groups(tmp_path / "run", newest)
    train(run, resume=True)
    rows = lines(run.run.output)
    assert [row["step"] for row in rows] == list(range(STEPS + 1))
    assert max(row["staleness/steps_max"] for row in rows[1:]) <= level
    if not refill:
        assert len(kept) in (4 * (level - 1), 4 * level), "the next batch is complete, and in a file of its own"
