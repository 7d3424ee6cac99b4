"""What was seen of a Ray that is there, and of its nodes. Records only, as in facts.py."""

from dataclasses import dataclass, field
from typing import Literal

Trouble = Literal[
    "", "missing", "scheme", "form", "nobody", "no token", "token", "versions", "outside", "time", "other"
]
"""Why a Ray could not be looked at.

missing: it is not installed. scheme, form: the address is not one that a trainer can have. nobody: there is no Ray.
no token, token: it asks for a token, and there is none here, or another one. versions: of Ray or Python, unlike.
outside: this machine is none of its nodes. time: it did not answer in time.
"""


@dataclass(frozen=True)
class Token:
    """What is set here for a Ray that asks for a token. The token itself is nowhere in it."""

    mode: str = ""
    """RAY_AUTH_MODE."""

    source: str = ""
    """Where Ray would have the token from: RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH or `~/.ray/auth_token`; empty = none."""


@dataclass(frozen=True)
class Inside:
    """What a process on a node has around it."""

    python: str
    """Version of Python."""

    packages: dict[str, str] = field(default_factory=dict)
    """Versions of those that must be the same on all nodes, by name; tasks' plugins are among them."""

    shared_memory: int | None = None
    """Bytes of /dev/shm; None = there is none."""

    open_files: int = 0
    """Limit on open files; a very large number stands for none."""

    gpus: tuple[str, ...] | None = None
    """Names of the GPUs that the driver knows; None = it cannot be asked."""

    directory: Literal["shared", "unwritable", "other", "missing", ""] = ""
    """The run directory, or what it would be made in: the one that the trainer sees, the same without the right to
    write, another of that name, or none of that name; empty = nobody looked."""

    model: bool | None = None
    """Whether the model's directory is there; None = the model is no directory."""


@dataclass(frozen=True)
class Node:
    """One of Ray's, as Ray knows it."""

    address: str
    """IP address."""

    host: str = ""
    """Name of its machine."""

    alive: bool = True
    """Whether it answers Ray."""

    reason: str = ""
    """Why it does not, in Ray's words."""

    head: bool = False
    """Whether it is the one that the others have joined."""

    cpus: float = 0
    """By Ray's count."""

    gpus: float = 0
    """By Ray's count."""

    cpus_free: float = 0
    """Those that nobody has."""

    gpus_free: float = 0
    """Those that nobody has."""

    store: int = 0
    """Bytes of its object store."""

    inside: Inside | None = None
    """What a process there has found; None = it gave no answer."""

    error: str = ""
    """Why it gave none."""


@dataclass(frozen=True)
class Ray:
    """One that is there, or was looked for."""

    address: str
    """As given, or where `auto` was found."""

    trouble: Trouble = ""
    """Why it could not be looked at; empty = it was."""

    error: str = ""
    """The same in words that are Ray's own; may be empty."""

    nodes: tuple[Node, ...] = ()
    """All, the head first; also those that have left."""

    here: Inside | None = None
    """The process that would be the trainer's, to compare."""

    directory: str = ""
    """The run directory that was looked for on all nodes, or what it would be made in."""

    @property
    def alive(self) -> tuple[Node, ...]:
        """Nodes that answer Ray."""
        return tuple(node for node in self.nodes if node.alive)


@dataclass(frozen=True)
class Placement:
    """What a run's actors take, by its layout; see config/parallel.py."""

    ranks: int
    """Processes that learn, with one CPU each, and one GPU unless all is on the CPU."""

    engines: int
    """Rollout engines of their own, with one CPU each; 0 = ranks have them."""

    spread: int
    """GPUs of an engine; 0 = all is on the CPU."""

    scorers: int
    """One for each task, with one CPU each."""

    @property
    def gpus(self) -> int:
        """Of the run."""
        return self.ranks + self.engines * self.spread if self.spread else 0

    @property
    def cpus(self) -> int:
        """Of the run, by Ray's count."""
        return self.ranks + self.engines + self.scorers
