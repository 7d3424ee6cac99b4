"""The executor `ray` with a real Ray: what the loop has of it is what it has of `local`, whoever dies."""

import json
import os
import pickle
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
import tomli_w
import torch
from safetensors.torch import load_file

from tests.trainer.configurations import changed
from tests.trainer.processes import apart
from tests.trainer.sharded import NOW, make_up
from tinyzero_sdk.settings import to_mapping
from tinyzero_trainer.config import RayConfig, TrainConfig
from tinyzero_trainer.controller.loop import train
from tinyzero_trainer.executors.local import build_roles
from tinyzero_trainer.executors.ray import cluster as room
from tinyzero_trainer.executors.ray.cluster import RayError
from tinyzero_trainer.models.loading import LanguageModel, load_model
from tinyzero_trainer.monitoring.progress import Display
from tinyzero_trainer.rollout import SamplingParams
from tinyzero_trainer.training.batch import Experience

pytestmark = pytest.mark.slow

STEPS = 3
UNLIKE = ("timing_", "perf/", "time/", "global_seqlen/")
"""Metrics that are not those of `local`."""

AGENTS = ("ray::DashboardAgent", "ray::RuntimeEnvAgent")
"""Of Ray; where the trainer was killed they try for a minute to tell it, and hold nothing."""

STARTS_WITHIN = 240.0
"""Seconds to the first steps of a run, and to each of the next few."""

ENDS_WITHIN = 60.0
"""Seconds from a worker's death to the end of the run."""


@pytest.fixture
def config(toy_task: str, toy_model_path: Path, tmp_path: Path) -> Callable[..., TrainConfig]:
    """Makes the configuration of a run of a few steps; `changes` are keys with `__` for the dot."""

    def make(name: str, **changes: Any) -> TrainConfig:
        values: dict[str, Any] = {
            "run": {"task": toy_task, "output": str(tmp_path / name), "steps": STEPS, "device": "cpu"},
            "task": {"limit": 5},
            "model": {"path": str(toy_model_path)},
            "data": {"template": "base", "test_share": 0.4, "prompts_per_step": 4},
            "rollout": {"samples_per_prompt": 4, "max_tokens": 8},
            "optimizer": {"learning_rate": 1e-3, "mini_batches": 2, "micro_batch_tokens": 40},
            "algorithm": {"kl_coefficient": 0.05},
            "eval": {"size": 8, "every": 0},
            "checkpoint": {"every": 1},
        }
        return changed(values, changes)

    return make


def lines(output: str | Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (Path(output) / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if not key.startswith(UNLIKE)} for row in rows]


def test_three_steps_are_those_of_the_executor_local(config: Callable[..., TrainConfig], tmp_path: Path) -> None:
    alone = train(config("local"))
    # In a process of its own, since Ray leaves much open in one that goes on.
    together = apart(train, tmp_path, config("ray", run__executor="ray", ray__ranks=2))
    assert together.accuracy == alone.accuracy
    for ours, theirs in zip(lines(together.output), lines(alone.output), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-3, abs=1e-5)
    paths = [str(run.output / f"checkpoints/step_{STEPS}") for run in (alone, together)]
    exported = [load_model(path, torch.device("cpu")) for path in paths]
    for weight, other in zip(*(model.model.parameters() for model in exported), strict=True):
        torch.testing.assert_close(weight, other, rtol=0, atol=1e-3)  # Adam's steps are of 1e-3
    manifest = json.loads((together.output / f"checkpoints/step_{STEPS}/manifest.json").read_text())
    assert manifest["meta"]["world_size"] == 2
    # What two ranks of Ray saved, one without Ray goes on from.
    train(config("ray", run__steps=STEPS + 1), resume=True)
    assert [row["step"] for row in lines(together.output)] == list(range(STEPS + 2))


def shown(run: TrainConfig, experience: Experience, directory: str) -> tuple[Any, ...]:
    """What the roles of a run do with recorded rollouts."""
    prompts = [sample.prompt.token_ids for sample in experience.samples[::4]]
    with Display() as display, build_roles(run, display=display, training=True) as roles:
        assert roles.policy is not None
        assert roles.critic is not None
        before = roles.policy.logprobs(experience.samples, 0.8), roles.critic.values(experience.samples)
        metrics = roles.critic.update(experience, group_size=4), roles.policy.update(experience, group_size=4, now=NOW)
        roles.policy.save(Path(directory))
        roles.engine.load_weights()
        drawn = roles.engine.generate(prompts, 2, SamplingParams(8, logprobs=True), seed=1)
        return before, metrics, drawn, roles.critic.parameters


