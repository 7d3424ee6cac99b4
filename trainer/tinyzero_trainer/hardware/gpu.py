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
    """Somebody who holds memory of a GPU."""

    pid: int
    """Its number."""

    name: str
    """What the driver calls it."""

    used: int
    """Bytes of the GPU's memory."""


@dataclass(frozen=True)
class GpuInfo:
    """An NVIDIA GPU."""

    index: int
    """Its number; for a visible GPU that of `cuda:N`."""

    name: str
    """Such as `NVIDIA H200`."""

    capability: Capability | None
    """None = not known."""

    memory: int
    """Bytes in all."""

    free: int | None = None
    """Bytes that nobody holds; None = not known."""

    used: int | None = None
    """Bytes that somebody holds: all but those and what the driver keeps for itself; None = not known."""

    processes: tuple[Process, ...] = ()
    """Who holds the rest, as far as the driver tells: in a container it does not."""

    uuid: str = ""
    """The driver's name for it, without `GPU-`."""


@dataclass(frozen=True)
class Link:
    """The way between two GPUs, by nvidia-smi's numbers."""

    first: int
    """The lower one."""

    second: int
    """The higher one."""

    kind: str
    """As nvidia-smi calls it: `NV4` for four NVLinks; for ever longer ways by PCIe `PIX`, `PXB`, `PHB`, `NODE`, `SYS`.
    """


@dataclass(frozen=True)
class Driver:
    """The NVIDIA driver."""

    version: str = ""
    """Such as `580.82.07`; empty = not known."""

    cuda: CudaVersion | None = None
    """The newest CUDA it supports."""

    gpus: tuple[GpuInfo, ...] = ()
    """All GPUs it knows, visible to this process or not."""

    error: str = ""
    """Why it cannot be asked; empty = it can."""

    unread: tuple[str, ...] = ()
    """What nvidia-smi said beside the GPUs: of those that have failed there is nothing else."""

    unread_uses: tuple[str, ...] = ()
    """What it said beside the processes on them."""

    links: tuple[Link, ...] = ()
    """The way between each pair of GPUs; none = not known, or there is one GPU."""
