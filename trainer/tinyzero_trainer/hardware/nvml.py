"""The GPUs of NVIDIA's driver, by NVML (nvidia-ml-py) and in its order, that of the slots. No torch in here."""

import os
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import pynvml

from tinyzero_trainer.errors import first_line
from tinyzero_trainer.hardware.gpu import Driver, GpuInfo, Process

T = TypeVar("T")


def nvidia_driver() -> Driver | None:
    """The driver and all its GPUs; None = there is none."""
    try:
        pynvml.nvmlInit()
        try:
            return _driver()
        finally:
            pynvml.nvmlShutdown()
    except Exception as error:  # NVML's binding may fail in any way where driver and library do not match
        if isinstance(error, pynvml.NVMLError_LibraryNotFound):
            hidden = "there is an NVIDIA driver, but this container was started without GPUs"
            return Driver(error=hidden) if Path("/proc/driver/nvidia/version").exists() else None
        return Driver(error=f"NVML: {first_line(error)}")


def _driver() -> Driver:
    handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
    cuda = _known(pynvml.nvmlSystemGetCudaDriverVersion_v2)
    return Driver(
        version=_known(pynvml.nvmlSystemGetDriverVersion) or "",
        cuda=(cuda // 1000, cuda % 1000 // 10) if cuda else None,
        gpus=tuple(_gpu(index, handle) for index, handle in enumerate(handles)),
        error="" if handles else "NVML: it lists no GPU",
    )


def _gpu(index: int, handle: Any) -> GpuInfo:
    # The newer version leaves what the driver keeps for itself out of `used`.
    memory = _known(pynvml.nvmlDeviceGetMemoryInfo, handle, version=pynvml.nvmlMemory_v2) or _known(
        pynvml.nvmlDeviceGetMemoryInfo, handle
    )
    if (_known(pynvml.nvmlDeviceGetMigMode, handle) or [0])[0]:
        memory = None  # CUDA shows instances of the GPU, not the whole
    processes = [
        Process(info.pid, Path(_known(pynvml.nvmlSystemGetProcessName, info.pid) or "").name, info.usedGpuMemory or 0)
        for info in _known(pynvml.nvmlDeviceGetComputeRunningProcesses, handle) or ()
    ]
    return GpuInfo(
        index=index,
        name=_known(pynvml.nvmlDeviceGetName, handle) or "a GPU",
        capability=_known(pynvml.nvmlDeviceGetCudaComputeCapability, handle),
        memory=memory.total if memory else 0,
        free=memory.free if memory else None,
        used=memory.used if memory else None,
        processes=tuple(processes),
        uuid=(_known(pynvml.nvmlDeviceGetUUID, handle) or "").removeprefix("GPU-"),
    )


def _known(ask: Callable[..., T], *arguments: Any, **options: Any) -> T | None:
    """NVML's answer; None where this GPU or driver has none."""
    with suppress(pynvml.NVMLError, UnicodeDecodeError):  # a process's name may be any bytes
        return ask(*arguments, **options)
    return None


def visible_gpus(gpus: tuple[GpuInfo, ...]) -> tuple[GpuInfo, ...]:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves, in its order; it counts up to the first name that no GPU has."""
    names = os.environ.get("CUDA_VISIBLE_DEVICES")
    if names is None:
        return gpus
    visible = list[GpuInfo]()
    for name in map(str.strip, names.split(",")):
        uuid = name.removeprefix("GPU-") if name.startswith("GPU-") else "none"
        named = [gpu for gpu in gpus if name == str(gpu.index) or gpu.uuid.startswith(uuid)]
        if not named:
            break
        visible.append(named[0])
    return tuple(visible)


def count_gpus() -> int:
    """Number of GPUs that CUDA shows a process."""
    driver = nvidia_driver()
    return len(visible_gpus(driver.gpus)) if driver else 0


def sees_gpu(device: str) -> bool:
    """Whether a run would use a GPU, guessed within milliseconds; torch may still be unable to use it."""
    if device != "auto":
        return device.startswith("cuda")
    return not version("torch").endswith("+cpu") and count_gpus() > 0
