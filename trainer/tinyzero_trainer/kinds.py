"""Records that describe the kinds of rollout engine and executor, and their look-up by name. No torch in here.

A kind is a folder named after it with its record, `KIND`, in the file kind.py, such as rollout/vllm/kind.py.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

ENGINE_PACKAGE, EXECUTOR_PACKAGE = "tinyzero_trainer.rollout", "tinyzero_trainer.executors"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineKind:
    """What a rollout engine can do. Callables take a `TrainConfig` unless their docstring names another argument."""

    name: str  # value of `rollout.engine`
    build: str
    """Module with the functions `refuse` and `build`, which rollout/build.py describes."""

    settings: frozenset[str] = frozenset()  # groups of the configuration that only this engine reads
    packages: tuple[str, ...] = ()  # distributions; any one of these suffices
    extras: tuple[str, str] = ("", "")
    """Extras of tinyzero-trainer that install them: for a GPU, and without one."""

    cost_model: str = "tinyzero_trainer.rollout.torch.cost_model"
    """Module that predicts its memory and speed, and fills in its `auto` settings; by default that of `torch`."""

    require_installed: Callable[[], object] = lambda: None
    """Raises a TinyZeroError if a package that the engine needs is missing or too old."""

    fp8: frozenset[str] = frozenset()  # keys of `rollout` that may be `fp8`
    fp8_gpu_only: bool = False
    """Whether these need a GPU that computes in fp8; other engines say themselves what they need."""

    unsupported: Callable[[Any], str] = lambda _: ""
    """What else in a `RolloutConfig` the engine cannot do, and what to change; empty = nothing."""

    max_async_level: int | None = 0
    """Highest `rollout.max_async_level`; None = any, since completions go on while the weights change."""

    continuous: bool = False
    """Whether completions go on across updates, so that those of several batches are under way at a time."""

    max_sequences: int | None = None
    """Sequences generated at a time on a GPU where `rollout.max_num_seqs` is not set; None = all."""

    preallocates: bool = False  # whether it reserves memory for all its sequences when it starts
    async_needs_own_gpus: bool = False  # whether it can sample during an update only on GPUs of its own
    separate_process: Callable[[Any], bool] = lambda _: False
    """Whether it runs in a process of its own rather than the trainer's."""

    max_restarts: Callable[[Any], int] = lambda _: 0  # how many times it is restarted after it has died
    expandable_segments: Callable[[Any], bool] = lambda _: True
    """Whether the trainer's process may allocate CUDA memory in expandable segments."""

    startup_message: str = ""  # shown while it starts, if that takes long


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorKind:
    """Where the workers of a run are. Callables take a `TrainConfig`."""

    name: str  # value of `run.executor`
    build: str  # module with the function `build_workers`, which executors/build.py describes
    settings: frozenset[str] = frozenset()  # settings, and groups of them, that only this executor reads
    own_processes: bool = False
    """Whether ranks and engines have processes of their own, as many as distributed/parallel_dims.py says."""

    check: Callable[[Any], None] = lambda _: None
    """Raises a TinyZeroError, before anything is loaded, if a run cannot start."""

    prepare: Callable[[Any], Callable[[], None] | None] = lambda _: None
    """What can be started while PyTorch is imported; None = nothing."""


@dataclass(frozen=True, slots=True)
class EngineMemory:
    """What a rollout engine holds of a GPU's memory: bytes by what they are for."""

    awake: Mapping[str, int]
    asleep: Mapping[str, int]
    separate_process: bool = False


@cache
def kind_names(package: str) -> tuple[str, ...]:
    """The kinds in a package, in alphabetical order."""
    folders = import_module(package).__path__
    return tuple(sorted({file.parent.name for folder in folders for file in Path(folder).glob("*/kind.py")}))


UNDECIDED = EngineKind(name="auto", build="", fp8=frozenset({"kv_cache_dtype", "quantization"}), max_async_level=None)
"""Stands for the engine until one is chosen, and refuses nothing."""


@cache
def find_engine(name: str) -> EngineKind:
    """The record of the engine that `rollout.engine` names."""
    if name == UNDECIDED.name:
        settings = [find_engine(other).settings for other in kind_names(ENGINE_PACKAGE)]
        return replace(UNDECIDED, settings=frozenset().union(*settings))
    kind: EngineKind = import_module(f"{ENGINE_PACKAGE}.{name}.kind").KIND
    return kind


@cache
def find_executor(name: str) -> ExecutorKind:
    """The record of the executor that `run.executor` names."""
    kind: ExecutorKind = import_module(f"{EXECUTOR_PACKAGE}.{name}.kind").KIND
    return kind
