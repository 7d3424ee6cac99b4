"""The executor `ray` with a real Ray: runs equal those of `local`, also one step off-policy, and survive deaths."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import replace
from functools import partial
from importlib import metadata
from io import StringIO
from pathlib import Path
from typing import Any

import psutil
import pytest
import tomli_w
import torch

from tests.faults import Faults
from tests.trainer import runs
from tests.trainer.advisor.planned import config_of, on, target_of
from tests.trainer.configurations import changed
from tests.trainer.conftest import SHAPE, TOY_TASK
from tests.trainer.doctor.machines import facts_of
from tests.trainer.processes import in_own_process
from tinyzero_sdk.cli import main
from tinyzero_sdk.settings import to_mapping
from tinyzero_trainer.advisor import target_gpu
from tinyzero_trainer.advisor.target_gpu import TargetGpu
from tinyzero_trainer.config import RayConfig, TrainConfig
from tinyzero_trainer.controller.checkpointer import STATE_DIRECTORY
from tinyzero_trainer.controller.in_flight import IN_FLIGHT_FILE
from tinyzero_trainer.controller.loop import train
from tinyzero_trainer.doctor import probe
from tinyzero_trainer.doctor.cluster_probe import look_at_ray
from tinyzero_trainer.executors.ray import cluster as room
from tinyzero_trainer.executors.ray.cluster import RayError
from tinyzero_trainer.models.loading import from_parts, load_model, save_model
from tinyzero_trainer.models.new_model import build_model, build_tokenizer

pytestmark = [pytest.mark.slow, pytest.mark.minutes]

STEPS = 3
WITHIN = 600.0
"""Seconds for anything here, against hanging."""

RANKS: dict[str, Any] = {"run__executor": "ray", "parallel__world_size": 2}
CRITIC: dict[str, Any] = {
    "algorithm__advantage_estimator": "gae",
    "critic__learning_rate": 1e-3,
    "optimizer__num_mini_batches": 1,
}
TAUGHT: dict[str, Any] = {"algorithm__advantage_estimator": "on_policy_distillation"}
ADAPTED: dict[str, Any] = {"lora__rank": 2, "lora__alpha": 64, "optimizer__learning_rate": 1e-2}
ASYNC: dict[str, Any] = {
    "run__steps": 4,
    "rollout__num_engines": 1,
    "rollout__max_async_level": 2,
    "rollout__return_logprobs": "always",
    "rollout_correction__is_level": "token",
    "eval__num_problems_during": 8,
    "eval__every": 2,
}
"""Groups in flight over two updates, with a dedicated engine."""


def make_config(folder: Path, name: str, **changes: Any) -> TrainConfig:
    """The configuration of a run of a few steps; `changes` are keys with `__` for the dot."""
    values: dict[str, Any] = {
        "run": {"task": str(TOY_TASK), "output": str(folder / name), "steps": STEPS, "device": "cpu"},
        "task": {"limit": 5},
        "model": {"path": str(folder / "model")},
        "data": {"prompt_template": "base", "test_fraction": 0.4, "prompts_per_step": 4},
        "rollout": {"group_size": 4, "max_completion_tokens": 8},
        "optimizer": {"learning_rate": 1e-3, "num_mini_batches": 2, "micro_batch_tokens": 40},
        "algorithm": {"kl_coefficient": 0.05},
        "eval": {"num_problems": 8, "every": 0},
        "checkpoint": {"every": 1},
    }
    return changed(values, changes)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory for runs, with the model that they start from."""
    folder, tokenizer = tmp_path_factory.mktemp("ray"), build_tokenizer()
    for name, shape in (("model", SHAPE), ("teacher", replace(SHAPE, layers=3, head_size=8))):
        save_model(folder / name, from_parts(name, build_model(shape, tokenizer, seed=0), tokenizer))
    return folder


lines = partial(runs.lines, without=(*runs.UNTIMED, "global_seqlen/"))
"""The metrics of a run that are those of `local` too."""


# ---- one Ray of two nodes --------------------------------------------------------------------------------------------


