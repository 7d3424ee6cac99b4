"""Rollouts a batch ahead with a real Ray: the run is that of one process, whoever dies and whoever is asked to stop."""

import os
import re
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.trainer.configurations import changed
from tests.trainer.engine_apart import built_apart
from tests.trainer.processes import apart
from tests.trainer.test_ray import ENDS_WITHIN, STARTS_WITHIN, below, entitled, lines, running, steps_of, until
from tinyzero_trainer.checkpoint.store import latest
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.controller import loop
from tinyzero_trainer.controller.loop import BATCH_FILE, STATE_DIRECTORY, train

pytestmark = pytest.mark.slow

STEPS = 4


@pytest.fixture
def config(toy_task: str, toy_model_path: Path, tmp_path: Path) -> Callable[..., TrainConfig]:
    """Makes the configuration of a run of a few steps; `changes` are keys with `__` for the dot."""

    def make(name: str, **changes: Any) -> TrainConfig:
        values: dict[str, Any] = {
            "run": {"task": toy_task, "output": str(tmp_path / name), "steps": STEPS, "device": "cpu"},
            "parallel": {"world_size": 2},
            "rollout": {"num_engines": 1},
            "task": {"limit": 5},
            "model": {"path": str(toy_model_path)},
            "data": {"prompt_template": "base", "test_fraction": 0.4, "prompts_per_step": 4},
            "rollout": {"group_size": 4, "max_completion_tokens": 8, "max_async_level": 1, "return_logprobs": "always"},
            "rollout_correction": {"is_level": "token"},
            "optimizer": {"learning_rate": 1e-3, "num_mini_batches": 2, "micro_batch_tokens": 40},
            "algorithm": {"kl_coefficient": 0.05},
            "eval": {"num_problems": 8, "num_problems_during": 8, "every": 2},
            "checkpoint": {"every": 1},
        }
        return changed(values, {"run__executor": "ray", **changes})

    return make


def test_four_steps_are_those_of_one_process(
    config: Callable[..., TrainConfig], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = apart(train, tmp_path, config("ray"))
    monkeypatch.setattr(loop, "build_workers", built_apart)
    alone = train(config("here"))
    found, expected = lines(together.output), lines(alone.output)
    assert [row.get("staleness/steps") for row in found] == [None, 0, 1, 1, 1]
    for ours, theirs in zip(found, expected, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-3, abs=1e-5)


def test_a_signal_saves_the_next_batch_and_leaves_nothing(config: Callable[..., TrainConfig], tmp_path: Path) -> None:
    run = config("run", run__steps=10_000)
    checkpoints = Path(run.run.output) / "checkpoints"
    with running(run, tmp_path / "run.toml") as process:
        until((checkpoints / "step_2").exists, STARTS_WITHIN)
        everyone = below(process)
        os.kill(process.pid, signal.SIGTERM)
        output, _ = process.communicate(timeout=ENDS_WITHIN)
    assert process.returncode == 143, output
    until(lambda: not any(map(psutil.Process.is_running, everyone)), 90)
    newest = max(steps_of(checkpoints))
    assert (checkpoints / f"step_{newest}" / STATE_DIRECTORY / BATCH_FILE).exists()


@pytest.mark.parametrize(
    ("kind", "named"), [("LearnerRank", r"policy rank [01] of 2"), ("EngineWorker", "the rollout")]
)
def test_whoever_dies_is_named_and_the_run_can_be_resumed(
    kind: str, named: str, config: Callable[..., TrainConfig], tmp_path: Path
) -> None:
    run = config("run", ray__max_restarts=0, run__steps=10_000)
    with running(run, tmp_path / "run.toml") as process:
        until((Path(run.run.output) / "checkpoints/step_2").exists, STARTS_WITHIN)
        everyone = below(process)
        victim, started = until(lambda: entitled(everyone, kind), 20), time.monotonic()
        victim.kill()
        output, _ = process.communicate(timeout=ENDS_WITHIN)
        assert time.monotonic() - started < ENDS_WITHIN
    told = re.search(rf"^error: {named}.* has died; step (\d+) is saved; go on with: ", output, re.MULTILINE)
    assert told, output
    assert process.returncode == 2
    found = latest(Path(run.run.output) / "checkpoints")
    assert found is not None
    assert found.step == int(told[1])
    until(lambda: not any(map(psutil.Process.is_running, everyone)), 20)


def test_an_engine_that_dies_is_replaced_beside_the_update(config: Callable[..., TrainConfig], tmp_path: Path) -> None:
    run = config("run", run__steps=30)
    checkpoints = Path(run.run.output) / "checkpoints"
    with running(run, tmp_path / "run.toml") as process:
        until((checkpoints / "step_2").exists, STARTS_WITHIN)
        everyone = below(process)
        until(lambda: entitled(everyone, "EngineWorker"), 20).kill()
        output, _ = process.communicate(timeout=240)
    assert process.returncode == 0, output
    assert re.search(r"has died; it is replaced", output), output
    assert [row["step"] for row in lines(run.run.output)] == list(range(31))
