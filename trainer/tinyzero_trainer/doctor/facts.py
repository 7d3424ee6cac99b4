"""What was seen of a machine, and what the user means to do on it. Records only: nothing here looks or judges."""

from dataclasses import dataclass, field
from typing import TypeAlias

from tinyzero_trainer.doctor.ray_facts import Places, Ray, Token
from tinyzero_trainer.models.files import Model

Capability: TypeAlias = tuple[int, int]
"""Compute capability of a card, such as (9, 0)."""

CudaVersion: TypeAlias = tuple[int, int]
"""Version of CUDA, such as (12, 8)."""


@dataclass(frozen=True)
class Process:
    """Somebody who holds memory of a card."""

    pid: int
    """Its number."""

    name: str
    """What the driver calls it."""

    used: int
    """Bytes of the card's memory."""


@dataclass(frozen=True)
class Card:
    """An NVIDIA GPU."""

    index: int
    """Its number; for a visible card that of `cuda:N`."""

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

    cards: tuple[Card, ...] = ()
    """All cards it knows, visible to this process or not."""

    error: str = ""
    """Why it cannot be asked; empty = it can."""

    unread: tuple[str, ...] = ()
    """What nvidia-smi said beside the cards: of those that have failed there is nothing else."""

    unread_uses: tuple[str, ...] = ()
    """What it said beside the processes on them."""

    links: tuple[Link, ...] = ()
    """The way between each pair of cards; none = not known, or there is one card."""


@dataclass(frozen=True)
class Torch:
    """The installed torch, as a process of its own saw it."""

    version: str = ""
    """With its local part, such as `2.13.0+cpu`; empty = it cannot be imported."""

    cuda: str | None = None
    """The CUDA it was built for; None = none."""

    hip: bool = False
    """Whether it was built for AMD's cards."""

    archs: tuple[str, ...] = ()
    """What its kernels were compiled for, such as `sm_90` and `compute_90` (PTX)."""

    cards: tuple[Card, ...] = ()
    """The cards it sees."""

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
class Wandb:
    """The way to W&B."""

    installed: bool
    """Whether the package is."""

    mode: str
    """WANDB_MODE."""

    has_key: bool
    """Whether there is a key, in the environment or from `wandb login`."""

    server: str
    """Its address."""

    error: str | None
    """Why it cannot be reached; empty = it can; None = nobody tried."""


@dataclass(frozen=True)
class Wanted:
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
    """reward.workers."""

    wandb: bool = False
    """Whether W&B is to be told."""

    offload: str | None = None
    """memory.offload."""

    host_bytes: int = 0
    """What that keeps in main memory; 0 = nothing, or the model's shape is not known."""

    names_model: bool = True
    """Whether a model is named; otherwise `train` makes one of its own on a GPU."""

    address: str | None = None
    """ray.address; the run's processes are then on the nodes of that Ray."""

    places: Places | None = None
    """What the run takes of a Ray; None = it has no executor `ray`, or nobody said how large it is."""


@dataclass(frozen=True)
class Facts:
    """Everything that was seen."""

    machine: Machine
    """CPU, memory and limits."""

    torch: Torch
    """The installed torch and the cards it sees."""

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

    wandb: Wandb
    """The way to W&B."""

    ray: Ray | None = None
    """The Ray that was asked for; None = none was."""

    ray_address: str = ""
    """RAY_ADDRESS, without a user's name and password."""

    token: Token = field(default_factory=Token)
    """What is set here for a Ray that asks for a token."""
