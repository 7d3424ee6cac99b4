"""Looks at a Ray cluster, and has node_probe.py run on each of its nodes. Judges nothing.

Meanwhile there is a marker in the run directory; nothing else is changed here or on the nodes.
"""

import os
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from tinyzero_trainer.config import RayConfig
from tinyzero_trainer.doctor import node_probe
from tinyzero_trainer.doctor.cluster_checks import NO_ADDRESS, SAME, SAME_WHERE_INSTALLED
from tinyzero_trainer.doctor.facts import Node, NodeReport, RayCluster
from tinyzero_trainer.errors import first_line
from tinyzero_trainer.executors.ray.cluster import import_ray, is_host_and_port, not_listening, start

REPORT_SECONDS = 25.0  # for all nodes together, each of which starts a process first


def look_at_ray(address: str, *, directory: Path, model: str) -> RayCluster:
    """The cluster and its nodes; `model` is the path of the model's directory, empty = it is not one."""
    named = (os.environ.get("RAY_ADDRESS") or address) if address == "auto" else address
    if named != "auto":
        if "://" in named or not is_host_and_port(named):
            return RayCluster("", NO_ADDRESS)  # not repeated, since it may contain a password
        if reason := not_listening(named):
            return RayCluster(named, reason)
    with marker(directory) as (path, content):
        cluster = RayCluster(named, directory=str(Path(path).parent) if path else "")
        look = ([*SAME, *SAME_WHERE_INSTALLED], path, content, model)
        try:
            start(RayConfig(address=address), [])
            try:
                address, nodes = import_ray().get_runtime_context().gcs_address, _ask_nodes(look)
            finally:
                import_ray().shutdown()
        except Exception as error:  # Ray's errors are of many types
            return replace(cluster, error=str(error.__cause__ or error))
        return replace(cluster, address=address, nodes=nodes, local=NodeReport(**node_probe.look(*look)))


def _ask_nodes(look: tuple[Any, ...]) -> tuple[Node, ...]:
    """What Ray knows of its nodes, and what a task sees there that reserves none of their resources."""
    ray = import_ray()
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ray.cloudpickle.register_pickle_by_value(node_probe)
    task, free = ray.remote(node_probe.look), ray._private.state.available_resources_per_node()
    alive, calls = [node for node in ray.nodes() if node["Alive"]], {}
    for node in alive:
        there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        calls[node["NodeID"]] = task.options(num_cpus=0, max_retries=0, scheduling_strategy=there).remote(*look)
    done, _ = ray.wait(list(calls.values()), num_returns=len(calls), timeout=REPORT_SECONDS)
    nodes = []
    for node in alive:
        key, report, error = node["NodeID"], None, ""
        if calls[key] not in done:
            error = f"no answer within {REPORT_SECONDS:g} s"
        else:
            try:
                report = NodeReport(**ray.get(calls[key]))
            except Exception as failure:  # anything may go wrong on another machine
                error = first_line(getattr(failure, "cause", None) or failure)
        nodes.append(_node(node, free.get(key, {}), report, error))
    return tuple(sorted(nodes, key=lambda node: (not node.head, len(node.address), node.address)))


def _node(node: Mapping[str, Any], free: Mapping[str, float], report: NodeReport | None, error: str) -> Node:
    total = node["Resources"]
    return Node(
        address=node["NodeManagerAddress"],
        head="node:__internal_head__" in total,
        cpus=total.get("CPU", 0.0),
        gpus=total.get("GPU", 0.0),
        cpus_free=free.get("CPU", 0.0),
        gpus_free=free.get("GPU", 0.0),
        store=int(total.get("object_store_memory", 0)),
        report=report,
        error=error,
    )


@contextmanager
def marker(directory: Path) -> Iterator[tuple[str, str]]:
    """A file in a directory, or in the nearest one above it that exists: its path and its content.

    The path is empty where nothing can be written, which `check_disk` reports.
    """
    content, directory = uuid.uuid4().hex, directory.expanduser().absolute()
    existing = next(parent for parent in (directory, *directory.parents) if parent.is_dir())
    path = existing / f".tinyzero-doctor-{content}"
    try:
        path.write_text(content, encoding="utf-8")
    except OSError:
        yield "", content
        return
    try:
        yield str(path), content
    finally:
        path.unlink(missing_ok=True)
