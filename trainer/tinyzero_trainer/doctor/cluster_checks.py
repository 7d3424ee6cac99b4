"""Findings on a Ray cluster: its nodes, what must be the same on all of them, and whether the run fits."""

import re
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import TypeVar

from tinyzero_sdk.console import plural
from tinyzero_trainer.distributed.parallel_dims import Resources
from tinyzero_trainer.doctor.facts import Facts, Finding, Level, Node, NodeReport, Requirements, as_size
from tinyzero_trainer.doctor.package_checks import ENGINES
from tinyzero_trainer.executors.ray.cluster import in_one_line
from tinyzero_trainer.hardware.gpu import GIB

ENOUGH_SHARED = GIB  # of /dev/shm, for NCCL and Ray; Docker gives 64 MiB
SHARED_FOR: dict[Level, str] = {"error": "NCCL between several GPUs", "warning": "Ray and vLLM"}

SAME = ("tinyzero-sdk", "tinyzero-trainer", "torch", "ray")
"""Packages that must be the same on all nodes for a run to work at all."""

SAME_WHERE_INSTALLED = ("transformers", *ENGINES, "peft", "nvidia-nccl-cu12", "nvidia-nccl-cu13")

RESTART = "restart Ray there"
INSTALL = ("pip install 'tinyzero-trainer[ray]'",)
NO_ADDRESS = "not the address of a Ray cluster"

Key = TypeVar("Key", bound=Hashable)
Item = TypeVar("Item")


# ---- Ray -------------------------------------------------------------------------------------------------------------


def check_ray(facts: Facts, requirements: Requirements) -> Iterator[Finding]:
    ray = facts.ray
    if ray is None:
        if requirements.dims is not None and "ray" not in facts.installed:
            what = "a run in several processes needs Ray, which is not installed"
            yield Finding("ray", "error", what, "install it", INSTALL)
    elif "needs Ray" in ray.error:
        yield Finding("ray", "error", "--address needs Ray, which is not installed", "install it", INSTALL)
    elif ray.error == NO_ADDRESS:
        what = f"--address or RAY_ADDRESS is {NO_ADDRESS}; that of Ray's dashboard or client is another"
        do = "give auto, or HOST:PORT as `ray start --head` prints it"
        yield Finding("ray", "error", what, do, ("tinyzero doctor --address HOST:6379",))
    elif ray.error:
        reason = in_one_line(re.sub(r"^\w+: ", "", ray.error))
        do = "start it there, with this Ray and Python and the same token (RAY_AUTH_MODE, RAY_AUTH_TOKEN), then here"
        commands = ("ray start --head --port=6379", f"ray start --address={ray.address}")
        yield Finding("ray", "error", f"Ray at {ray.address}: {reason}", do, commands)
    else:
        version = ray.local.packages.get("ray", "") if ray.local else ""
        yield Finding("ray", "ok", f"Ray {version} at {ray.address}: {_count(len(ray.nodes), 'node')}")


# ---- nodes -----------------------------------------------------------------------------------------------------------


def check_nodes(facts: Facts, requirements: Requirements) -> Iterator[Finding]:
    """What each node has; those that run no task, or have too little of something."""
    ray = facts.ray
    if ray is None or ray.error:
        return
    for node in ray.nodes:
        parts = [
            f"{node.address}{' (the head)' if node.head else ''}",
            f"{node.gpus_free:g} of {_count(node.gpus, 'GPU')} free" if node.gpus else "no GPU",
            f"{node.cpus_free:g} of {_count(node.cpus, 'CPU')} free",
            f"object store {as_size(node.store)}",
        ]
        if node.report and node.report.shared_memory is not None:
            parts.append(f"/dev/shm {as_size(node.report.shared_memory)}")
        yield Finding("node", "ok", ", ".join(parts))
        if node.error:
            what, do = f"{node.address} runs no task: {node.error}", f"see /tmp/ray/session_latest/logs, and {RESTART}"
            yield Finding("node", "error", what, do, (f"ray start --address={ray.address}",))
    for size, nodes in _grouped((report.shared_memory or ENOUGH_SHARED, node) for node, report in ray.reports).items():
        if size < ENOUGH_SHARED:
            level: Level = "error" if any(node.gpus > 1 for node in nodes) else "warning"
            what = f"{as_size(size)} of shared memory (/dev/shm) on {_names(nodes)}, too little for {SHARED_FOR[level]}"
            do = "start the container with more; on Kubernetes, mount an emptyDir of `medium: Memory`"
            yield Finding("shared memory", level, what, do, ("docker run --shm-size=16g …",))


# ---- what must be the same -------------------------------------------------------------------------------------------


def check_same_versions(facts: Facts, requirements: Requirements) -> Iterator[Finding]:
    ray = facts.ray
    if ray is None or ray.local is None or not ray.reports:
        return
    reports = {"this machine": ray.local} | {node.address: report for node, report in ray.reports}
    differing = []
    for package in dict.fromkeys(["python", *(name for report in reports.values() for name in report.packages)]):
        by_version = _grouped((_version(report, package), name) for name, report in reports.items())
        if package in SAME_WHERE_INSTALLED:
            by_version.pop("", None)
        if len(by_version) > 1:
            found = (f"{version or 'none'} on {_listed(names)}" for version, names in by_version.items())
            here = _version(ray.local, package)
            commands = (f"pip install '{package}=={here}'",) if here and package != "python" else ()
            do = f"install the same on all machines, and {RESTART}"
            level: Level = "error" if package in ("python", *SAME) else "warning"
            differing.append(Finding("versions", level, f"{package}: {'; '.join(found)}", do, commands))
    yield from differing
    if not differing:
        yield Finding("versions", "ok", "Python, Ray, torch and TinyZero are the same here and on all nodes")
    engine = requirements.engine
    if engine.packages:
        on_gpus = any(node.gpus for node in ray.nodes)
        generating = [(node, report) for node, report in ray.reports if node.gpus or not on_gpus]
        if without := [node for node, report in generating if report.packages.keys().isdisjoint(engine.packages)]:
            what = f"rollout.engine={engine.name}, but it is not installed on {_names(without)}"
            command = f"pip install 'tinyzero-trainer[{engine.extras[0 if on_gpus else 1]}]'"
            yield Finding(engine.name, "error", what, f"install it there, and {RESTART}", (command,))


