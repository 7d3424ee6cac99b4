"""Records of the NVIDIA GPUs and driver that a machine has. No torch in here."""

from dataclasses import dataclass
from typing import TypeAlias

GIB, MIB = 2**30, 2**20

Capability: TypeAlias = tuple[int, int]  # compute capability of a GPU, such as (9, 0)
CudaVersion: TypeAlias = tuple[int, int]  # such as (12, 8)

FP8_CAPABILITY: Capability = (8, 9)
"""Compute capability from which a GPU computes in 8-bit floating point, and Triton's kernels read it."""


def lacks_fp8(setting: str, capability: Capability | None, name: str = "this one") -> str | None:
    """Why a GPU cannot do what a setting asks for; None = it can, or its capability is not known."""
    if capability is None or capability >= FP8_CAPABILITY:
        return None
    need = f"{setting} needs a GPU of compute capability 8.9 or more (Ada, Hopper)"
    return f"{need}, and {name} has {capability[0]}.{capability[1]}; leave it out"


@dataclass(frozen=True)
class Process:
    pid: int
    name: str
    used: int
    """Bytes of the GPU's memory."""


@dataclass(frozen=True)
class GpuInfo:
    index: int
    """That of NVML, or the N of torch's `cuda:N`."""

    name: str
    capability: Capability | None
    memory: int
    free: int | None = None
    used: int | None = None
    """Bytes that processes hold, without the driver's own; here and above None = not known."""

    processes: tuple[Process, ...] = ()
    """Processes that the driver lists: none in a container."""

    uuid: str = ""
    """Without `GPU-`."""


@dataclass(frozen=True)
class Driver:
    version: str = ""
    cuda: CudaVersion | None = None
    gpus: tuple[GpuInfo, ...] = ()
    """All GPUs, visible to this process or not."""

    error: str = ""
    """Why it cannot be queried; empty = it can."""
