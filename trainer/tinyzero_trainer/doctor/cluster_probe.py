"""Looks at a Ray cluster, and has node_probe.py run on each of its nodes. Judges nothing.

Takes a few seconds, or `SECONDS` where Ray does not answer. Ray is contacted from a child process, this module as a
script: Ray replaces signal handlers, prints, and may wait for minutes. Meanwhile there is a marker in the run
directory; nothing else is changed here or on the nodes.
"""

import json
import logging
import os
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from tinyzero_trainer.doctor import node_probe
from tinyzero_trainer.doctor.child import ask_child, run_stages
from tinyzero_trainer.doctor.cluster_checks import NO_ADDRESS, SAME, SAME_WHERE_INSTALLED
from tinyzero_trainer.doctor.facts import Node, NodeReport, RayCluster
from tinyzero_trainer.errors import first_line
from tinyzero_trainer.executors.ray.cluster import import_ray, is_host_and_port, not_listening

SECONDS = 75.0  # for all of it
REPORT_SECONDS = 25.0  # for all nodes together, each of which starts a process first


def look_at_ray(
    address: str, *, directory: Path, model: str, command: Sequence[str] = (), timeout: float = SECONDS
) -> RayCluster:
    """The cluster and its nodes; `model` is the path of the model's directory, empty = it is not one."""
    named = (os.environ.get("RAY_ADDRESS") or address) if address == "auto" else address
    if named != "auto":
        if "://" in named or not is_host_and_port(named):
            return RayCluster("", NO_ADDRESS)  # not repeated, since it may contain a password
        if reason := not_listening(named):
            return RayCluster(named, reason)
    with marker(directory) as (path, content):
        names = [*SAME, *SAME_WHERE_INSTALLED]
        asked = json.dumps({"address": address, "look": [names, path, content, model]})
        seen = ask_child(command or ("-m", "tinyzero_trainer.doctor.cluster_probe", asked), timeout, "connect")
    cluster = RayCluster(named, directory=str(Path(path).parent) if path else "")
    if error := seen.get("connect_error") or seen.get("nodes_error"):
        return replace(cluster, error=error)
    nodes = [Node(**node | {"report": _report(node.get("report"))}) for node in seen["nodes"].values()]
    if late := seen.get("reports_error"):
        nodes = [replace(node, error=late) for node in nodes]
    nodes.sort(key=lambda node: (not node.head, len(node.address), node.address))
    return replace(cluster, address=seen["address"], nodes=tuple(nodes), local=_report(seen["local"]))


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


def _report(report: dict[str, Any] | None) -> NodeReport | None:
    if report is None:
        return None
    return NodeReport(**report | {"gpus": None if report["gpus"] is None else tuple(report["gpus"])})


# ---- in the child process --------------------------------------------------------------------------------------------


def main(address: str, look: list[Any]) -> None:
    def connect(seen: dict[str, Any]) -> None:
        ray = import_ray()
        logging.getLogger("ray").setLevel(logging.ERROR)
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR, configure_logging=False)
        seen["address"] = ray.get_runtime_context().gcs_address

    def nodes(seen: dict[str, Any]) -> None:
        ray = import_ray()
        free = ray._private.state.available_resources_per_node()
        alive = {node["NodeID"]: node for node in ray.nodes() if node["Alive"]}
        seen["nodes"] = {key: _node(node, free.get(key, {})) for key, node in alive.items()}
        seen["local"] = node_probe.look(*look)

    def reports(seen: dict[str, Any]) -> None:
        _ask_nodes(seen["nodes"], look)

    def shutdown(_: dict[str, Any]) -> None:
        import_ray().shutdown()

    run_stages({"connect": connect, "nodes": nodes, "reports": reports, "shutdown": shutdown}, _chain)


def _node(node: dict[str, Any], free: dict[str, float]) -> dict[str, Any]:
    total = node["Resources"]
    return {
        "address": node["NodeManagerAddress"],
        "head": "node:__internal_head__" in total,
        "cpus": total.get("CPU", 0.0),
        "gpus": total.get("GPU", 0.0),
        "cpus_free": free.get("CPU", 0.0),
        "gpus_free": free.get("GPU", 0.0),
        "store": int(total.get("object_store_memory", 0)),
    }


def _ask_nodes(nodes: dict[str, dict[str, Any]], look: list[Any]) -> None:
    """Add `report` or `error` to each, by a task that reserves none of the node's resources."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    ray.cloudpickle.register_pickle_by_value(node_probe)
    task = ray.remote(node_probe.look)
    calls = {}
    for key in nodes:
        strategy = NodeAffinitySchedulingStrategy(key, soft=False)
        calls[key] = task.options(num_cpus=0, max_retries=0, scheduling_strategy=strategy).remote(*look)
    done, _ = ray.wait(list(calls.values()), num_returns=len(calls), timeout=REPORT_SECONDS)
    for key, call in calls.items():
        if call not in done:
            nodes[key]["error"] = f"no answer within {REPORT_SECONDS:g} s"
            continue
        try:
            nodes[key]["report"] = ray.get(call)
        except Exception as error:  # anything may go wrong on another machine
            nodes[key]["error"] = first_line(getattr(error, "cause", None) or error)


def _chain(error: BaseException | None) -> str:
    """An exception and those that caused it, each with its type: Ray's reasons are at the end."""
    reasons = []
    while error is not None:
        reasons.append(f"{type(error).__name__}: {error}")
        error = error.__cause__ or error.__context__
    return "\n".join(reasons)


if __name__ == "__main__":
    main(**json.loads(sys.argv[1]))
