"""Findings on memory, disk, limits and the model of a machine."""

import dataclasses

import pytest

from tests.trainer.doctor.machines import ADDRESS, GIB, H200, RTX_5090, SECOND_H200, SEVEN_B, facts_of, machine, seen
from tinyzero_trainer.doctor import checks, cluster_checks, gpu_checks, package_checks
from tinyzero_trainer.doctor.checks import check_shared_memory, examine
from tinyzero_trainer.doctor.facts import Folder, Package, Requirements
from tinyzero_trainer.errors import Fault
from tinyzero_trainer.hardware.gpu import GpuInfo
from tinyzero_trainer.models.files import Model


@pytest.mark.parametrize("gpus", [(), (H200,), (RTX_5090,), (H200, SECOND_H200)])
def test_a_machine_without_problems(gpus: tuple[GpuInfo, ...]) -> None:
    levels = {finding.level for finding in examine(facts_of(*gpus), Requirements())}
    assert levels == ({"ok"} if gpus else {"ok", "note"})


def test_every_check_is_in_the_list() -> None:
    written = {
        value
        for module in (checks, gpu_checks, package_checks, cluster_checks)
        for name, value in vars(module).items()
        if name.startswith("check_") and value.__module__ == module.__name__
    }
    assert written == set(checks.CHECKS)


@pytest.mark.parametrize(("cores", "workers", "level"), [(2, 1, "ok"), (2, 7, "warning"), (64, 1, "ok")])
def test_cores_for_scoring(cores: int, workers: int, level: str) -> None:
    assert seen(facts_of(machine=machine(cores=cores)), "cores", Requirements(workers=workers)).level == level


def test_memory_is_for_all_copies_on_the_cpu_and_for_loading_otherwise() -> None:
    assert seen(facts_of(H200, model=SEVEN_B), "memory").level == "ok"
    assert seen(facts_of(model=SEVEN_B), "memory", Requirements(address=ADDRESS)).level == "ok"
    finding = seen(facts_of(model=SEVEN_B), "memory")
    assert finding.level == "warning"
    assert "training seven takes at least 104.3 GiB" in finding.what
    both = seen(facts_of(model=SEVEN_B), "memory", Requirements(trained_models=2, frozen_models=1))
    assert "234.7 GiB" in both.what


@pytest.mark.parametrize(
    ("memory", "free", "level", "do"),
    [(24, 22, "error", "take a smaller"), (128, 22, "warning", "end other programs"), (128, 120, "ok", "")],
)
def test_memory_for_offloading(memory: int, free: int, level: str, do: str) -> None:
    requirements = Requirements(offload="always", offload_bytes=16 * 7_000_000_000)
    facts = facts_of(H200, model=SEVEN_B, machine=machine(memory=memory * GIB, memory_free=free * GIB))
    finding = seen(facts, "memory", requirements)
    assert (finding.level, finding.do.startswith(do)) == (level, True)
    assert level == "ok" or "memory.cpu_offload=always for seven takes at least 104.3 GiB" in finding.what
    on_cpu = dataclasses.replace(facts, torch=facts_of().torch)  # which needs all of it
    assert level == "ok" or seen(on_cpu, "memory", requirements).level == "warning"


def test_a_full_disk() -> None:
    finding = seen(facts_of(model=SEVEN_B), "disk", Requirements(keep=5))
    assert (finding.level, finding.commands) == ("error", ())
    assert "5 checkpoints and the next take 469.4 GiB" in finding.what
    roomy = facts_of(model=SEVEN_B, output=Folder("runs", 300 * GIB))
    assert seen(roomy, "disk", Requirements(keep=5)).commands == ("checkpoint.keep=2",)
    assert seen(roomy, "disk").level == "ok"
    assert seen(facts_of(output=Folder("/mnt", GIB, writable=False)), "disk").level == "error"
    hub = Model("org/name", False, None)
    assert seen(facts_of(model=hub, output=Folder("runs", GIB)), "disk").level == "warning"
    assert seen(facts_of(model=hub), "disk").level == "ok"


@pytest.mark.parametrize(
    ("gpus", "names", "level"),
    [((), (), "note"), ((H200,), (), "note"), ((H200,), ("ray",), "warning"), ((H200, SECOND_H200), (), "error")],
)
@pytest.mark.parametrize(("container", "command"), [(True, "--shm-size"), (False, "remount")])
def test_little_shared_memory(gpus, names, level, container, command):
    small = machine(shared_memory=64 * 2**20, container=container)
    finding = seen(facts_of(*gpus, machine=small, packages=[Package(name, "2.60") for name in names]), "shared memory")
    assert (finding.level, command in finding.commands[0]) == (level, True)


def test_full_shared_memory_matters_to_several_gpus() -> None:
    full = machine(shared_memory_free=100 * 2**20)
    finding = seen(facts_of(H200, SECOND_H200, machine=full), "shared memory")
    assert (finding.level, finding.commands) == ("warning", ("ls -lh /dev/shm",))
    assert seen(facts_of(H200, machine=full), "shared memory").level == "ok"
    assert not list(check_shared_memory(facts_of(machine=machine(shared_memory=None)), Requirements()))


@pytest.mark.parametrize(
    ("limits", "ray", "level", "command"),
    [
        ((1024, 4096), False, "ok", ""),
        ((1024, 2**31), True, "warning", "ulimit -n 65536"),
        ((256, 10_240), False, "warning", "ulimit -n 10240"),
        ((256, 512), False, "warning", "docker run --ulimit nofile=65536 …"),
    ],
)
def test_open_files(limits: tuple[int, int], ray: bool, level: str, command: str) -> None:
    facts = facts_of(machine=machine(open_files=limits), packages=(Package("ray", "2.60"),) if ray else ())
    finding = seen(facts, "open files")
    assert (finding.level, "".join(finding.commands)) == (level, command)


def test_the_model_and_the_hugging_face_hub() -> None:
    away = Model("org/name", False, None)
    fault = Fault("./m/config.json is missing", "copy it again", ("git lfs pull",))
    broken = facts_of(model=Model("./m", True, None, fault))
    assert (seen(broken, "model").level, seen(broken, "model").commands) == ("error", ("git lfs pull",))
    assert str(dataclasses.asdict(broken)["model"]["fault"]) == str(fault)  # in the JSON
    assert seen(facts_of(model=away), "model").commands == ("hf download org/name",)
    assert seen(facts_of(model=away, offline=True), "model").level == "error"
    assert seen(facts_of(model=dataclasses.replace(away, parameters=5), offline=True), "model").level == "ok"
    read_only = facts_of(model=away, hub_cache=Folder("/cache", GIB, writable=False))
    assert seen(read_only, "model").commands == ("export HF_HOME=DIR",)


def test_without_a_model_a_gpu_trains_one_made_for_the_task() -> None:
    unnamed = Requirements(names_model=False)
    assert "makes a small one" in seen(facts_of(H200), "model", unnamed).what
    for facts, requirements in ((facts_of(), unnamed), (facts_of(H200), Requirements(device="cpu", names_model=False))):
        assert "the tiny model" in seen(facts, "model", requirements).what
