"""Findings on Ray clusters and their nodes; two real nodes are in executors/test_ray.py."""

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.doctor.machines import (
    ADDRESS,
    BY_ADDRESS,
    H200,
    NODE,
    OTHER,
    REPORT,
    SECOND_H200,
    TRANSFORMERS,
    VERSIONS,
    eight_gpu_nodes,
    facts_of,
    problem,
    problems,
    reporting,
    seen,
    with_ray,
)
from tinyzero_trainer.distributed.parallel_dims import ParallelDims
from tinyzero_trainer.doctor.checks import examine
from tinyzero_trainer.doctor.cluster_checks import NO_ADDRESS, fits
from tinyzero_trainer.doctor.facts import Node, Package, RayCluster, Requirements
from tinyzero_trainer.kinds import find_engine


def test_two_nodes_without_problems() -> None:
    assert not {"ray", "node", "layout"} & {finding.check for finding in examine(facts_of(), Requirements())}
    found = {finding.check: finding for finding in examine(with_ray(NODE, OTHER), BY_ADDRESS)}
    assert problems(with_ray(NODE, OTHER)) == []
    assert found["ray"].what == "Ray 2.60.0 at 10.0.0.1:6379: 2 nodes"
    assert found["2 nodes"].what == (
        "10.0.0.1 and 10.0.0.2, each: 8 of 8 GPUs free, 30 of 32 CPUs free, NVIDIA H200, object store 9.0 GiB, "
        "/dev/shm 16.0 GiB"
    )
    assert found["run directory"].what == "all nodes see /data/runs, and may write to it"
    assert "Python, Ray, torch and TinyZero are the same" in found["versions"].what
    one = dataclasses.replace(NODE, gpus=0, gpus_free=0, report=None)
    assert seen(with_ray(one), "node").what == "10.0.0.1 (the head), no GPU, 30 of 32 CPUs free, object store 9.0 GiB"


# ---- Ray -------------------------------------------------------------------------------------------------------------

REFUSED = (
    "ConnectionError: Failed to connect to Ray cluster at 10.0.0.1:6379\nRuntimeError: Failed to connect to GCS. Last "
    "connection error: Traceback\nRpcError: InvalidAuthToken: Authentication token is missing or incorrect"
)
NO_TOKEN = (
    "AuthenticationError: Token authentication is enabled but no authentication token was found. Ensure that the token "
    "for the cluster is available in a local file (e.g., ~/.ray/auth_token or via RAY_AUTH_TOKEN_PATH)"
)
MISMATCH = (
    "RuntimeError: Version mismatch: The cluster was started with:\n    Ray: 2.55.0\n    Python: 3.12.3\nThis process "
    "on node 10.0.0.1 was started with:\n    Ray: 2.60.0\n    Python: 3.11.2\n"
)
NO_RAY = "RayError: run.executor='ray' needs Ray (No module named 'ray'); install it with: pip"


@pytest.mark.parametrize(
    ("error", "what", "command"),
    [
        (REFUSED, "requires a token, and none or a different one", "export RAY_AUTH_MODE=token"),
        (NO_TOKEN, "requires a token, and none or a different one", "export RAY_AUTH_MODE=token"),
        (MISMATCH, "Ray 2.55.0, Python 3.12.3 there, Ray 2.60.0, Python 3.11.2 here", None),
        (NO_RAY, "--address needs Ray", "pip install 'tinyzero-trainer[ray]'"),
        (NO_ADDRESS, "not the address of a Ray cluster", "tinyzero doctor --address HOST:6379"),
        ("Connection refused", f"no Ray at {ADDRESS} (Connection refused)", "ray start --head --port=6379"),
        ("ConnectionError: Could not find any running Ray instance. X", "no Ray at", "ray start --head --port=6379"),
        ("Exception: Ray expects this IP address", "this machine is not a node of", f"ray start --address={ADDRESS}"),
        ("no answer within 75 s", "no answer within 75 s", f"ray status --address={ADDRESS}"),
        ("RuntimeError: something new\nand more", ": something new", f"ray status --address={ADDRESS}"),
    ],
)
def test_a_cluster_that_cannot_be_examined(error: str, what: str, command: str | None) -> None:
    finding = problem(facts_of(ray=RayCluster(ADDRESS, error)))
    assert (finding.check, finding.level) == ("ray", "error")
    assert what in finding.what
    assert "\n" not in finding.what
    assert finding.commands[:1] == ((command,) if command else ())


