"""What was seen of a machine, and what the user means to do on it. Records only: nothing here looks or judges."""

from dataclasses import dataclass, field

from tinyzero_trainer.doctor.ray_facts import Placement, Ray, Token
from tinyzero_trainer.hardware.gpu import Driver, GpuInfo
from tinyzero_trainer.models.files import Model


@dataclass(frozen=True)
class Torch:
    """The installed torch, as a process of its own saw it."""

    version: str = ""
    """With its local part, such as `2.13.0+cpu`; empty = it cannot be imported."""

    cuda: str | None = None
    """The CUDA it was built for; None = none."""

    hip: bool = False
    """Whether it was built for AMD's GPUs."""

    archs: tuple[str, ...] = ()
    """What its kernels were compiled for, such as `sm_90` and `compute_90` (PTX)."""

    gpus: tuple[GpuInfo, ...] = ()
    """The GPUs it sees."""

    error: str = ""
    """Why it cannot be imported."""

    cuda_error: str = ""
    """Why CUDA cannot be used."""

    transformers_error: str = ""
    """Why transformers' models cannot be imported."""

    nccl: str = ""
    """Version of its NCCL; empty = it has none, or it is not known."""


@dataclass(frozen=True)
class Package:
    """An installed distribution."""

    name: str
    """Normalised."""

    version: str
    """As its metadata has it."""

    requires: tuple[str, ...] = ()
    """Requirements on other packages as its metadata has them, markers included."""


@dataclass(frozen=True)
class Machine:
    """What a process may use here."""

    python: tuple[int, int, int]
    """Version of Python."""

    cores: int
    """CPU cores that this process may use, a container's limit included."""

    memory: int
    """Bytes of main memory, or of the container's share."""

    memory_free: int
    """Bytes of it that are free."""

    shared_memory: int | None
    """Bytes of /dev/shm; None = there is none."""

    open_files: tuple[int, int]
    """Limit on open files, and how high it may be raised."""

    container: bool = False
    """Whether this is a container."""

    shared_memory_free: int | None = None
    """Bytes of /dev/shm that are free; None = not known."""


@dataclass(frozen=True)
class Folder:
    """A directory that will be written."""

    path: str
    """As the user would name it."""

    free: int
    """Bytes free on its disk."""

    writable: bool = True
    """Whether it, or what it would be made in, may be written."""


@dataclass(frozen=True)
class Requirements:
    """What the user means to do, from the configuration."""

    device: str = "auto"
    """run.device."""

    engine: str = "torch"
    """rollout.engine."""

    model_copies: int = 1
    """Models of this size that are trained: 2 with a critic."""

    frozen_copies: int = 0
    """Models that are held but not trained: 1 with a reference."""

    keep: int = 2
    """checkpoint.keep."""

    workers: int = 1
    """reward.num_workers."""

    offload: str | None = None
    """memory.cpu_offload."""

    host_bytes: int = 0
    """What that keeps in main memory; 0 = nothing, or the model's shape is not known."""

    names_model: bool = True
    """Whether a model is named; otherwise `train` makes one of its own on a GPU."""

    address: str | None = None
    """ray.address; the run's processes are then on the nodes of that Ray."""

    placement: Placement | None = None
    """What the run takes of a Ray; None = it has no executor `ray`, or nobody said how large it is."""


@dataclass(frozen=True)
class Facts:
    """Everything that was seen."""

    machine: Machine
    """CPU, memory and limits."""

    torch: Torch
    """The installed torch and the GPUs it sees."""

    driver: Driver | None
    """None = no trace of an NVIDIA driver."""

    visible: str | None
    """CUDA_VISIBLE_DEVICES; None = not set."""

    packages: tuple[Package, ...]
    """Of those whose versions have to fit together, the installed ones."""

    output: Folder
    """The run directory."""

    hub_cache: Folder
    """Where models of the Hub are kept."""

    offline: bool
    """Whether HF_HUB_OFFLINE forbids downloads."""

    model: Model
    """The model to train."""

    ray: Ray | None = None
    """The Ray that was asked for; None = none was."""

    ray_address: str = ""
    """RAY_ADDRESS, without a user's name and password."""

    token: Token = field(default_factory=Token)
    """What is set here for a Ray that asks for a token."""
