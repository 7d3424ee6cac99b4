"""The GPU that a plan is for: this machine's, or one that the user names. Asks the driver, not torch."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tinyzero_sdk.errors import SettingsError
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.hardware.cuda_devices import visible_gpus
from tinyzero_trainer.hardware.gpu import GIB, GpuInfo
from tinyzero_trainer.hardware.gpu_specs import GpuSpec, find_gpu_spec, has_bfloat16, known_gpus
from tinyzero_trainer.hardware.host import host_memory
from tinyzero_trainer.hardware.nvml import nvidia_driver

_SAME_SIZE = 0.1
"""Relative difference up to which `--gpu-memory` is taken for the memory of the `--gpu` named with it."""


@dataclass(frozen=True, slots=True)
class TargetGpu:
    """A GPU that a run has to fit."""

    name: str
    memory: int
    """Bytes in total."""

    spec: GpuSpec | None
    """Its data sheet; None = not known, so no times are predicted."""

    host: int | None = None
    """Bytes of host memory; None = not known, since it is another machine."""

    in_use: int = 0
    """Bytes that other processes hold, as far as is known."""

    bfloat16: bool = True
    """See `has_bfloat16`."""

    @property
    def free(self) -> int:
        """Bytes that are left for a run."""
        return max(0, self.memory - self.in_use)


def choose_target(name: str | None, memory: str | None, device: str) -> TargetGpu:
    """The GPU to plan for.

    Args:
        name: a kind of GPU, or None.
        memory: of a GPU, such as `24GB`, or None.
        device: `run.device`; selects one of this machine's GPUs.

    Raises:
        SettingsError: the name or the size is not understood, or this machine has no GPU and none was described.
    """
    size = None if memory is None else read_size(memory)
    if name is not None:
        gpu = find_gpu_spec(name) or find_gpu_spec(f"RTX {name}")
        if gpu is None:
            known = ", ".join(sorted({gpu.name for gpu in known_gpus()}))
            raise SettingsError(f"--gpu {name!r} is not known; give --gpu-memory and leave it out, or one of: {known}")
        own = int(gpu.memory * GIB)
        memory_of_it = own if size is None or abs(size / own - 1) < _SAME_SIZE else size
        return TargetGpu(gpu.name, memory_of_it, gpu, bfloat16=gpu.bfloat16)
    here = _look(device)
    if size is not None:
        like = here if isinstance(here, TargetGpu) else None
        return TargetGpu("a GPU", size, like.spec if like else None, bfloat16=like is None or like.bfloat16)
    if isinstance(here, str):
        raise SettingsError(f"{here}; give --gpu-memory 24GB, or --gpu 'RTX 4090'")
    return here


def gpus_for(name: str | None, memory: str | None) -> int:
    """Number of GPUs that one process may use: all of this machine, or the one that is described (`choose_target`)."""
    return 1 if name is not None or memory is not None else len(visible_gpus() or (None,))


def present_gpu(device: str) -> TargetGpu | None:
    """The GPU of this machine that `run.device` stands for; None if there is none, or it cannot be determined."""
    here = _look(device)
    return here if isinstance(here, TargetGpu) else None


def _look(device: str) -> TargetGpu | str:
    """The GPU that `run.device` stands for, or why there is none."""
    if device == "cpu":
        return "run.device=cpu uses no GPU"
    driver, seen = nvidia_driver(), visible_gpus()
    known = driver.gpus if driver else ()
    position = int(device.partition(":")[2] or 0)
    if seen is None:
        return _one_of_a_kind(known, device, position)
    if position >= len(seen):
        return _not_there(device, seen, known)
    gpu = seen[position]
    # A MIG instance has a UUID of its own, which is not among the driver's GPUs.
    whole = next((one for one in known if one.uuid == gpu.uuid and one.memory), None) if not _is_part(gpu) else None
    return _target(whole or gpu)


def _not_there(device: str, seen: Sequence[GpuInfo], known: Sequence[GpuInfo]) -> str:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    hidden = "" if visible is None else f" (CUDA_VISIBLE_DEVICES={visible!r})"
    if seen:
        last = len(seen) - 1
        return f"run.device={device}, but CUDA shows cuda:0{f' to cuda:{last}' if last else ' only'}{hidden}"
    if known:
        return f"CUDA shows none of this machine's {len(known)} GPUs{hidden}"
    return _NONE


def _one_of_a_kind(known: Sequence[GpuInfo], device: str, position: int) -> TargetGpu | str:
    """The GPU by NVML alone, whose order is not CUDA's: known only where all GPUs are the same."""
    kinds = list(dict.fromkeys((gpu.name, gpu.memory) for gpu in known))
    if len(kinds) > 1:
        names = ", ".join(name for name, _ in kinds)
        return f"this machine's GPUs differ ({names}), and CUDA cannot be asked which of them run.device={device} is"
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip()
    if not kinds or visible in ("", "-1"):
        return _NONE
    if visible.startswith("MIG-"):
        return f"CUDA cannot be asked how large CUDA_VISIBLE_DEVICES={visible!r} is"
    if position >= len(known):
        return f"run.device={device}, but this machine has {len(known)} GPU{'s' * (len(known) > 1)}"
    return _target(known[0] if len(known) == 1 else replace(known[0], used=None))


def _target(gpu: GpuInfo) -> TargetGpu | str:
    if not gpu.memory:
        return f"the driver does not say how much memory the {gpu.name} has"
    kind = find_gpu_spec(gpu.name)
    has = has_bfloat16(gpu.capability, kind)
    return TargetGpu(gpu.name, gpu.memory, kind, host_memory()[0], gpu.used or 0, has)


def _is_part(gpu: GpuInfo) -> bool:
    return re.search(r"\bMIG\b", gpu.name) is not None


_NONE = "this machine has no NVIDIA GPU to plan for"


def on_gpu(config: TrainConfig, target: TargetGpu) -> TrainConfig:
    """A configuration with `model.dtype=auto` resolved for a GPU: float32 where there is no bfloat16."""
    if config.model.dtype != "auto" or target.bfloat16:
        return config
    return replace(config, model=replace(config.model, dtype="float32"))


def read_size(text: str) -> int:
    """Bytes of a GPU's memory.

    A GB is 10^9 bytes, as on a GPU's box: the driver shows different numbers of GiB for GPUs of the same size on the
    box, and never fewer bytes than that.

    Raises:
        SettingsError: it is no such size.

    Example:
        >>> read_size("24GB") == read_size("24") == 24 * 10**9
        True
        >>> read_size("24 GiB") == 24 * 2**30
        True
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(GiB|GB|G)?\s*", text, re.IGNORECASE)
    if not found or not float(found[1]):
        raise SettingsError(f"--gpu-memory {text!r} is not a size; give a number of GB or GiB, such as 24GB")
    size = float(found[1]) * (GIB if (found[2] or "").lower() == "gib" else 10**9)
    if size > _LARGEST * 10**9:
        given = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
        raise SettingsError(f"--gpu-memory {given!r} is more than any GPU has; expected at most {_LARGEST}GB")
    return int(size)


_LARGEST = 100_000
"""GB of a GPU, at most."""

_SHOWN = 40
"""Characters of the given value in a message."""