def on_two_nodes(folder: Path) -> dict[str, Any]:
    """Results for the tests below from a Ray of two nodes on this machine; neither has the resources of a whole run."""
    from ray.cluster_utils import Cluster

    given: dict[str, Any] = {"num_cpus": 1, "num_gpus": 2, "object_store_memory": 2**28}
    cluster = Cluster(initialize_head=True, head_node_args=given | {"include_dashboard": False})
    try:
        other = cluster.add_node(**given)
        configure = partial(make_config, folder, ray__address=cluster.address, **RANKS)
        found: dict[str, Any] = {"address": cluster.address, "accuracy": train(configure("ray", **CRITIC)).accuracy}
        one = {"parallel__world_size": 1}  # the run above has two ranks
        train(configure("ray async", model__teacher=str(folder / "teacher"), **one, **TAUGHT, **ASYNC))
        found["gpus"] = gpus_there(RayConfig(address=cluster.address))
        room.RESOURCES_SECONDS = 1.0
        with pytest.raises(RayError, match=r"needs 9 CPU, and 2 CPU are free"):
            train(configure("too large", parallel__world_size=9))
        checked = folder / "checked"
        checked.mkdir()
        probe.installed_torch = lambda: facts_of().torch  # whose process another test starts
        words = ["--output", str(checked / "run"), "--address", cluster.address, "--gpus", "4", "run.task=countdown"]
        with redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as error, pytest.raises(SystemExit) as end:
            main(["doctor", "--json", *words])
        found["doctor"] = end.value.code, out.getvalue(), error.getvalue()
        cluster.remove_node(other)
        found["later"] = look_at_ray(cluster.address, directory=checked / "run", model="")
    finally:
        cluster.shutdown()
    return found


def gpus_there(ray: RayConfig) -> list[TargetGpu | None]:
    """A GPU as the nodes describe it, and where this machine has one itself."""
    config, gpu = on(config_of(), 1, ray__address=ray.address), target_of("H200")
    target_gpu.present_gpu = lambda device: gpu if device == "cuda" else None
    with_one = target_gpu.gpu_of_run(config)
    target_gpu.present_gpu = lambda device: target_of("T4")
    return [with_one, target_gpu.gpu_of_run(config)]


@pytest.fixture(scope="module")
def found(folder: Path) -> dict[str, Any]:
    """The same, once for all tests, in a separate process, since Ray leaves much open."""
    return in_own_process(on_two_nodes, folder, folder)


def test_three_steps_over_two_nodes_are_those_of_one_process(folder: Path, found: dict[str, Any]) -> None:
    alone = train(make_config(folder, "local", **CRITIC))
    assert found["accuracy"] == alone.accuracy
    for ours, theirs in zip(lines(folder / "ray"), lines(alone.output), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-3, abs=1e-5)
    paths = [str(run / f"checkpoints/step_{STEPS}") for run in (alone.output, folder / "ray")]
    exported = [load_model(path, torch.device("cpu")) for path in paths]
    for weight, other in zip(*(model.model.parameters() for model in exported), strict=True):
        torch.testing.assert_close(weight, other, rtol=0, atol=1e-3)  # Adam's steps are of 1e-3
    manifest = json.loads((folder / f"ray/checkpoints/step_{STEPS}/manifest.json").read_text())
    assert manifest["meta"]["world_size"] == 2
    # A process without Ray resumes what two ranks of Ray saved.
    train(make_config(folder, "ray", run__steps=STEPS + 1, **CRITIC), resume=True)
    assert [row["step"] for row in lines(folder / "ray")] == list(range(STEPS + 2))


@pytest.mark.nightly(reason="starts Ray once more; what is sent of an adapter is tested with every change without Ray")
def test_an_engine_that_gets_an_adapter_samples_as_the_policy_does(folder: Path, tmp_path: Path) -> None:
    run = make_config(folder, "ray lora", run__executor="ray", rollout__num_engines=1, **ADAPTED)
    in_own_process(train, tmp_path, run)
    alone = train(make_config(folder, "local lora", **ADAPTED)).output
    for ours, theirs in zip(lines(run.run.output), lines(alone), strict=True):
        assert ours == pytest.approx(theirs, rel=1e-3, abs=1e-5)


def test_four_taught_steps_off_policy_are_of_samples_that_are_hardly_old(folder: Path, found: dict[str, Any]) -> None:
    """How old depends on the clock, but not how old at most."""
    rows = lines(folder / "ray async")
    assert [row["step"] for row in rows] == list(range(5))
    assert rows[1]["staleness/steps_max"] == 0
    assert all(row["staleness/steps_max"] <= 2 for row in rows[1:])
    assert rows[-1]["staleness/groups_in_flight"] == 0
    assert all(abs(row["teacher/reverse_kl"]) > 1e-5 for row in rows[1:])
    assert all(row["rollout_corr/rollout_is_mean"] == pytest.approx(1, abs=0.1) for row in rows[1:])


