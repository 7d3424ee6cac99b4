"""What NVIDIA's driver says about its GPUs, asked through NVML (nvidia-ml-py), in NVML's order, which is not CUDA's.

Which GPUs a process sees, and in which order, is CUDA's to say: cuda_devices.py. No torch in here.
"""

import os
import re
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from itertools import combinations
from pathlib import Path
from typing import Any, TypeVar

from tinyzero_trainer.hardware.gpu import Driver, GpuInfo, Link, Process

T = TypeVar("T")

_PCIE_PATHS = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
"""NVML's levels of topology by the names that `nvidia-smi topo -m` gives them."""


def nvidia_driver() -> Driver | None:
    """The driver and all its GPUs; None = there is none."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        if isinstance(error, pynvml.NVMLError_LibraryNotFound):
            if Path("/proc/driver/nvidia/version").exists():
                return Driver(error="there is an NVIDIA driver, but this container was started without its GPUs")
            return None
        return Driver(error=f"NVML: {error}")
    try:
        handles, failed = {}, []
        for index in range(pynvml.nvmlDeviceGetCount()):
            try:
                handles[index] = pynvml.nvmlDeviceGetHandleByIndex(index)
                pynvml.nvmlDeviceGetMemoryInfo(handles[index])
            except pynvml.NVMLError_NotSupported:
                continue  # of this one only the size is not known
            except pynvml.NVMLError as error:
                handles.pop(index, None)
                failed.append(f"GPU {index}: {error}")
        cuda = _known(pynvml.nvmlSystemGetCudaDriverVersion_v2)
        return Driver(
            version=_known(pynvml.nvmlSystemGetDriverVersion) or "",
            cuda=(cuda // 1000, cuda % 1000 // 10) if cuda else None,
            gpus=tuple(_gpu(index, handle) for index, handle in handles.items()),
            error="" if handles else f"NVML: {', '.join(failed) or 'it lists no GPU'}",
            failed=tuple(failed) if handles else (),
            links=tuple(Link(one, two, _link(handles[one], handles[two])) for one, two in combinations(handles, 2)),
        )
    finally:
        pynvml.nvmlShutdown()


def _gpu(index: int, handle: Any) -> GpuInfo:
    import pynvml

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
    import pynvml

    if _known(pynvml.nvmlDeviceGetP2PStatus, first, second, pynvml.NVML_P2P_CAPS_INDEX_NVLINK) == 0:
        return "NVLink"
    level = _known(pynvml.nvmlDeviceGetTopologyCommonAncestor, first, second)
    return "" if level is None else _PCIE_PATHS.get(level, "")


def _known(ask: Callable[..., T], *arguments: Any, **options: Any) -> T | None:
    """An answer of NVML; None where this GPU or driver has none."""
    import pynvml

    with suppress(pynvml.NVMLError, UnicodeDecodeError):  # a process's name is bytes that anyone may choose
        return ask(*arguments, **options)
    return None


def sees_gpu(device: str) -> bool:
    """Whether a run would be on a GPU, guessed within milliseconds: torch may still find that it cannot use it.

    Args:
        device: `run.device`; any but `auto` is taken at its word.
    """
    if device != "auto":
        return device.startswith("cuda")
    # Indices up to the first invalid one are seen, so -1 in front hides all.
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    hidden = visible is not None and visible.strip().partition(",")[0] in ("", "-1")
    return not hidden and torch_is_for_cuda() and count_gpus() > 0


def torch_is_for_cuda() -> bool:
    """Whether the installed torch was built for CUDA, by its version file."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return False
    try:
        text = (Path(spec.origin).parent / "version.py").read_text(encoding="utf-8")
    except OSError:
        return False
    return re.search(r"^cuda\b[^=\n]*= *['\"]", text, re.MULTILINE) is not None


def count_gpus() -> int:
    """How many GPUs the driver has; 0 without a driver."""
    import pynvml

    try:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
        pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        return 0
    return int(count)
