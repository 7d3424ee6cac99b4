"""What was seen of a machine and of a Ray cluster, what the configuration requires, and what a check reports."""

from dataclasses import dataclass, field
from typing import Literal

from tinyzero_trainer.distributed.parallel_dims import ParallelDims
from tinyzero_trainer.hardware.gpu import GIB, MIB, Driver, GpuInfo
from tinyzero_trainer.kinds import EngineKind, find_engine
from tinyzero_trainer.models.files import Model


@dataclass(frozen=True)
class Torch:
    """The installed torch, as a child process saw it."""

    version: str = ""
    """With its local part, such as `2.13.0+cpu`; empty = it cannot be imported."""

    cuda: str | None = None
    """The CUDA it was built for, if any."""

    hip: bool = False
    """Whether it was built for AMD's GPUs."""

    archs: tuple[str, ...] = ()
    """What its kernels were compiled for, such as `sm_90` and `compute_90` (PTX)."""

    gpus: tuple[GpuInfo, ...] = ()
    error: str = ""
    """Why it cannot be imported; below, why CUDA cannot be used, and transformers not imported."""

    cuda_error: str = ""
    transformers_error: str = ""


@dataclass(frozen=True)
class Package:
    name: str
    version: str
    requires: tuple[str, ...] = ()
    """Requirements in its metadata, markers included."""


@dataclass(frozen=True)
class Machine:
    """What this process may use here, within a container's limits."""

    python: str
    cores: int
    memory: int
    memory_free: int
    shared_memory: int | None
    container: bool = False


@dataclass(frozen=True)
class Folder:
    path: str
    free: int
    writable: bool = True


@dataclass(frozen=True)
class NodeReport:
    """What a process on a node sees."""

    python: str
    packages: dict[str, str] = field(default_factory=dict)
    """Versions of those that must be the same on all nodes, by name."""

    shared_memory: int | None = None
    directory: Literal["shared", "unwritable", "missing", ""] = ""
    """The run directory: the one that the trainer sees, the same without write permission, or not there; empty = not
    looked for."""

    model: bool | None = None


@dataclass(frozen=True)
class Node:
    """A node of a Ray cluster, as Ray knows it."""

    address: str
    head: bool = False
    cpus: float = 0
    gpus: float = 0
    cpus_free: float = 0
    gpus_free: float = 0
    store: int = 0
    report: NodeReport | None = None
    """None = it runs no task."""

    error: str = ""
    """Why it runs none."""


@dataclass(frozen=True)
class RayCluster:
    address: str
    error: str = ""
    """Why it cannot be examined, in Ray's words; empty = it was."""

    nodes: tuple[Node, ...] = ()
    """Nodes that are alive, the head first."""

    local: NodeReport | None = None
    directory: str = ""
    """The run directory that nodes looked for, or the one in which it would be created."""

    @property
    def reports(self) -> list[tuple[Node, NodeReport]]:
        return [(node, node.report) for node in self.nodes if node.report is not None]


@dataclass(frozen=True)
class Requirements:
    """What a configuration requires of a machine or cluster."""

    device: str = "auto"
    engine: EngineKind = field(default_factory=lambda: find_engine("torch"))
    trained_models: int = 1
    """Models of this size that are trained: 2 with a critic."""

    frozen_models: int = 0
    """Models that are held but not trained: 1 with a reference."""

    keep: int = 2

    names_model: bool = True
    address: str | None = None
    """ray.address; the run's processes are then on the nodes of that cluster."""

    dims: ParallelDims | None = None
    """The run's processes; None = it is a single process, or its size is not given."""


@dataclass(frozen=True)
class Facts:
    machine: Machine
    torch: Torch
    driver: Driver | None
    """None = no trace of an NVIDIA driver."""

    visible: str | None
    packages: tuple[Package, ...]
    """Installed packages of `package_checks.WATCHED`."""

    output: Folder
    hub_cache: Folder
    offline: bool
    model: Model

    ray: RayCluster | None = None

    @property
    def installed(self) -> dict[str, Package]:
        return {package.name: package for package in self.packages}


Level = Literal["ok", "note", "warning", "error"]
"""`note`: good to know. `warning`: training works, but slowly or not in every setting. `error`: it will fail."""


@dataclass(frozen=True)
class Finding:
    check: str
    """What was checked, such as `torch` or `gpu 0`."""

    level: Level
    what: str
    do: str = ""
    commands: tuple[str, ...] = ()


def as_size(count: int) -> str:
    return f"{count / GIB:.1f} GiB" if count >= GIB else f"{count / MIB:.0f} MiB"
