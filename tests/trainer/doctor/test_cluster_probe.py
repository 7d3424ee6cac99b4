"""What is seen of Ray clusters, and what a node reports; two real nodes are in executors/test_ray.py."""

import dataclasses
import json
import os
import socket
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.doctor.machines import ADDRESS, NODE, OTHER, REPORT, facts_of
from tests.trainer.processes import in_own_process, needs_ray
from tinyzero_trainer.distributed.parallel_dims import ParallelDims
from tinyzero_trainer.doctor import cluster_probe, node_probe
from tinyzero_trainer.doctor.checks import examine
from tinyzero_trainer.doctor.cluster_checks import NO_ADDRESS
from tinyzero_trainer.doctor.cluster_probe import look_at_ray, marker
from tinyzero_trainer.doctor.facts import RayCluster, Requirements


def look(directory: Path, address: str = "auto", **options: Any) -> RayCluster:
    return look_at_ray(address, directory=directory, model="", **options)


def test_an_address_is_tried_before_ray_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for address in ("http://user:s3cret@10.0.0.1:8265", "ray://x:1", "x", "x:y"):
        monkeypatch.setenv("RAY_ADDRESS", address)
        assert look(tmp_path) == look(tmp_path, address) == RayCluster("", NO_ADDRESS)
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert look(tmp_path, address) == RayCluster(address, "Connection refused")


SEEN = {
    "address": ADDRESS,
    "local": dataclasses.asdict(REPORT),
    "nodes": {str(key): dataclasses.asdict(node) for key, node in enumerate((OTHER, NODE))},
}


@pytest.mark.parametrize(
    ("lines", "error", "node_errors"),
    [
        ([SEEN], "", ["", ""]),
        ([SEEN | {"stage": "reports"}], "", ["its process ended with code 0"] * 2),
        ([{"stage": "connect"}], "its process ended with code 0", []),
        ([{"stage": "connect"}, {"connect_error": "refused"}], "refused", []),
    ],
)
def test_what_the_child_process_prints(lines, error, node_errors, tmp_path, monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    code = f"print({chr(10).join(map(json.dumps, lines))!r})"
    found = look(tmp_path / "run", command=("-c", code))
    assert (found.error, [node.error for node in found.nodes]) == (error, node_errors)
    assert list(tmp_path.iterdir()) == []
    if found.nodes:
        assert [node.address for node in found.nodes] == ["10.0.0.1", "10.0.0.2"]
        assert (found.nodes[0].report, found.local, found.address) == (REPORT, REPORT, ADDRESS)


@pytest.mark.slow
def test_a_ray_that_never_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    code = 'import time; print(\'{"stage": "connect"}\', flush=True); time.sleep(60)'
    assert look(tmp_path, command=("-c", code), timeout=0.3).error == "no answer within 0.3 s"


def test_the_marker_is_seen_where_it_is_and_removed_afterwards(tmp_path: Path) -> None:
    with marker(tmp_path / "not/yet") as (path, content):
        assert Path(path).parent == tmp_path
        assert node_probe.directory(path, content) == "shared"
        assert node_probe.directory(path, "another", seconds=0) == "other"
        assert node_probe.directory(str(tmp_path / "no/x"), content) == "missing"
    assert list(tmp_path.iterdir()) == []
    if os.geteuid():
        tmp_path.chmod(0o500)
        with marker(tmp_path) as (path, _):
            assert path == ""


def test_the_report_of_a_node(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "s3cret")
    found = node_probe.look(["torch", "not-installed"], "", "", str(tmp_path))
    report = cluster_probe._report(json.loads(json.dumps(found)))
    assert (report.directory, report.model) == ("", True)
    assert "s3cret" not in json.dumps(found)
    assert {"torch", "tinyzero-countdown"} <= report.packages.keys()
    assert "not-installed" not in report.packages


@pytest.mark.slow
def test_the_node_probe_needs_nothing_of_tinyzero_there() -> None:
    import ray

    ray.cloudpickle.register_pickle_by_value(node_probe)
    try:
        sent = ray.cloudpickle.dumps(node_probe.look)
    finally:
        ray.cloudpickle.unregister_pickle_by_value(node_probe)
    code = (
        "import json, sys; from ray import cloudpickle; "
        "sys.modules |= {'tinyzero_sdk': None, 'tinyzero_trainer': None}; "
        "print(json.dumps(cloudpickle.loads(sys.stdin.buffer.read())(['torch'], '', '', '')))"
    )
    done = subprocess.run([sys.executable, "-c", code], input=sent, capture_output=True, check=True)
    assert json.loads(done.stdout)["packages"]["torch"] == metadata.version("torch")


def cluster_of_one_node(directory: str) -> RayCluster:
    """What is seen of a Ray that has counted the GPUs itself, which `Cluster` prevents."""
    import ray

    context = ray.init("local", num_cpus=16, object_store_memory=2**28, include_dashboard=False)
    try:
        return look(Path(directory), context.address_info["gcs_address"])
    finally:
        ray.shutdown()


@needs_ray
@pytest.mark.gpu
def test_the_gpus_of_a_node(tmp_path: Path) -> None:
    count = torch.cuda.device_count()
    ray = in_own_process(cluster_of_one_node, tmp_path, str(tmp_path), gpus=True)
    assert ray.error == ""
    [node] = ray.nodes
    assert (node.error, node.gpus, node.gpus_free) == ("", count, count)
    # All of the driver's, though the task that reported them was given none.
    assert {torch.cuda.get_device_name(index) for index in range(count)} <= set(node.report.gpus)
    assert node.report.packages["torch"] == metadata.version("torch")
    for gpus, level in ((count, "ok"), (count + 1, "error")):
        requirements = Requirements(address=ray.address, dims=ParallelDims(gpus, num_engines=gpus))
        [layout] = [finding for finding in examine(facts_of(ray=ray), requirements) if finding.check == "layout"]
        assert layout.level == level, layout
