"""What the doctor finds on synthetic machines and clusters: checks, levels and commands, as findings.json has them.

After an intended change, `.venv/bin/python -m tests.trainer.doctor.test_findings` writes the file anew.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.doctor.machines import (
    ADDRESS,
    BY_ADDRESS,
    CU124,
    CU130,
    GIB,
    GTX_1080,
    H200,
    NODE,
    NONE,
    OTHER,
    REPORT,
    RTX_5090,
    SECOND_H200,
    SEVEN_B,
    T4,
    TRANSFORMERS,
    VERSIONS,
    eight_gpu_nodes,
    facts_of,
    machine,
    problems,
    reporting,
    with_ray,
)
from tinyzero_trainer.distributed.parallel_dims import ParallelDims
from tinyzero_trainer.doctor import checks, cluster_checks, gpu_checks, package_checks
from tinyzero_trainer.doctor.cluster_checks import NO_ADDRESS, fits
from tinyzero_trainer.doctor.facts import Facts, Folder, Package, RayCluster, Requirements, Torch
from tinyzero_trainer.errors import Fault
from tinyzero_trainer.hardware.gpu import Driver, Process
from tinyzero_trainer.kinds import find_engine
from tinyzero_trainer.models.files import Model

FILE = Path(__file__).with_name("findings.json")
VLLM = find_engine("vllm")
OURS = Package(
    "tinyzero-trainer",
    "0.1.0",
    (
        *("torch>=2.6", "transformers>=5.0", "rich>=13"),
        *('vllm>=0.22; extra == "vllm"', 'ray>=2.40; extra == "ray"', 'torch>=2.9; extra == "ray"'),
    ),
)
VLLM_PACKAGE = Package("vllm", "0.25.1", ("torch==2.11.0", 'torchvision==0.26.0; platform_system == "Nowhere"'))
RAY = Package("ray", "2.60.0")
AWAY = Model("org/name", False, None)
MISMATCH = (
    "RuntimeError: Version mismatch: The cluster was started with:\n    Ray: 2.55.0\n    Python: 3.12.3\nThis process "
    "on node 10.0.0.1 was started with:\n    Ray: 2.60.0\n    Python: 3.11.2\n"
)
UNREACHABLE = (
    MISMATCH,
    "RayError: run.executor='ray' needs Ray (No module named 'ray'); install it with: pip",
    NO_ADDRESS,
    "Connection refused",
)


def dims(ranks: int, engines: int, engine_tp: int, device: str = "cuda") -> ParallelDims:
    return ParallelDims(ranks, num_engines=engines or ranks, engine_tp=engine_tp, colocated=not engines, device=device)


def on(device: str) -> Requirements:
    return Requirements(device=device)


def local() -> Iterator[tuple[str, Facts, Requirements]]:
    for gpus in ((), (H200,), (RTX_5090,), (H200, SECOND_H200)):
        yield f"{len(gpus)} GPUs without problems", facts_of(*gpus), NONE
    yield "a GPU is requested, and there is no driver", facts_of(), on("cuda")
    for version, cuda in (("535.104", (12, 2)), ("470.1", (11, 4)), ("580.1", (13, 0)), ("", None)):
        old = facts_of(H200, driver=Driver(version, cuda, (H200,)))
        yield f"driver {version}", old, NONE
        yield f"driver {version}, on the CPU", old, on("cpu")
    for container in (True, False):
        broken = facts_of(driver=Driver(error="NVML: version mismatch"), machine=machine(container=container))
        yield f"a driver that cannot be asked, container={container}", broken, NONE
        small = machine(shared_memory=64 * 2**20, container=container)
        for gpus, names in (((), ()), ((H200,), ("ray",)), ((H200, SECOND_H200), ())):
            shm = facts_of(*gpus, machine=small, packages=[Package(name, "2.60") for name in names])
            yield f"little shared memory, {container} {len(gpus)}", shm, NONE
    two = Driver("580.1", (13, 0), (H200, H200))
    yield "torch for the CPU", facts_of(torch=Torch("2.13.0+cpu"), driver=two), NONE
    ancient = Driver("470.1", (11, 4), (replace(H200, capability=(3, 5)),))
    yield "torch for the CPU, an ancient GPU", facts_of(torch=Torch("2.13.0+cpu"), driver=ancient), NONE
    blind = Torch("2.13.0+cu130", "13.0", archs=CU130, cuda_error="CUDA unknown error")
    for visible in ("", "7", None):
        yield f"torch sees no GPU, {visible}", facts_of(torch=blind, driver=two, visible=visible), NONE
    yield "a device that torch does not see", facts_of(H200, visible="4"), on("cuda:1")
    for gpu, archs in ((RTX_5090, CU124), (GTX_1080, CU130), (replace(H200, capability=(15, 0)), CU124)):
        yield f"no kernels for {gpu.name}", facts_of(gpu, archs=archs), NONE
    for device in ("cpu", "cuda", "cuda:0", "cuda:1"):
        yield f"no kernels for one of two, {device}", facts_of(RTX_5090, SECOND_H200, archs=CU124), on(device)
    busy = replace(H200, free=20 * GIB, processes=(Process(4711, "python3", 119 * GIB),))
    yield "a GPU in use", facts_of(busy, SECOND_H200), NONE
    yield "a GPU without bfloat16", facts_of(T4), NONE
    amd = Torch("2.13.0+rocm7", hip=True, archs=("gfx942",), gpus=(replace(H200, name="MI300X"),))
    yield "AMD's GPU", facts_of(torch=amd, driver=None), NONE
    yield "a large model on the CPU", facts_of(model=SEVEN_B), Requirements(trained_models=2, frozen_models=1)
    for free in (100, 300):
        yield f"disk, {free}", facts_of(H200, model=SEVEN_B, output=Folder("runs", free * GIB)), Requirements(keep=5)
    yield "a disk that is not writable", facts_of(output=Folder("/mnt", GIB, writable=False)), NONE
    yield "a small disk", facts_of(model=AWAY, output=Folder("runs", GIB)), NONE
    missing = Fault("config.json is missing", "copy it", ("x",))
    yield "a broken model", facts_of(model=Model("m", True, None, missing)), NONE
    yield "a model to download", facts_of(model=AWAY), NONE
    yield "a model to download, offline", facts_of(model=AWAY, offline=True), NONE
    yield "a read-only cache", facts_of(model=AWAY, hub_cache=Folder("/cache", GIB, writable=False)), NONE
    yield "no model on a GPU", facts_of(H200), Requirements(names_model=False)


def installations() -> Iterator[tuple[str, Facts, Requirements]]:
    yield "no torch", facts_of(torch=Torch(error="No module named 'torch'")), NONE
    broken = Torch("2.13.0+cpu", transformers_error="operator torchvision::nms does not exist")
    yield "no transformers", facts_of(torch=broken), NONE
    yield "no transformers, for torchvision", facts_of(torch=broken, packages=(Package("torchvision", "0.20.0"),)), NONE
    yield "old transformers", facts_of(packages=(OURS, Package("transformers", "4.57.1"))), NONE
    for requirements in (NONE, Requirements(engine=VLLM)):
        old = facts_of(packages=(OURS, TRANSFORMERS, Package("vllm", "0.2.5")))
        yield f"an old vLLM, {requirements.engine.name}", old, requirements
        other = facts_of(H200, packages=(VLLM_PACKAGE, TRANSFORMERS))
        yield f"a vLLM for another torch, {requirements.engine.name}", other, requirements
    for requirements in (NONE, Requirements(dims=ParallelDims())):
        old = facts_of(packages=(OURS, TRANSFORMERS, Package("ray", "2.9.0")))
        yield f"an old Ray, {requirements.dims is None}", old, requirements
    yield "an old torch for Ray", facts_of(torch=Torch("2.7.0+cpu"), packages=(OURS, TRANSFORMERS, RAY)), NONE
    yield "vLLM is missing", facts_of(H200), Requirements(engine=VLLM)
    yield "vLLM is missing on the CPU", facts_of(), Requirements(engine=VLLM)
    torchvision = Package("torchvision", "0.20.0", ("torch==2.5.0", "numpy"))
    yield "a torchvision for another torch", facts_of(packages=(torchvision,)), NONE
    yield "Ray is missing", facts_of(H200), Requirements(dims=ParallelDims())


def clusters() -> Iterator[tuple[str, Facts, Requirements]]:
    yield "two nodes", with_ray(NODE, OTHER), BY_ADDRESS
    for number, error in enumerate(UNREACHABLE):
        yield f"unreachable {number}", facts_of(ray=RayCluster(ADDRESS, error)), BY_ADDRESS
    yield "a silent node", with_ray(NODE, replace(OTHER, report=None, error="no answer within 25 s")), BY_ADDRESS
    for number, changes in enumerate(
        (
            {"packages": VERSIONS | {"torch": "2.11.0"}},
            {"packages": VERSIONS | {"vllm": "0.25.1"}},
            {"python": "3.11.2"},
            *({"directory": state} for state in ("missing", "unwritable")),
            {"model": False},
            {"shared_memory": 64 * 2**20},
        )
    ):
        yield f"a node that differs {number}", with_ray(NODE, reporting(OTHER, **changes)), BY_ADDRESS
    both = [reporting(node, packages=VERSIONS | {"vllm": "0.25.1"}) for node in (NODE, OTHER)]
    head = replace(NODE, gpus=0, gpus_free=0, report=REPORT)
    packages = (TRANSFORMERS, Package("vllm", "0.25.1"))
    for number, nodes in enumerate((both, [head, both[1]], [both[0], OTHER])):
        yield f"vLLM on nodes {number}", with_ray(*nodes, packages=packages), replace(BY_ADDRESS, engine=VLLM)
    for number, (layout, free) in enumerate(
        (
            *((dims(16, 0, 1), (8, 8)), (dims(14, 1, 2), (8, 8)), (dims(16, 0, 1), (8, 4)), (dims(24, 0, 1), (8, 4))),
            *((dims(4, 2, 4), (7, 3, 3)), (dims(8, 0, 4), (6, 2)), (dims(3, 0, 1, "cpu"), (0,))),
            (dims(40, 0, 1, "cpu"), (8,)),
        )
    ):
        yield f"layout {number}", with_ray(*eight_gpu_nodes(*free)), Requirements(address=ADDRESS, dims=layout)


CASES = {name: (facts, requirements) for name, facts, requirements in (*local(), *installations(), *clusters())}


def found(facts: Facts, requirements: Requirements) -> Any:
    """Check, level and commands of all that is not ok."""
    return [[finding.check, finding.level, *finding.commands] for finding in problems(facts, requirements)]


@pytest.mark.parametrize("name", CASES)
def test_findings_are_those_in_the_file(name: str) -> None:
    expected = json.loads(FILE.read_text(encoding="utf-8"))
    assert found(*CASES[name]) == expected[name]
    assert expected.keys() == CASES.keys()
    assert all("\n" not in finding.what + finding.do and len(finding.what) < 400 for finding in problems(*CASES[name]))


def test_every_check_is_in_the_list() -> None:
    written = {
        value
        for module in (checks, gpu_checks, package_checks, cluster_checks)
        for name, value in vars(module).items()
        if name.startswith("check_") and value.__module__ == module.__name__
    }
    assert written == set(checks.CHECKS)


@given(*(st.integers(1, 4), st.integers(0, 3), st.integers(1, 3)), st.lists(st.integers(0, 6), min_size=1, max_size=3))
def test_gpus_fit_if_engines_have_a_node_and_all_have_a_gpu(ranks: int, engines: int, tp: int, gpus: list[int]) -> None:
    layout = dims(ranks if engines else ranks * tp, engines, tp)
    whole = engines or ranks  # bundles of `tp` GPUs
    expected = sum(gpu // tp for gpu in gpus) >= whole and sum(gpus) >= layout.gpus
    if not engines:
        expected = sum(gpu // tp for gpu in gpus) >= whole
    nodes = [{"GPU": float(count), "CPU": 99.0} for count in gpus]
    assert fits(layout.bundles(), nodes) is expected


if __name__ == "__main__":
    lines = (f"{json.dumps(name)}: {json.dumps(found(*case), ensure_ascii=False)}" for name, case in CASES.items())
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
