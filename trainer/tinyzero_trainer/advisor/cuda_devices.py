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

SECONDS = 20.0  # a driver wakes many GPUs in some seconds
_NO_DEVICE = 100  # cuInit's status where there is no GPU, or all are hidden
_MAJOR, _MINOR = 75, 76  # attributes of a GPU: compute capability
_Uuid = ctypes.c_ubyte * 16


def visible_gpus(command: Sequence[str] = (), timeout: float = SECONDS) -> tuple[GpuInfo, ...] | None:
    """The GPUs that a run would see; None = there is no CUDA, or it cannot be queried."""
    # -P: nothing in the working directory can replace a library.
    command = tuple(command) or (sys.executable, "-P", "-m", "tinyzero_trainer.advisor.cuda_devices")
    try:
        done = subprocess.run(command, capture_output=True, timeout=timeout, check=True)
        return tuple(GpuInfo(**gpu | {"capability": tuple(gpu["capability"])}) for gpu in json.loads(done.stdout))
    except (OSError, subprocess.SubprocessError, ValueError, LookupError, TypeError):
        return None


def ask_cuda(library: Any) -> list[dict[str, Any]]:
    def call(function: str, *arguments: Any) -> None:
        if status := getattr(library, function)(*arguments):
            raise OSError(f"{function} returns {status}")

    def attribute(which: int, device: ctypes.c_int) -> int:
        value = ctypes.c_int(0)
        call("cuDeviceGetAttribute", ctypes.byref(value), which, device)
        return value.value

    if (status := library.cuInit(0)) == _NO_DEVICE:
        return []
    if status:
        raise OSError(f"cuInit returns {status}")
    count, gpus = ctypes.c_int(0), []
    call("cuDeviceGetCount", ctypes.byref(count))
    for index in range(count.value):
        device, memory, name, own = ctypes.c_int(0), ctypes.c_size_t(0), ctypes.create_string_buffer(256), _Uuid()
        call("cuDeviceGet", ctypes.byref(device), index)
        call("cuDeviceGetName", name, len(name), device)
        call("cuDeviceTotalMem_v2", ctypes.byref(memory), device)
        # The newer one gives a MIG instance its own UUID, not the GPU's.
        newer = hasattr(library, "cuDeviceGetUuid_v2")
        call("cuDeviceGetUuid_v2" if newer else "cuDeviceGetUuid", ctypes.byref(own), device)
        gpu = {"index": index, "name": name.value.decode(errors="replace"), "memory": memory.value}
        gpu |= {"capability": [attribute(_MAJOR, device), attribute(_MINOR, device)]}
        gpus.append(gpu | {"uuid": str(uuid.UUID(bytes=bytes(own)))})
    return gpus


if __name__ == "__main__":
    print(json.dumps(ask_cuda(ctypes.CDLL("libcuda.so.1"))))