def test_several_nodes_without_a_token_are_open_to_all() -> None:
    assert "run code on all nodes" in problem(with_ray(NODE, OTHER, sends_token=False)).what
    assert problems(with_ray(NODE, sends_token=False)) == []


def test_several_processes_need_ray() -> None:
    finding = seen(facts_of(H200), "ray", Requirements(dims=ParallelDims()))
    assert (finding.level, finding.commands) == ("error", ("pip install 'tinyzero-trainer[ray]'",))


# ---- nodes -----------------------------------------------------------------------------------------------------------


def test_dead_and_silent_nodes() -> None:
    dead = Node("10.0.0.3", alive=False, reason="health check failed")
    finding = problem(with_ray(NODE, OTHER, dead))
    assert (finding.level, finding.what) == ("warning", "10.0.0.3 left the cluster: health check failed")
    assert problems(with_ray(NODE, OTHER, dataclasses.replace(dead, address="10.0.0.2"))) == []  # it has come back
    finding = problem(with_ray(NODE, dataclasses.replace(OTHER, report=None, error="no answer within 25 s")))
    assert (finding.level, finding.what) == ("error", "10.0.0.2 runs no task: no answer within 25 s")


def test_gpus_that_ray_does_not_count() -> None:
    finding = problem(with_ray(dataclasses.replace(NODE, gpus=4, gpus_free=4)))
    assert (finding.level, finding.commands[-1]) == ("warning", "ray start --head --num-gpus=8")
    assert problem(with_ray(NODE, reporting(OTHER, gpus=("NVIDIA H200",)))).level == "error"
    assert problems(with_ray(NODE, reporting(OTHER, gpus=None))) == []


@pytest.mark.parametrize(
    ("changes", "level", "what"),
    [
        ({"packages": VERSIONS | {"torch": "2.11.0"}}, "error", "torch: 2.13.0+cu130 on this machine and 10.0.0.1; 2"),
        ({"packages": VERSIONS | {"tinyzero-sdk": "0.2"}}, "error", "tinyzero-sdk: 0.1.0 on this machine and 10.0.0.1"),
        ({"packages": VERSIONS | {"tinyzero-countdown": "0.2"}}, "warning", "tinyzero-countdown: 0.1.0 on"),
        ({"packages": VERSIONS | {"my-task": "1"}}, "warning", "my-task: none on this machine and 10.0.0.1; 1 on 10"),
        ({"python": "3.11.2"}, "error", "python: 3.12.3 on this machine and 10.0.0.1; 3.11.2 on 10.0.0.2"),
        ({"python": "3.12.9"}, "warning", "python: 3.12.3 on this machine"),
        ({"directory": "missing"}, "error", "/data/runs does not exist on 10.0.0.2"),
        ({"directory": "other"}, "error", "/data/runs is not the same directory on 10.0.0.2"),
        ({"directory": "unwritable"}, "error", "/data/runs is not writable on 10.0.0.2"),
        ({"model": False}, "error", "the tiny model is not on 10.0.0.2"),
        ({"shared_memory": 64 * 2**20}, "error", "64 MiB of shared memory (/dev/shm) on 10.0.0.2, too little for NCCL"),
        ({"open_files": 1024}, "warning", "at most 1,024 open files on 10.0.0.2"),
        ({"packages": VERSIONS | {"vllm": "0.25.1"}}, "", ""),
    ],
)
def test_a_node_that_differs(changes: dict[str, Any], level: str, what: str) -> None:
    found = problems(with_ray(NODE, reporting(OTHER, **changes)))
    assert [finding.level for finding in found] == ([level] if what else [])
    assert all(what in finding.what for finding in found)