def test_a_gpu_is_described_where_it_is_unless_there_is_one_here(found: dict[str, Any]) -> None:
    assert found["gpus"] == [target_of("H200"), target_of("T4")]


def test_the_doctor_sees_two_nodes_as_they_are(folder: Path, found: dict[str, Any]) -> None:
    code, out, error = found["doctor"]
    said = json.loads(out)
    assert (code, error) == (1, "")
    assert list((folder / "checked").iterdir()) == []
    ray = said["facts"]["ray"]
    assert (ray["address"], ray["error"], ray["directory"]) == (found["address"], "", str(folder / "checked"))
    assert [node["head"] for node in ray["nodes"]] == [True, False]
    for node in ray["nodes"]:
        assert (node["error"], node["store"]) == ("", 2**28)
        assert [node[name] for name in ("gpus", "gpus_free", "cpus", "cpus_free")] == [2, 2, 1, 1]
        report = node["report"]
        assert report["packages"]["torch"] == metadata.version("torch")
        for name in ("python", "packages", "shared_memory"):
            assert report[name] == ray["local"][name]
        assert report["directory"] == "shared"
    levels = {finding["check"]: finding["level"] for finding in said["findings"]}
    assert (levels["node"], levels["versions"], levels["run directory"]) == ("ok",) * 3
    [layout] = [finding for finding in said["findings"] if finding["check"] == "layout"]
    assert (layout["level"], "2 CPUs exist" in layout["what"]) == ("error", True)
    later = found["later"]
    assert later.error == ""
    assert [node.report is not None for node in later.nodes] == [True]


# ---- deaths ----------------------------------------------------------------------------------------------------------


