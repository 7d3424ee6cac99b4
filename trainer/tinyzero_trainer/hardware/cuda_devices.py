"""The GPUs that CUDA shows a process, in CUDA's order: `cuda:N` is the one at index N. No torch in here.

CUDA applies CUDA_DEVICE_ORDER (by default the fastest first, unlike nvidia-smi), CUDA_VISIBLE_DEVICES and MIG, so
libcuda is queried: in a child process, which may crash or hang, and which leaves this one free to fork.
"""

import ctypes
import json
import subprocess
import sys
import uuid
from collections.abc import Sequence
from typing import Any

from tinyzero_trainer.hardware.gpu import GpuInfo

SECONDS = 20.0
"""A driver wakes many GPUs in some seconds."""

_NO_DEVICE = 100
"""cuInit's status where there is no GPU, or all are hidden."""

_MAJOR, _MINOR = 75, 76
"""Attributes of a GPU: compute capability."""


def visible_gpus(command: Sequence[str] = (), timeout: float = SECONDS) -> tuple[GpuInfo, ...] | None:
    """The GPUs that a run would see; None = there is no CUDA, or it cannot be queried.

    Args:
        command: another command to run, for tests.
        timeout: seconds.
    """
    # -P: nothing in the working directory can stand in for a library.
    command = tuple(command) or (sys.executable, "-P", "-m", "tinyzero_trainer.hardware.cuda_devices")
    try:
        done = subprocess.run(command, capture_output=True, timeout=timeout, check=False)
        rows = json.loads(done.stdout) if done.returncode == 0 else None
        return (
            None if rows is None else tuple(GpuInfo(**row | {"capability": _pair(row["capability"])}) for row in rows)
        )
    except (OSError, subprocess.TimeoutExpired, ValueError, LookupError, TypeError):
        return None


def ask_cuda(library: Any) -> list[dict[str, Any]] | None:
    """Fields of `GpuInfo` for each GPU; None = libcuda fails.

    Args:
        library: libcuda.
    """
    number = ctypes.c_int(0)
    status = library.cuInit(0)
    if status == _NO_DEVICE:
        return []
    if status or library.cuDeviceGetCount(ctypes.byref(number)):
        return None
    gpus = [_ask_gpu(library, place) for place in range(number.value)]
    return None if None in gpus else [gpu for gpu in gpus if gpu is not None]


def _ask_gpu(library: Any, place: int) -> dict[str, Any] | None:
    device, memory, name, own = ctypes.c_int(0), ctypes.c_size_t(0), ctypes.create_string_buffer(256), _Uuid()
    # The newer one gives a MIG instance its own UUID, not the GPU's.
    ask_uuid = getattr(library, "cuDeviceGetUuid_v2", None) or library.cuDeviceGetUuid
    faults = (
        library.cuDeviceGet(ctypes.byref(device), place),
        library.cuDeviceGetName(name, len(name), device),
        library.cuDeviceTotalMem_v2(ctypes.byref(memory), device),
        ask_uuid(ctypes.byref(own), device),
    )
    if any(faults):
        return None
    return {
        "index": place,
        "name": name.value.decode(errors="replace"),
        "capability": [_attribute(library, device, _MAJOR), _attribute(library, device, _MINOR)],
        "memory": memory.value,
        "uuid": str(uuid.UUID(bytes=bytes(own))),
    }


_Uuid = ctypes.c_ubyte * 16


def _attribute(library: Any, device: ctypes.c_int, which: int) -> int | None:
    value = ctypes.c_int(0)
    return None if library.cuDeviceGetAttribute(ctypes.byref(value), which, device) else value.value


def _pair(numbers: list[int | None]) -> tuple[int, int] | None:
    major, minor = numbers
    return None if major is None or minor is None else (major, minor)


if __name__ == "__main__":
    print(json.dumps(ask_cuda(ctypes.CDLL("libcuda.so.1"))))  # without it the exit code is 1