def test_vllm_is_needed_where_it_would_generate() -> None:
    requirements = Requirements(address=ADDRESS, engine=find_engine("vllm"))
    both = [reporting(node, packages=VERSIONS | {"vllm": "0.25.1"}) for node in (NODE, OTHER)]
    head = dataclasses.replace(NODE, gpus=0, gpus_free=0, report=dataclasses.replace(REPORT, gpus=None))
    packages = (TRANSFORMERS, Package("vllm", "0.25.1"))
    for nodes, what in ((both, ""), ([head, both[1]], ""), ([both[0], OTHER], "not installed on 10.0.0.2")):
        found = [one for one in problems(with_ray(*nodes, packages=packages), requirements) if one.check == "vllm"]
        assert [what in finding.what for finding in found] == ([True] if what else [])


# ---- resources -------------------------------------------------------------------------------------------------------


def dims(ranks: int, engines: int, engine_tp: int, device: str = "cuda") -> ParallelDims:
    return ParallelDims(ranks, num_engines=engines or ranks, engine_tp=engine_tp, colocated=not engines, device=device)


@pytest.mark.parametrize(
    ("layout", "free", "level", "what"),
    [
        (dims(16, 0, 1), (8, 8), "ok", "16 ranks and 1 scorer take 16 GPUs and 17 CPUs: they are free"),
        (dims(14, 1, 2), (8, 8), "ok", "14 ranks, 1 engine of 2 GPUs and 1 scorer take 16 GPUs and 16 CPUs"),
        (dims(16, 0, 1), (8, 4), "warning", "12 GPUs and 64 CPUs are free"),
        (dims(24, 0, 1), (8, 4), "error", "16 GPUs and 64 CPUs exist"),
        (dims(4, 2, 4), (7, 3, 3), "warning", "13 GPUs and 96 CPUs are free, and an engine needs 4 GPUs of one node"),
        (dims(8, 0, 4), (6, 2), "warning", "and an engine needs 4 GPUs of one node"),
        (dims(3, 0, 1, "cpu"), (0,), "ok", "3 ranks and 1 scorer take 4 CPUs: they are free"),
        (dims(40, 0, 1, "cpu"), (8,), "error", "8 GPUs and 32 CPUs exist"),
    ],
)
def test_resources_of_a_run(layout: ParallelDims, free: tuple[float, ...], level: str, what: str) -> None:
    finding = seen(with_ray(*eight_gpu_nodes(*free)), "layout", Requirements(address=ADDRESS, dims=layout))
    assert finding.level == level
    assert what in finding.what


def test_cpus_have_to_be_on_the_node_of_the_gpus() -> None:
    uneven = [*eight_gpu_nodes(8, cpus=2), dataclasses.replace(eight_gpu_nodes(8)[0], address="10.0.0.2")]
    assert seen(with_ray(*uneven), "layout", Requirements(address=ADDRESS, dims=dims(16, 0, 1))).level == "warning"


def test_gpus_of_this_machine() -> None:
    facts = facts_of(H200, SECOND_H200, packages=(TRANSFORMERS, Package("ray", "2.60.0")))
    for gpus, level in ((2, "ok"), (4, "error")):
        assert seen(facts, "layout", Requirements(dims=dims(gpus, 0, 1))).level == level


@given(*(st.integers(1, 4), st.integers(0, 3), st.integers(1, 3)), st.lists(st.integers(0, 6), min_size=1, max_size=3))
def test_gpus_fit_if_engines_have_a_node_and_all_have_a_gpu(ranks: int, engines: int, tp: int, gpus: list[int]) -> None:
    layout = dims(ranks if engines else ranks * tp, engines, tp)
    whole = engines or ranks  # bundles of `tp` GPUs
    expected = sum(gpu // tp for gpu in gpus) >= whole and sum(gpus) >= layout.gpus
    if not engines:
        expected = sum(gpu // tp for gpu in gpus) >= whole
    nodes = [{"GPU": float(count), "CPU": 99.0} for count in gpus]
    assert fits(layout.bundles(1), nodes) is expected
