"""The benchmark that measures what the plan predicts: how it reads its marks."""

from types import SimpleNamespace

import pytest
import torch

from benchmarks import memory as memory_benchmark
from benchmarks.commands import MemoryReadings
from tinyzero_trainer.advisor import constants
from tinyzero_trainer.hardware.gpu import GIB


def test_the_benchmark_separates_the_phases() -> None:
    memory = MemoryReadings([(0.5, 9), (1.5, 30), (2.5, 80), (3.5, 40), (4.5, 90)], before=10)
    names = ["", "gen", "update_actor", "", "gen"]
    marks = [{"name": name, "at": float(at), "allocated": at, "reserved": 0} for at, name in enumerate(names, 1)]
    found = memory_benchmark.by_phase(marks, memory)
    assert found["gen"] == {"NVML": 80, "allocated": 5, "reserved": 0}
    assert found["update_actor"] == {"NVML": 70, "allocated": 3, "reserved": 0}
    assert memory.peak() == 80
    assert MemoryReadings().peak() is None


def test_the_benchmark_can_show_a_smaller_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, shares = 140 * GIB, []
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=whole))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: (whole - 30 * GIB, whole))
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", shares.append)
    memory_benchmark.limit_gpu_memory(24 * GIB)
    assert torch.cuda.mem_get_info(0) == (0, 24 * GIB)
    assert shares[0] * whole == pytest.approx(24 * GIB - constants.CONTEXT)
