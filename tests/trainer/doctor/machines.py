"""Synthetic machines and Ray clusters for the tests of the doctor, and helpers that select findings on them."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from tinyzero_trainer.doctor.checks import examine
from tinyzero_trainer.doctor.facts import (
    Facts,
    Finding,
    Folder,
    Machine,
    Node,
    NodeReport,
    Package,
    RayCluster,
    Requirements,
    Torch,
)
from tinyzero_trainer.hardware.gpu import GIB, Driver, GpuInfo
from tinyzero_trainer.models.files import Model

CU124 = ("sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90")
CU130 = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120")

H200 = GpuInfo(0, "NVIDIA H200", (9, 0), 140 * GIB, 139 * GIB, uuid="a")
SECOND_H200 = dataclasses.replace(H200, index=1, uuid="e")
RTX_5090 = GpuInfo(0, "NVIDIA GeForce RTX 5090", (12, 0), 32 * GIB, 31 * GIB, uuid="b")
GTX_1080 = GpuInfo(0, "NVIDIA GeForce GTX 1080", (6, 1), 8 * GIB, 8 * GIB, uuid="c")
T4 = GpuInfo(0, "Tesla T4", (7, 5), 15 * GIB, 15 * GIB, uuid="d")

SEVEN_B = Model("seven", True, 7_000_000_000)
TRANSFORMERS = Package("transformers", "5.23.0")
NONE = Requirements()


def facts_of(*gpus: GpuInfo, archs: Sequence[str] = CU130, **changes: object) -> Facts:
    """A machine without problems, with GPUs or without."""
    parts: dict[str, object] = {
        "machine": Machine("3.12.3", 4, 64 * GIB, 60 * GIB, 8 * GIB),
        "torch": Torch("2.13.0+cu130", "13.0", archs=tuple(archs), gpus=gpus) if gpus else Torch("2.13.0+cpu"),
        "driver": Driver("580.82.07", (13, 0), gpus) if gpus else None,
        "visible": None,
        "packages": (TRANSFORMERS,),
        "output": Folder("runs", 100 * GIB),
        "hub_cache": Folder("~/.cache/huggingface/hub", 100 * GIB),
        "offline": False,
        "model": Model("the tiny model", True, 820_000),
    }
    return Facts(**(parts | changes))


def machine(**changes: object) -> Machine:
    return dataclasses.replace(facts_of().machine, **changes)


# ---- clusters --------------------------------------------------------------------------------------------------------

VERSIONS = {
    "tinyzero-sdk": "0.1.0",
    "tinyzero-trainer": "0.1.0",
    "torch": "2.13.0+cu130",
    "ray": "2.60.0",
}
REPORT = NodeReport("3.12.3", VERSIONS, 16 * GIB, "shared")
NODE = Node("10.0.0.1", True, 32, 8, 30, 8, 9 * GIB, REPORT)
OTHER = dataclasses.replace(NODE, address="10.0.0.2", head=False)
ADDRESS = "10.0.0.1:6379"
BY_ADDRESS = Requirements(address=ADDRESS)


def reporting(node: Node, **changes: Any) -> Node:
    return dataclasses.replace(node, report=dataclasses.replace(REPORT, **changes))


def with_ray(*nodes: Node, **changes: Any) -> Facts:
    """A machine that sees a Ray cluster of these nodes."""
    ray = RayCluster(ADDRESS, nodes=nodes, local=REPORT, directory="/data/runs")
    return facts_of(**{"ray": ray} | changes)


def problems(facts: Facts, requirements: Requirements = BY_ADDRESS) -> list[Finding]:
    """Findings that are not ok, besides those on the machine itself."""
    usual = examine(facts_of(), Requirements())
    found = [finding for finding in examine(facts, requirements) if finding.level != "ok" and finding not in usual]
    assert all(finding.do or finding.level == "note" for finding in found)
    return found


def eight_gpu_nodes(*free: float, cpus: float = 32) -> list[Node]:
    """Nodes of eight GPUs, with this many free."""
    return [
        dataclasses.replace(OTHER, address=f"10.0.0.{number}", gpus_free=gpus, cpus_free=cpus)
        for number, gpus in enumerate(free, 1)
    ]
