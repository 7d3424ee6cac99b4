"""The GPUs of NVIDIA's driver, by NVML (nvidia-ml-py) and in its order, which is not CUDA's.

Which GPUs a process sees, and in which order, is up to CUDA: cuda_devices.py. No torch in here.
"""

import os
import re
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from importlib.util import find_spec
from itertools import combinations
from pathlib import Path
from threading import Thread
from typing import Any, TypeVar

import pynvml

from tinyzero_trainer.errors import first_line
from tinyzero_trainer.hardware.gpu import Driver, GpuInfo, Link, Process

T = TypeVar("T")

SECONDS = 15.0  # a driver wakes many GPUs in some seconds; a broken one may hang

_PCIE_PATHS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
"""NVML's levels of topology by the names that `nvidia-smi topo -m` gives them."""


def nvidia_driver(timeout: float = SECONDS) -> Driver | None:
    """The driver and all its GPUs; None = there is none."""
    try:
        return _within(timeout, _driver)
    except Exception as error:  # NVML's binding may fail in any way where driver and library do not match
        if isinstance(error, pynvml.NVMLError_LibraryNotFound):
            hidden = "there is an NVIDIA driver, but this container was started without GPUs"
            return Driver(error=hidden) if Path("/proc/driver/nvidia/version").exists() else None
        why = f"no answer within {timeout:g} s" if isinstance(error, TimeoutError) else first_line(error)
        return Driver(error=f"NVML: {why}")


def _within(timeout: float, ask: Callable[[], T]) -> T:
    """What `ask` returns; a driver that hangs is left to its thread, which does not keep the process alive."""
    answer: Future[T] = Future()

    def work() -> None:
        try:
            answer.set_result(ask())
        except Exception as error:  # raised in the thread that waits
            answer.set_exception(error)

    Thread(target=work, daemon=True).start()
    return answer.result(timeout)


def _driver() -> Driver:
    pynvml.nvmlInit()
    try:
        handles, failed = {}, []
        for index in range(pynvml.nvmlDeviceGetCount()):
            try:
                handles[index] = pynvml.nvmlDeviceGetHandleByIndex(index)
                pynvml.nvmlDeviceGetMemoryInfo(handles[index])
            except pynvml.NVMLError as error:
                if not isinstance(error, pynvml.NVMLError_NotSupported):  # then only its size is not known
                    handles.pop(index, None)
                    failed.append(f"GPU {index}: {error}")
        cuda = _known(pynvml.nvmlSystemGetCudaDriverVersion_v2)
        return Driver(
            version=_known(pynvml.nvmlSystemGetDriverVersion) or "",
            cuda=(cuda // 1000, cuda % 1000 // 10) if cuda else None,
            gpus=tuple(_gpu(index, handle) for index, handle in handles.items()),
            error="" if handles or failed else "NVML: it lists no GPU",
            failed=tuple(failed),
            links=tuple(Link(one, two, _link(handles[one], handles[two])) for one, two in combinations(handles, 2)),
        )
    finally:
        pynvml.nvmlShutdown()


def _gpu(index: int, handle: Any) -> GpuInfo:
    # The newer version leaves what the driver keeps for itself out of `used`.
    memory = _known(pynvml.nvmlDeviceGetMemoryInfo, handle, version=pynvml.nvmlMemory_v2) or _known(
        pynvml.nvmlDeviceGetMemoryInfo, handle
    )
    processes = [
        Process(one.pid, Path(_known(pynvml.nvmlSystemGetProcessName, one.pid) or "").name, one.usedGpuMemory or 0)
        for one in _known(pynvml.nvmlDeviceGetComputeRunningProcesses, handle) or ()
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


def _link(first: Any, second: Any) -> str:
    if _known(pynvml.nvmlDeviceGetP2PStatus, first, second, pynvml.NVML_P2P_CAPS_INDEX_NVLINK) == 0:
        return "NVLink"
    level = _known(pynvml.nvmlDeviceGetTopologyCommonAncestor, first, second)
    return "" if level is None else _PCIE_PATHS.get(level, "")


def _known(ask: Callable[..., T], *arguments: Any, **options: Any) -> T | None:
    """NVML's answer; None where this GPU or driver has none."""
    with suppress(pynvml.NVMLError, UnicodeDecodeError):  # a process's name may be any bytes
        return ask(*arguments, **options)
    return None


def sees_gpu(device: str) -> bool:
    """Whether a run would use a GPU, guessed within milliseconds; torch may still be unable to use it."""
    if device != "auto":
        return device.startswith("cuda")
    # GPUs are visible up to the first invalid index, so a leading -1 hides all.
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    hidden = visible is not None and visible.strip().partition(",")[0] in ("", "-1")
    return not hidden and torch_is_for_cuda() and count_gpus() > 0


def torch_is_for_cuda() -> bool:
    """Whether the installed torch was built for CUDA, by its version file."""
    spec = find_spec("torch")
    file = Path(spec.origin).with_name("version.py") if spec and spec.origin else None
    text = file.read_text(encoding="utf-8") if file and file.is_file() else ""
    return re.search(r"^cuda\b[^=\n]*= *['\"]", text, re.MULTILINE) is not None


def count_gpus() -> int:
    def count() -> int:
        pynvml.nvmlInit()
        try:
            return int(pynvml.nvmlDeviceGetCount())
        finally:
            pynvml.nvmlShutdown()

    with suppress(pynvml.NVMLError, TimeoutError):
        return _within(SECONDS, count)
    return 0
