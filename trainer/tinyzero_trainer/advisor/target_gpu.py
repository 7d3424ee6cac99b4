"""The GPU that a plan is for: this machine's, or one that the user names. Asks the driver, not torch."""

import os
import re
from dataclasses import dataclass, replace
from importlib.metadata import version

from tinyzero_sdk.errors import SettingsError
from tinyzero_sdk.workers.process import host_memory
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.distributed.parallel_dims import device_of
from tinyzero_trainer.hardware.gpu import GIB, Capability
from tinyzero_trainer.hardware.gpu_specs import GpuSpec, find_gpu_spec, has_bfloat16, known_gpus
from tinyzero_trainer.hardware.nvml import count_gpus, nvidia_driver, visible_gpus

_NONE = "this machine has no NVIDIA GPU to plan for"


@dataclass(frozen=True, slots=True)
class TargetGpu:
    """A GPU that a run has to fit."""

    name: str
    memory: int
    """Bytes in total."""

    spec: GpuSpec | None
    """Its data sheet; None = unknown, so no times are predicted."""

    host: int | None = None
    """Bytes of host memory; None = unknown, since it is another machine."""

    in_use: int = 0
    """Bytes that other processes are known to hold."""

    capability: Capability | None = None
    """None = unknown."""

    @property
    def bfloat16(self) -> bool:
        return has_bfloat16(self.capability)

    @property
    def free(self) -> int:
        """Bytes that are left for a run."""
        return max(0, self.memory - self.in_use)


def choose_target(name: str | None, memory: str | None, device: str) -> TargetGpu:
    """The GPU to plan for: a GPU model by `name`, one with `memory` such as `24GB`, or this machine's `device`.

    Raises:
        SettingsError: the name is unknown, the size is not a size, or this machine has no GPU and none was described.
    """
    size = None if memory is None else read_size(memory)
    if name is not None:
        gpu = find_gpu_spec(name) or find_gpu_spec(f"RTX {name}")
        if gpu is None:
            known = ", ".join(sorted({gpu.name for gpu in known_gpus()}))
            raise SettingsError(f"--gpu {name!r} is not known; give --gpu-memory and leave it out, or one of: {known}")
        return TargetGpu(gpu.name, size or int(gpu.memory * GIB), gpu, capability=gpu.capability)
    here = _look(device)
    if size is not None:
        like = here if isinstance(here, TargetGpu) else None
        return replace(like, name="a GPU", memory=size, host=None, in_use=0) if like else TargetGpu("a GPU", size, None)
    if isinstance(here, str):
        raise SettingsError(f"{here}; give --gpu-memory 24GB, or --gpu 'RTX 4090'")
    return here


def gpus_for(name: str | None, memory: str | None) -> int:
    """Number of GPUs that one process sees: all of this machine, or the one that is described (`choose_target`)."""
    return max(1, count_gpus()) if name is None and memory is None else 1


def present_gpu(device: str) -> TargetGpu | None:
    """The GPU of this machine that `run.device` stands for; None if there is none or it cannot be determined."""
    if device == "auto" and version("torch").endswith("+cpu"):  # this torch computes on the CPU
        return None
    here = _look(device)
    return here if isinstance(here, TargetGpu) else None


def gpu_of_run(config: TrainConfig) -> TargetGpu | None:
    """This machine's GPU for a run; where it has none, one of the Ray that the run is sent to.

    Raises:
        RayError: that Ray cannot be reached.
    """
    here = present_gpu(device_of(config))
    if here is not None or config.ray.address is None or not config.ray.gpus:
        return here
    from tinyzero_trainer.executors.ray.cluster import ask_gpu_node

    return ask_gpu_node(config.ray, lambda: present_gpu("cuda"))  # a function, as Ray takes nothing else


def _look(device: str) -> TargetGpu | str:
    """The GPU that `run.device` stands for, or why it is not known."""
    if device == "cpu":
        return "run.device=cpu uses no GPU"
    driver, position = nvidia_driver(), int(device.partition(":")[2] or 0)
    if driver is None or not driver.gpus:
        return _NONE
    visible, names = visible_gpus(driver.gpus), os.environ.get("CUDA_VISIBLE_DEVICES")
    if position >= len(visible):
        hidden = "" if names is None else f" (CUDA_VISIBLE_DEVICES={names!r})"
        return f"run.device={device}, but CUDA shows {len(visible)} of this machine's {len(driver.gpus)} GPUs{hidden}"
    models = dict.fromkeys(gpu.name for gpu in driver.gpus)
    if len(models) > 1 and os.environ.get("CUDA_DEVICE_ORDER") != "PCI_BUS_ID":
        return f"this machine's GPUs differ ({', '.join(models)}); set CUDA_DEVICE_ORDER=PCI_BUS_ID to number them"
    gpu = visible[position]
    if not gpu.memory:
        return f"the driver does not say how much memory the {gpu.name} has"
    spec = find_gpu_spec(gpu.name)
    capability = gpu.capability or (spec.capability if spec else None)
    return TargetGpu(gpu.name, gpu.memory, spec, host_memory()[0], gpu.used or 0, capability)


def on_gpu(config: TrainConfig, target: TargetGpu) -> TrainConfig:
    """A configuration with `model.dtype=auto` resolved for a GPU: float32 where there is no bfloat16."""
    if config.model.dtype != "auto" or target.bfloat16:
        return config
    return replace(config, model=replace(config.model, dtype="float32"))


def read_size(text: str) -> int:
    """Bytes of a GPU's memory.

    A GB is 10^9 bytes, as on a GPU's box: the driver shows various numbers of GiB for one size on the box, never less.

    Raises:
        SettingsError: it is not a size, or too large.

    Example:
        >>> read_size("24GB") == read_size("24") == 24 * 10**9
        True
        >>> read_size("24 GiB") == 24 * 2**30
        True
    """
    matched = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(GiB|GB|G)?\s*", text, re.IGNORECASE)
    if not matched or not float(matched[1]):
        raise SettingsError(f"--gpu-memory {text!r} is not a size; give a number of GB or GiB, such as 24GB")
    return int(float(matched[1]) * (GIB if (matched[2] or "").lower() == "gib" else 10**9))
