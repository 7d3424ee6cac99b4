"""Healthy and failed GPUs as NVML describes them, and what the plan makes of them."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from tests.trainer.advisor.planned import config_of
from tinyzero_trainer.advisor import advice
from tinyzero_trainer.advisor.target_gpu import present_gpu
from tinyzero_trainer.hardware.gpu import MIB, Driver, Process
from tinyzero_trainer.hardware.nvml import count_gpus, nvidia_driver, visible_gpus


class Nvml:
    """A driver with two GPUs; `broken` are the calls that fail, by name, or by name and GPU."""

    def __init__(self, **broken: int) -> None:
        self.broken = broken

    def answers(self) -> dict[str, Any]:
        processes = [SimpleNamespace(pid=4711, usedGpuMemory=123000 * MIB), SimpleNamespace(pid=7, usedGpuMemory=None)]
        return {
            "nvmlInit": lambda: None,
            "nvmlShutdown": lambda: None,
            "nvmlDeviceGetCount": lambda: 2,
            "nvmlSystemGetDriverVersion": lambda: "580.82.07",
            "nvmlSystemGetCudaDriverVersion_v2": lambda: 13000,
            "nvmlDeviceGetHandleByIndex": lambda index: index,
            "nvmlDeviceGetName": lambda handle: ("NVIDIA H200", "Odd")[handle],
            "nvmlDeviceGetUUID": lambda handle: f"GPU-{'ab'[handle]}",
            "nvmlDeviceGetCudaComputeCapability": lambda handle: (9, 0),
            "nvmlDeviceGetMemoryInfo": lambda handle, version=None: SimpleNamespace(
                total=143771 * MIB, free=20000 * MIB, used=123158 * MIB
            ),
            "nvmlDeviceGetComputeRunningProcesses": lambda handle: processes[: 2 * (handle == 0)],
            "nvmlSystemGetProcessName": lambda pid: "/usr/bin/python3",
            "nvmlDeviceGetMigMode": lambda handle: [0, 0],
        }

    def install(self, patch: pytest.MonkeyPatch) -> None:
        for name, answer in self.answers().items():

            def call(*arguments: Any, name: str = name, answer: Any = answer, **options: Any) -> Any:
                keys = (name, f"{name}_{arguments[0]}" if arguments else name)
                if found := [self.broken[key] for key in keys if key in self.broken]:
                    raise pynvml.NVMLError(found[0])
                return answer(*arguments, **options)

            patch.setattr(pynvml, name, call)


@pytest.fixture(autouse=True)
def all_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def driver_of(patch: pytest.MonkeyPatch, **broken: int) -> Driver:
    Nvml(**broken).install(patch)
    return nvidia_driver()


def test_two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = driver_of(monkeypatch)
    first, second = driver.gpus
    assert (driver.version, driver.cuda, driver.error) == ("580.82.07", (13, 0), "")
    assert (first.capability, first.free, first.uuid) == ((9, 0), 20000 * MIB, "a")
    assert first.used == 123158 * MIB  # the driver keeps some for itself
    assert first.processes == (Process(4711, "python3", 123000 * MIB), Process(7, "python3", 0))
    assert (second.name, second.processes) == ("Odd", ())
    assert count_gpus() == 2


def test_what_nvml_does_not_support_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    unsupported = pynvml.NVML_ERROR_NOT_SUPPORTED
    names = ("MemoryInfo_1", "CudaComputeCapability_1", "ComputeRunningProcesses")
    driver = driver_of(monkeypatch, **{f"nvmlDeviceGet{name}": unsupported for name in names})
    odd = driver.gpus[1]
    assert (odd.memory, odd.free, odd.used, odd.capability, odd.processes) == (0, None, None, None, ())


def test_no_driver_and_one_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    Nvml(nvmlInit=pynvml.NVML_ERROR_LIBRARY_NOT_FOUND).install(monkeypatch)
    assert count_gpus() == 0
    monkeypatch.setattr(Path, "exists", lambda self: False)
    assert nvidia_driver() is None
    monkeypatch.setattr(Path, "exists", lambda self: True)
    in_container = nvidia_driver()
    assert "started without GPUs" in in_container.error
    driver = driver_of(monkeypatch, nvmlInit=pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH)
    assert driver.error.startswith("NVML: ")
    assert present_gpu("cuda") is None


def test_a_gpu_that_has_failed_is_an_error_of_the_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = driver_of(monkeypatch, nvmlDeviceGetHandleByIndex_1=pynvml.NVML_ERROR_GPU_IS_LOST)
    assert (driver.error.startswith("NVML: "), driver.gpus) == (True, ())


def test_of_instances_of_a_gpu_the_size_is_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = driver_of(monkeypatch, nvmlDeviceGetMigMode_1=pynvml.NVML_ERROR_NOT_SUPPORTED)
    assert [gpu.memory > 0 for gpu in driver.gpus] == [True, True]
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMigMode", lambda _: [1, 1])
    assert [gpu.memory for gpu in nvidia_driver().gpus] == [0, 0]
    assert present_gpu("cuda") is None


@pytest.mark.parametrize(
    ("names", "seen"), [(None, "ab"), ("1,0", "ba"), ("GPU-b", "b"), ("1,-1,0", "b"), ("", ""), ("MIG-a", "")]
)
def test_the_gpus_that_cuda_shows(names: str | None, seen: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if names is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", names)
    assert "".join(gpu.uuid for gpu in visible_gpus(driver_of(monkeypatch).gpus)) == seen


def test_whatever_goes_wrong_in_the_binding_stops_no_run(monkeypatch: pytest.MonkeyPatch) -> None:
    Nvml().install(monkeypatch)
    monkeypatch.setattr(pynvml, "nvmlInit", lambda: next(iter(())))
    assert nvidia_driver().error == "NVML: StopIteration"
    assert advice.warning(config_of()) is None
