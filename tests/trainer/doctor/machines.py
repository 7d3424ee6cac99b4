"""Machines that are made up, for the tests of the doctor."""

import dataclasses
from collections.abc import Sequence

from tinyzero_trainer.doctor.checks import examine
from tinyzero_trainer.doctor.facts import Facts, Folder, Machine, Package, Requirements, Torch
from tinyzero_trainer.doctor.finding import Finding
from tinyzero_trainer.hardware.gpu import GIB, Driver, GpuInfo
from tinyzero_trainer.models.files import Model

CU124 = ("sm_50", "sm_60", "sm_70", "sm_75", "sm_80", "sm_86", "sm_90")
CU130 = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120")

H200 = GpuInfo(0, "NVIDIA H200", (9, 0), 140 * GIB, 139 * GIB, uuid="a")
RTX_5090 = GpuInfo(0, "NVIDIA GeForce RTX 5090", (12, 0), 32 * GIB, 31 * GIB, uuid="b")
GTX_1080 = GpuInfo(0, "NVIDIA GeForce GTX 1080", (6, 1), 8 * GIB, 8 * GIB, uuid="c")
T4 = GpuInfo(0, "Tesla T4", (7, 5), 15 * GIB, 15 * GIB, uuid="d")


TORCH = Torch("2.13.0+cu130", "13.0", nccl="2.27.5")


def facts_of(*gpus: GpuInfo, archs: Sequence[str] = CU130, **changes: object) -> Facts:
    """A machine on which nothing is wrong, with GPUs or without."""
    parts: dict[str, object] = {
        "machine": Machine((3, 12, 3), 4, 64 * GIB, 60 * GIB, 8 * GIB, (65536, 65536)),
        "torch": dataclasses.replace(TORCH, archs=tuple(archs), gpus=gpus) if gpus else Torch("2.13.0+cpu"),
        "driver": Driver("580.82.07", (13, 0), gpus) if gpus else None,
        "visible": None,
        "packages": (Package("transformers", "5.23.0"),),
        "output": Folder("runs", 100 * GIB),
        "hub_cache": Folder("~/.cache/huggingface/hub", 100 * GIB),
        "offline": False,
        "model": Model("the tiny model", True, 820_000),
    }
    return Facts(**(parts | changes))


def machine(**changes: object) -> Machine:
    return dataclasses.replace(facts_of().machine, **changes)


def seen(facts: Facts, check: str, requirements: Requirements = Requirements()) -> Finding:  # noqa: B008  # frozen
    """The one finding of a check, complete enough to be shown."""
    [finding] = [finding for finding in examine(facts, requirements) if finding.check == check]
    assert finding.level == "ok" or finding.do or finding.level == "note"
    assert not finding.commands or finding.do
    assert "\n" not in finding.line
    return finding
