"""The GPUs in CUDA's order: libcuda's answers, and a process that gives none."""

import ctypes
import json
import sys
from typing import Any
from uuid import UUID

import pytest

from tinyzero_trainer.advisor.cuda_devices import ask_cuda, visible_gpus
from tinyzero_trainer.hardware.gpu import GpuInfo

OWN = (UUID("8932f937-d72c-4106-c12f-20bd9faed9f6"), UUID("00000000-0000-0000-0000-0000000000ff"))


class Libcuda:
    """A driver with two GPUs. What its functions write is behind a reference, as ctypes makes it."""

    def __init__(self, **statuses: int) -> None:
        self.statuses = statuses

    def cuInit(self, flags: int) -> int:
        return self.statuses.get("cuInit", 0)

    def cuDeviceGetCount(self, count: Any) -> int:
        count._obj.value = 2
        return self.statuses.get("cuDeviceGetCount", 0)

    def cuDeviceGet(self, device: Any, place: int) -> int:
        device._obj.value = place + 10
        return 0

    def cuDeviceGetName(self, name: Any, size: int, device: ctypes.c_int) -> int:
        name.value = {10: b"NVIDIA L4", 11: b"NVIDIA H200"}[device.value]
        return self.statuses.get("cuDeviceGetName", 0)

    def cuDeviceTotalMem_v2(self, memory: Any, device: ctypes.c_int) -> int:
        memory._obj.value = device.value * 2**30
        return 0

    def cuDeviceGetUuid(self, uuid: Any, device: ctypes.c_int) -> int:
        uuid._obj[:] = OWN[device.value - 10].bytes
        return 0

    def cuDeviceGetAttribute(self, value: Any, which: int, device: ctypes.c_int) -> int:
        value._obj.value = {75: 8, 76: 9}[which]
        return self.statuses.get("cuDeviceGetAttribute", 0)


def test_two_gpus() -> None:
    gpus = ask_cuda(Libcuda())
    assert gpus[0] == {
        "index": 0,
        "name": "NVIDIA L4",
        "capability": [8, 9],
        "memory": 10 * 2**30,
        "uuid": "8932f937-d72c-4106-c12f-20bd9faed9f6",  # as nvidia-smi writes it
    }
    assert [gpu["name"] for gpu in gpus] == ["NVIDIA L4", "NVIDIA H200"]


def test_a_mig_instance_has_its_own_uuid() -> None:
    class Newer(Libcuda):
        def cuDeviceGetUuid_v2(self, uuid: Any, device: ctypes.c_int) -> int:
            uuid._obj[:] = OWN[1].bytes
            return 0

    assert ask_cuda(Newer())[0]["uuid"] == str(OWN[1])


def test_no_gpu_is_an_answer_and_a_fault_is_an_error() -> None:
    assert ask_cuda(Libcuda(cuInit=100)) == []
    for call in ("cuInit", "cuDeviceGetCount", "cuDeviceGetName", "cuDeviceGetAttribute"):
        with pytest.raises(OSError, match=call):
            ask_cuda(Libcuda(**{call: 1}))


def printing(text: str, code: int = 0) -> tuple[str, ...]:
    return (sys.executable, "-c", f"print({text!r}); raise SystemExit({code})")


def test_gpus_of_the_child_process() -> None:
    [gpu, _] = visible_gpus(printing(json.dumps(ask_cuda(Libcuda())))) or ()
    assert gpu == GpuInfo(0, "NVIDIA L4", (8, 9), 10 * 2**30, uuid=str(OWN[0]))
    assert visible_gpus(printing("[]")) == ()


@pytest.mark.parametrize(
    "command", [*map(printing, ("null", "a warning", "[{}]", "[3]")), printing("[]", code=1), ("/nowhere/at/all",)]
)
def test_a_child_process_that_fails(command: tuple[str, ...]) -> None:
    assert visible_gpus(command) is None


def test_a_child_process_that_hangs() -> None:
    assert visible_gpus((sys.executable, "-c", "import time; time.sleep(20)"), timeout=0.1) is None


@pytest.mark.gpu
def test_the_order_is_that_of_torch() -> None:
    import torch

    seen = [torch.cuda.get_device_properties(place) for place in range(torch.cuda.device_count())]
    gpus = visible_gpus()
    assert [(gpu.name, gpu.memory, gpu.capability, gpu.uuid) for gpu in gpus] == [
        (one.name, one.total_memory, (one.major, one.minor), str(one.uuid).removeprefix("GPU-")) for one in seen
    ]