def _version(report: NodeReport, package: str) -> str:
    return report.python.rpartition(".")[0] if package == "python" else report.packages.get(package, "")


def check_shared_directory(facts: Facts, requirements: Requirements) -> Iterator[Finding]:
    ray = facts.ray
    if ray is None or ray.error:
        return
    by_state = _grouped((str(report.directory), node) for node, report in ray.reports)
    share = "give --output a directory that all machines share, such as one on NFS"
    for state, problem, do in (
        ("missing", "is not the same directory on", share),
        ("unwritable", "is not writable on", "let the user that Ray runs as write it, or give another --output"),
    ):
        if nodes := by_state.get(state):
            yield Finding("run directory", "error", f"{ray.directory} {problem} {_names(nodes)}", do)
    if len(ray.nodes) > 1 and set(by_state) == {"shared"}:
        yield Finding("run directory", "ok", f"all nodes see {ray.directory}, and may write to it")
    if without := [node for node, report in ray.reports if report.model is False]:
        what = f"{facts.model.name} is not on {_names(without)}"
        do = "copy the model there, to the same path, or to a directory that all machines share"
        yield Finding("model", "error", what, do)


# ---- resources -------------------------------------------------------------------------------------------------------


def check_layout(facts: Facts, requirements: Requirements) -> Iterator[Finding]:
    """Whether the nodes have the GPUs and CPUs that the run reserves."""
    dims, ray = requirements.dims, facts.ray
    if dims is None or ray is None or ray.error:
        return
    bundles = dims.bundles()
    gpus, cpus = _total(bundles)
    actors = _count(dims.world_size, "rank")
    if dims.dedicated_engines:
        of_size = f" of {_count(dims.engine_tp, 'GPU')}" if gpus else ""
        actors += f" and {_count(dims.dedicated_engines, 'engine')}{of_size}"
    taken = f"{_count(gpus, 'GPU')} and {_count(cpus, 'CPU')}" if gpus else _count(cpus, "CPU")
    what = f"{actors} take {taken}"
    free: list[Resources] = [{"GPU": node.gpus_free, "CPU": node.cpus_free} for node in ray.nodes]
    existing: list[Resources] = [{"GPU": node.gpus, "CPU": node.cpus} for node in ray.nodes]
    if fits(bundles, free):
        yield Finding("layout", "ok", f"{what}: they are free")
        return
    one_node = f", and an engine needs {dims.engine_tp} GPUs of one node" if dims.engine_tp > 1 else ""
    if fits(bundles, existing):
        gpus, cpus = _total(free)
        what += f"; {plural(int(gpus), 'GPU')} and {plural(int(cpus), 'CPU')} are free{one_node}"
        do = "wait until other jobs end (train waits a minute), or make the run smaller"
        yield Finding("layout", "warning", what, do, (f"ray status --address={ray.address}",))
    else:
        gpus, cpus = _total(existing)
        what += f"; {plural(int(gpus), 'GPU')} and {plural(int(cpus), 'CPU')} exist{one_node}"
        do = "let more machines join, or make the run smaller"
        yield Finding("layout", "error", what, do, (f"ray start --address={ray.address}",))


def _total(resources: Sequence[Resources]) -> tuple[float, float]:
    return sum(node.get("GPU", 0) for node in resources), sum(node["CPU"] for node in resources)


def fits(bundles: Sequence[Resources], nodes: Sequence[Resources]) -> bool:
    """Whether the bundles can be placed, each on one node: the largest first, each where it fits most tightly.

    Example:
        >>> engine, rank = {"CPU": 1, "GPU": 4}, {"CPU": 1, "GPU": 1}
        >>> fits([engine, rank, rank], [{"CPU": 8, "GPU": 6}]), fits([engine], [{"CPU": 8, "GPU": 2}] * 2)
        (True, False)
    """
    free_nodes = [dict(node) for node in nodes]
    for bundle in sorted(bundles, key=lambda bundle: -bundle.get("GPU", 0)):
        able = [node for node in free_nodes if all(node[name] >= count for name, count in bundle.items())]
        if not able:
            return False
        node = min(able, key=lambda node: (node["GPU"], node["CPU"]))
        for name, count in bundle.items():
            node[name] -= count
    return True


CHECKS = (check_ray, check_nodes, check_same_versions, check_shared_directory, check_layout)


# ---- text ------------------------------------------------------------------------------------------------------------


def _grouped(pairs: Iterable[tuple[Key, Item]]) -> dict[Key, list[Item]]:
    groups: dict[Key, list[Item]] = {}
    for key, item in pairs:
        groups.setdefault(key, []).append(item)
    return groups


def _names(nodes: Iterable[Node]) -> str:
    return _listed(list(dict.fromkeys(node.address for node in nodes)))


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _count(number: float, noun: str) -> str:
    return f"{number:g} {noun}{'' if number == 1 else 's'}"