def test_on_recorded_rollouts_gradients_weights_and_completions_are_those_of_local(
    config: Callable[..., TrainConfig], toy_model: LanguageModel, tmp_path: Path
) -> None:
    experience, found = pickle.loads(pickle.dumps(make_up(toy_model))), []
    changes = {"algorithm__advantage": "gae", "critic__learning_rate": 1e-3, "optimizer__mini_batches": 1}
    for name, more in {"local": {}, "ray": {"run__executor": "ray", "ray__ranks": 2}}.items():
        directory = tmp_path / f"saved by {name}"
        directory.mkdir()
        found.append(apart(shown, tmp_path, config(name, **changes, **more), experience, str(directory)))
    (alone, metrics, drawn, parameters), (together, other_metrics, other_drawn, other_parameters) = found
    for ours, theirs in zip(together, alone, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
    for ours, theirs in zip(other_metrics, metrics, strict=True):
        assert ours == pytest.approx(theirs, rel=1e-3, abs=1e-5)
    assert other_parameters == parameters
    assert [[rollout.token_ids for rollout in group] for group in other_drawn] == [
        [rollout.token_ids for rollout in group] for group in drawn
    ]
    # After one step the first moment is the clipped gradient times 1 - β1.
    whole = load_file(tmp_path / "saved by local/optimizer.safetensors")
    parts = [load_file(file) for file in sorted((tmp_path / "saved by ray/optimizer").iterdir())]
    for name, moment in whole.items():
        if name.startswith("exp_avg/"):
            shards = [part[name] for part in parts if name in part]
            torch.testing.assert_close(torch.cat(shards) / 0.1, moment / 0.1, rtol=0, atol=1e-5)


def over_two_nodes(run: TrainConfig, output: str) -> list[dict[str, Any]]:
    """A run on two machines that are made up, neither of which has room for it alone; its metrics."""
    from ray.cluster_utils import Cluster

    given: dict[str, Any] = {"num_cpus": 2, "object_store_memory": 2**28}
    cluster = Cluster(initialize_head=True, head_node_args=given | {"include_dashboard": False})
    try:
        cluster.add_node(**given)
        train(replace(run, ray=replace(run.ray, address=cluster.address)))
        room.ROOM_SECONDS = 5.0
        with pytest.raises(RayError, match=r"needs 10 CPU, and 4 CPU are free"):
            train(replace(run, run=replace(run.run, output=output), ray=RayConfig(address=cluster.address, ranks=9)))
    finally:
        cluster.shutdown()
    return lines(run.run.output)


def test_a_run_over_two_nodes_is_that_of_one(config: Callable[..., TrainConfig], tmp_path: Path) -> None:
    alone = train(config("local"))
    run = config("nodes", run__executor="ray", ray__ranks=2)
    found = apart(over_two_nodes, tmp_path, run, str(tmp_path / "too large"))
    for ours, theirs in zip(found, lines(alone.output), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-3, abs=1e-5)


# ---- deaths ----------------------------------------------------------------------------------------------------------


@contextmanager
def running(run: TrainConfig, file: Path) -> Iterator["subprocess.Popen[str]"]:
    """`tinyzero train` in a process of its own, which is over at the end."""
    file.write_text(to_toml(run))
    command = [sys.executable, "-c", "from tinyzero_sdk.cli import main; main()", "train", "--config", str(file)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def to_toml(run: TrainConfig) -> str:
    return tomli_w.dumps(to_mapping(run))


def until(condition: Callable[[], Any], seconds: float) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.1)
    pytest.fail(f"nothing within {seconds} s")


def below(process: "subprocess.Popen[str]") -> list[psutil.Process]:
    """All processes of a run but its own."""
    return psutil.Process(process.pid).children(recursive=True)


def entitled(processes: list[psutil.Process], kind: str) -> psutil.Process | None:
    """One whose title, which changes with what it does, names an actor's class."""
    for process in processes:
        with suppress(psutil.Error):
            if f"ray::{kind.removeprefix('ray::')}" in " ".join(process.cmdline()):
                return process
    return None


@pytest.mark.parametrize(
    ("kind", "named"),
    [
        ("LearnerRank", r"policy rank [01] of 2"),
        ("EngineWorker", "the rollout engine"),
        ("Scorer", "the scorer of toy_task"),
    ],
)
def test_whoever_dies_is_named_the_run_can_be_resumed_and_nothing_is_left(
    kind: str, named: str, config: Callable[..., TrainConfig], tmp_path: Path
) -> None:
    engines = int(kind == "EngineWorker")
    changes = {"ray__ranks": 2, "ray__engines": engines, "ray__restarts": 0, "run__steps": 10_000}
    run = config("run", run__executor="ray", **changes)
    with running(run, tmp_path / "run.toml") as process:
        until((Path(run.run.output) / "checkpoints/step_2").exists, STARTS_WITHIN)
        everyone = below(process)
        victim, started = until(lambda: entitled(everyone, kind), 20), time.monotonic()
        victim.kill()
        output, _ = process.communicate(timeout=ENDS_WITHIN)
        assert time.monotonic() - started < ENDS_WITHIN
    last = output.strip().splitlines()[-1]
    told = re.search(rf"^error: {named} \(process \d+ on \S+\) has died; step (\d+) is saved; go on with: ", last)
    assert told, output
    assert process.returncode == 2
    assert "raylet" not in output
    saved = steps_of(Path(run.run.output) / "checkpoints")
    assert max(saved) == int(told[1])
    until(lambda: not any(map(psutil.Process.is_running, everyone)), 20)
    row = lines(run.run.output)[-1]
    assert row["step"] >= max(saved)


def test_engine_and_scorer_are_replaced_and_the_run_is_the_same(
    config: Callable[..., TrainConfig], tmp_path: Path
) -> None:
    run = config("run", run__executor="ray", ray__ranks=2, ray__engines=1, run__steps=14)
    checkpoints = Path(run.run.output) / "checkpoints"
    with running(run, tmp_path / "run.toml") as process:
        for step, kind in ((2, "EngineWorker"), (5, "Scorer")):
            until(lambda step=step: max([0, *steps_of(checkpoints)]) >= step, STARTS_WITHIN)
            everyone = below(process)
            until(lambda kind=kind, everyone=everyone: entitled(everyone, kind), 20).kill()
        output, _ = process.communicate(timeout=240)
    assert process.returncode == 0, output
    for named, again in (("the rollout engine", "generated"), ("the scorer of toy_task", "scored")):
        told = rf"^{named} \(process \d+ on \S+\) has died; it is replaced, and its batch {again} anew"
        assert len(re.findall(told, output, re.MULTILINE)) == 1, output
    alone = train(config("local", run__steps=14, checkpoint__every=0))
    for ours, theirs in zip(lines(run.run.output)[1:], lines(alone.output)[1:], strict=True):
        assert ours["critic/score/mean"] == pytest.approx(theirs["critic/score/mean"], abs=0.1)
        if ours["step"] <= 6:  # later a rounding may change a token
            assert ours == pytest.approx(theirs, rel=1e-2, abs=1e-4)


def steps_of(checkpoints: Path) -> list[int]:
    return [int(path.name[5:]) for path in checkpoints.glob("step_*") if path.name[5:].isdigit()]


def test_a_signal_saves_and_ends_and_a_killed_trainer_leaves_nothing(
    config: Callable[..., TrainConfig], tmp_path: Path
) -> None:
    for number, code in ((signal.SIGTERM, 143), (signal.SIGKILL, -9)):
        run = config(f"run_{code}", run__executor="ray", ray__ranks=2, run__steps=10_000)
        with running(run, tmp_path / "run.toml") as process:
            until((Path(run.run.output) / "checkpoints/step_2").exists, STARTS_WITHIN)
            everyone = below(process)
            os.kill(process.pid, number)
            process.communicate(timeout=ENDS_WITHIN)
        assert process.returncode == code
        agents = [one for one in map(partial(entitled, everyone), AGENTS) if one is not None]
        assert not agents or number == signal.SIGKILL
        workers = [one for one in everyone if one not in agents]
        until(lambda workers=workers: not any(map(psutil.Process.is_running, workers)), 20)
        for agent in agents:
            agent.kill()