@contextmanager
def running(run: TrainConfig) -> Iterator["subprocess.Popen[str]"]:
    """`tinyzero train` in a process that has ended at the end."""
    file = Path(f"{run.run.output}.toml")
    file.write_text(tomli_w.dumps(to_mapping(run)))
    command = [sys.executable, "-c", "from tinyzero_sdk.cli import main; main()", "train", "--config", str(file)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def until(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + WITHIN
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.1)
    pytest.fail(f"nothing within {WITHIN} s")


def below(process: "subprocess.Popen[str]", run: TrainConfig, step: int) -> list[psutil.Process]:
    """All processes of a run but its own, once this step is saved."""
    until(lambda: process.poll() is not None or newest(run) >= step)
    assert process.poll() is None, process.communicate()[0]
    return psutil.Process(process.pid).children(recursive=True)


def newest(run: TrainConfig) -> int:
    """The step of the newest checkpoint."""
    names = [path.name[5:] for path in (Path(run.run.output) / "checkpoints").glob("step_*")]
    return max([0, *(int(name) for name in names if name.isdigit())])


def entitled(processes: list[psutil.Process], kind: str) -> psutil.Process | None:
    """One whose title, which changes with what it does, names an actor's class."""
    for process in processes:
        with suppress(psutil.Error):
            if f"ray::{kind.removeprefix('ray::')}" in " ".join(process.cmdline()):
                return process
    return None


def kill(kind: str, processes: list[psutil.Process]) -> None:
    until(lambda: entitled(processes, kind)).kill()


def suspend(kind: str, processes: list[psutil.Process]) -> None:
    until(lambda: entitled(processes, kind)).suspend()


def ends(process: "subprocess.Popen[str]", everyone: list[psutil.Process], code: int) -> str:
    """What a run that ends with this code has printed, once all its processes are gone."""
    output, _ = process.communicate(timeout=WITHIN)
    assert process.returncode == code, output
    until(lambda: not any(map(psutil.Process.is_running, everyone)))
    return str(output)


def check_death(output: str, named: str, run: TrainConfig) -> None:
    """The last line names the dead and the step that is saved."""
    last = output.strip().splitlines()[-1]
    killed = "it was killed from outside, or exited at once"
    died = rf"^error: {named} \(process \d+ on \S+\) has died: {killed}; step (\d+) is saved; resume with: "
    message = re.search(died, last)
    assert message, output
    assert newest(run) == int(message[1])
    assert "raylet" not in output


@pytest.mark.fault(
    "F5",
    "A worker of Ray dies",
    made="SIGKILL to an engine, then a training rank",
    seen=(
        "policy rank … of 2 (process … on …) has died: it was killed from outside, or exited at once; step … is "
        "saved; resume with: tinyzero train …"
    ),
    kept="the engine is restarted and its work repeated; after a rank, the newest step is saved; no process is left",
    code=2,
)
@pytest.mark.fault(
    "F6",
    "A restarted worker has lost its state",
    made="the engine is killed after the first step",
    seen="the rollout engine (process … on …) has died: …; it is restarted, and its work repeated",
    kept="it gets the policy's weights before it generates: metrics are those of a run without Ray",
)
@pytest.mark.nightly(reason="a minute of Ray; each rule is tested in test_remote_engine.py and test_restart.py, too")
def test_an_engine_is_restarted_and_a_dead_rank_ends_a_run_that_can_be_resumed(fault_row: Faults, folder: Path) -> None:
    run = make_config(folder, "run", **RANKS, rollout__num_engines=1, run__steps=10_000)
    with running(run) as process:
        for step, kind in ((1, "RolloutActor"), (4, "TrainerActor")):
            everyone = below(process, run, step)
            kill(kind, everyone)
        output = ends(process, everyone, 2)
    message = r"^the rollout engine \(process \d+ on \S+\) has died: .*; it is restarted, and its work repeated"
    assert len(re.findall(message, output, re.MULTILINE)) == 1, output
    check_death(output, r"policy rank [01] of 2", run)
    fault_row.check(output, 2, of="F5")
    fault_row.check(output, of="F6")
    alone = train(make_config(folder, "alone", run__steps=5, checkpoint__every=0))  # evaluates after the last step
    for ours, theirs in zip(lines(run.run.output)[1:5], lines(alone.output)[1:5], strict=True):
        assert ours == pytest.approx(theirs, rel=1e-2, abs=1e-4)
    last = newest(run) + 1
    train(make_config(folder, "run", run__steps=last), resume=True)
    assert [row["step"] for row in lines(run.run.output)] == list(range(last + 1))


@pytest.mark.nightly(reason="starts Ray once more; every change tests the restart above, and the signal without Ray")
@pytest.mark.fault(
    "F4",
    "SIGTERM to all processes of a run with Ray, off-policy",
    made="as systemd and Slurm send it, while a dedicated engine samples on during the updates, after one was killed "
    "and restarted",
    seen="stopped by SIGTERM …resume with: tinyzero train …",
    kept="every whole step, and the completions that are under way; no process is left",
    code=143,
)
def test_off_policy_an_engine_is_restarted_and_a_signal_saves_what_is_in_flight(
    fault_row: Faults, folder: Path
) -> None:
    run = make_config(folder, "run async", **RANKS, **ASYNC | {"run__steps": 10_000})
    with running(run) as process:
        kill("RolloutActor", below(process, run, 2))
        everyone = below(process, run, 5)
        for one in (process, *everyone):
            with suppress(psutil.NoSuchProcess):
                one.send_signal(signal.SIGTERM)
        output = ends(process, everyone, 143)
    assert re.search(r"has died: .*; it is restarted", output), output
    fault_row.check(output, process.returncode)
    assert (Path(run.run.output) / f"checkpoints/step_{newest(run)}" / STATE_DIRECTORY / IN_FLIGHT_FILE).exists()
    steps = [row["step"] for row in lines(run.run.output)]
    assert steps == list(range(len(steps)))


@pytest.mark.nightly(reason="starts Ray twice more, and waits for what Ray's own processes need to end")
@pytest.mark.parametrize("server", ["gcs_server", "raylet"])
@pytest.mark.fault(
    "F5",
    "A server of Ray dies",
    made="SIGKILL to the gcs_server or the raylet that the run has started (one that hangs is not found)",
    seen="error: Ray's … (process …) has died; step … is saved; resume with: tinyzero train …",
    kept=(
        "the newest step; no process or shared memory is left. If the trainer is just writing to a raylet that dies, "
        "or waits inside Ray for ten seconds, Ray's client ends it with code 1 and without a line of ours"
    ),
    code=2,
)
def test_a_server_of_ray_that_dies_ends_the_run_and_nothing_is_left(
    server: str, fault_row: Faults, folder: Path, tmp_path: Path
) -> None:
    more = {"model__path": str(folder / "model"), "rollout__num_engines": 1, "run__steps": 10_000}
    run, memory = make_config(tmp_path, "run", **RANKS, **more), set(os.listdir("/dev/shm"))
    with running(run) as process:
        everyone = below(process, run, 2)
        next(one for one in everyone if one.name() == server).kill()
        code = 2 if server == "gcs_server" else process.wait(WITHIN)
        output = ends(process, everyone, code)
    assert set(os.listdir("/dev/shm")) <= memory
    if code == 1:  # by Ray's client
        return
    last = output.strip().splitlines()[-1]
    assert re.match(
        rf"error: Ray's {server} \(process \d+\) has died; step {newest(run)} is saved; resume with: ", last
    ), output
    fault_row.check(last, process.returncode)


@pytest.mark.nightly(reason="starts Ray, and waits; every change tests the waits with a Ray that is made up")
@pytest.mark.fault(
    "F5",
    "A worker of Ray hangs",
    made="SIGSTOP to an engine, then a training rank",
    seen=(
        "error: policy rank … of 2 (process …) hangs: it has not answered for 15 s, and was killed; ray.timeout sets "
        "how long it may; step … is saved; resume with: tinyzero train …"
    ),
    kept="the engine is killed and restarted, and its work repeated; after a rank, the newest step is saved",
    code=2,
)
def test_an_engine_that_hangs_is_restarted_and_a_rank_that_hangs_ends_the_run(fault_row: Faults, folder: Path) -> None:
    more: dict[str, Any] = {"rollout__num_engines": 1, "ray__timeout": 15.0, "run__steps": 10_000}
    run = make_config(folder, "hangs", **RANKS, **more)
    with running(run) as process:
        for step, kind in ((1, "RolloutActor"), (4, "TrainerActor")):
            everyone = below(process, run, step)
            suspend(kind, everyone)
        output = ends(process, everyone, 2)
    hang = r"\(process \d+\) hangs: it has not answered for 15 s, and was killed; ray.timeout sets how long it may"
    assert len(re.findall(rf"^the rollout engine {hang}; it is restarted", output, re.MULTILINE)) == 1, output
    step = newest(run)
    last = output.strip().splitlines()[-1]
    assert re.match(rf"error: policy rank [01] of 2 {hang}; step {step} is saved; resume with: ", last), output
    fault_row.check(last, process.returncode)


@pytest.mark.nightly(reason="starts Ray, and waits; the same waits as above, with a shorter limit")
@pytest.mark.parametrize(
    ("kind", "count", "end"),
    [
        ("TrainerActor", 1, r"with an error: policy rank [01] of 2 .* hangs: .*; step \d+ is saved; resume with: "),
        ("RolloutActor", 1, r"with an error: the rollout engine .* hangs: .*; step \d+ is saved; resume with: "),
        ("RolloutActor", 2, "at once; resume with: "),
    ],
)
@pytest.mark.fault(
    "F4",
    "SIGTERM to a run with Ray in which a worker hangs, once or twice",
    made="SIGSTOP to a training rank or an engine, then SIGTERM",
    seen="stopped by SIGTERM …; resume with: tinyzero train …",
    kept="the newest step; the run ends by itself, or at once with the second, and no process or shared memory is left",
    code=143,
)
def test_a_signal_ends_a_run_in_which_a_process_hangs_and_nothing_is_left(
    kind: str, count: int, end: str, fault_row: Faults, folder: Path, tmp_path: Path
) -> None:
    more = {"model__path": str(folder / "model"), "rollout__num_engines": 1, "run__steps": 10_000}
    run, memory = make_config(tmp_path, "run", **RANKS, **more), set(os.listdir("/dev/shm"))
    with running(run) as process:
        everyone = below(process, run, 2)
        suspend(kind, everyone)
        for _ in range(count):
            process.send_signal(signal.SIGTERM)
            time.sleep(1)  # a second one within half of this is taken for an echo
        output = ends(process, everyone, 143)
    last = output.strip().splitlines()[-1]
    assert re.match(f"stopped by SIGTERM {end}", last), output
    fault_row.check(last, process.returncode)
    assert set(os.listdir("/dev/shm")) <= memory
    saved = newest(run) + 1
    train(make_config(tmp_path, "run", **more | {"rollout__num_engines": 0, "run__steps": saved}), resume=True)
