"""What is seen of Ray clusters, and what a node reports; two real nodes are in executors/test_ray.py."""

import json
import os
import socket
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
import torch

from tests.trainer.doctor.machines import facts_of
from tests.trainer.processes import in_own_process, needs_ray
from tinyzero_trainer.distributed.parallel_dims import ParallelDims
from tinyzero_trainer.doctor import node_probe
from tinyzero_trainer.doctor.checks import examine
from tinyzero_trainer.doctor.cluster_checks import NO_ADDRESS
from tinyzero_trainer.doctor.cluster_probe import look_at_ray, marker
from tinyzero_trainer.doctor.facts import NodeReport, RayCluster, Requirements


def look(directory: Path, address: str = "auto") -> RayCluster:
    return look_at_ray(address, directory=directory, model="")


def test_an_address_is_tried_before_ray_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for address in ("http://user:s3cret@10.0.0.1:8265", "ray://x:1", "x", "x:y"):
        monkeypatch.setenv("RAY_ADDRESS", address)
        assert look(tmp_path) == look(tmp_path, address) == RayCluster("", NO_ADDRESS)
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert look(tmp_path, address) == RayCluster(address, "Connection refused")


def test_the_marker_is_seen_where_it_is_and_removed_afterwards(tmp_path: Path) -> None:
    with marker(tmp_path / "not/yet") as (path, content):
        assert Path(path).parent == tmp_path
        assert node_probe.directory(path, content) == "shared"
        assert node_probe.directory(path, "another", seconds=0) == "missing"
    assert list(tmp_path.iterdir()) == []
    if os.geteuid():
        tmp_path.chmod(0o500)
        with marker(tmp_path) as (path, _):
            assert path == ""


def test_the_report_of_a_node(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "s3cret")
    found = node_probe.look(["torch", "not-installed"], "", "", str(tmp_path))
    report = NodeReport(**found)
    assert (report.directory, report.model) == ("", True)
    assert "s3cret" not in json.dumps(found)
    assert report.packages.keys() == {"torch"}


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
    assert node.report.packages["torch"] == metadata.version("torch")
    for gpus, level in ((count, "ok"), (count + 1, "error")):
        requirements = Requirements(address=ray.address, dims=ParallelDims(gpus, num_engines=gpus))
        [layout] = [finding for finding in examine(facts_of(ray=ray), requirements) if finding.check == "layout"]
        assert layout.level == level, layout
