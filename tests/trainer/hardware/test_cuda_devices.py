"""The GPUs in CUDA's own order: libcuda's answers, and a process that gives none."""

import ctypes
import json
import sys
from typing import Any
from uuid import UUID

import pytest

from tinyzero_trainer.hardware.cuda_devices import ask_cuda, visible_gpus
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


def test_what_libcuda_says_of_each_gpu() -> None:
    gpus = ask_cuda(Libcuda())
    assert gpus is not None
    assert gpus[0] == {
        "index": 0,
        "name": "NVIDIA L4",
        "capability": [8, 9],
        "memory": 10 * 2**30,
        "uuid": "8932f937-d72c-4106-c12f-20bd9faed9f6",  # as nvidia-smi writes it
    }
    assert [gpu["name"] for gpu in gpus] == ["NVIDIA L4", "NVIDIA H200"]


def test_the_name_of_a_part_of_a_gpu_counts_where_there_is_one() -> None:
    class Newer(Libcuda):
        def cuDeviceGetUuid_v2(self, uuid: Any, device: ctypes.c_int) -> int:
            uuid._obj[:] = OWN[1].bytes
            return 0

    gpus = ask_cuda(Newer())
    assert gpus is not None
    assert gpus[0]["uuid"] == str(OWN[1])


def test_no_gpu_is_an_answer_and_a_fault_is_none() -> None:
    assert ask_cuda(Libcuda(cuInit=100)) == []
    assert ask_cuda(Libcuda(cuInit=999)) is None
    assert ask_cuda(Libcuda(cuDeviceGetCount=3)) is None
    assert ask_cuda(Libcuda(cuDeviceGetName=1)) is None
    unknown = ask_cuda(Libcuda(cuDeviceGetAttribute=1))
    assert unknown is not None
    assert unknown[0]["capability"] == [None, None]


def says(text: str, code: int = 0) -> tuple[str, ...]:
    return (sys.executable, "-c", f"print({text!r}); raise SystemExit({code})")


def test_what_the_process_prints_becomes_gpus() -> None:
    [gpu, _] = visible_gpus(says(json.dumps(ask_cuda(Libcuda())))) or ()
    assert gpu == GpuInfo(0, "NVIDIA L4", (8, 9), 10 * 2**30, uuid=str(OWN[0]))
    assert visible_gpus(says("[]")) == ()


@pytest.mark.parametrize(
    "command", [says("null"), says("[]", code=1), says("a warning"), says("[{}]"), says("[3]"), ("/nowhere/at/all",)]
)
def test_a_process_that_fails_knows_nothing(command: tuple[str, ...]) -> None:
    assert visible_gpus(command) is None


def test_a_process_that_hangs_is_given_up() -> None:
    assert visible_gpus((sys.executable, "-c", "import time; time.sleep(20)"), timeout=0.1) is None


@pytest.mark.gpu
def test_the_order_is_torchs() -> None:
    import torch

    seen = [torch.cuda.get_device_properties(place) for place in range(torch.cuda.device_count())]
    gpus = visible_gpus()
    assert gpus is not None
    assert [(gpu.name, gpu.memory, gpu.capability, gpu.uuid) for gpu in gpus] == [
        (one.name, one.total_memory, (one.major, one.minor), str(one.uuid).removeprefix("GPU-")) for one in seen
    ]
