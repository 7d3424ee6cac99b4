"""Records of NVIDIA's GPUs and driver as they are found on a machine. No torch in here."""

from dataclasses import dataclass
from typing import TypeAlias

GIB, MIB = 2**30, 2**20

Capability: TypeAlias = tuple[int, int]
"""Compute capability of a GPU, such as (9, 0)."""

CudaVersion: TypeAlias = tuple[int, int]
"""Version of CUDA, such as (12, 8)."""


@dataclass(frozen=True)
class Process:
    """A process that holds memory of a GPU."""

    pid: int
    name: str
    used: int
    """Bytes of the GPU's memory."""


@dataclass(frozen=True)
class GpuInfo:
    """An NVIDIA GPU of this machine."""

    index: int
    """NVML's number; for a visible GPU that of `cuda:N`."""

    name: str
    capability: Capability | None
    """None = not known."""

    memory: int
    """Bytes in total."""

    free: int | None = None
    """Bytes; None = not known."""

    used: int | None = None
    """Bytes that processes hold, without what the driver keeps for itself; None = not known."""

    processes: tuple[Process, ...] = ()
    """As far as the driver tells: in a container it does not."""

    uuid: str = ""
    """Without `GPU-`."""


@dataclass(frozen=True)
class Link:
    """The connection of two GPUs, by NVML's numbers."""

    first: int
    second: int
    kind: str
    """`NVLink`; or PCIe, the nearest first: `PIX`, `PXB`, `PHB`, `NODE`, `SYS`; empty = not known."""


@dataclass(frozen=True)
class Driver:
    """The NVIDIA driver."""

    version: str = ""
    cuda: CudaVersion | None = None
    """The newest CUDA that it supports."""

    gpus: tuple[GpuInfo, ...] = ()
    """All that it knows, visible to this process or not."""

    error: str = ""
    """Why it cannot be asked; empty = it can."""

    failed: tuple[str, ...] = ()
    """GPUs that do not answer, and why."""

    links: tuple[Link, ...] = ()
    """Between each pair of GPUs."""
