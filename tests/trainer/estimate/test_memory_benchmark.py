"""The benchmark that measures what the plan predicts: what it makes of its marks."""

from types import SimpleNamespace

import pytest
import torch

from benchmarks import memory as memory_benchmark
from tinyzero_trainer.estimate import constants
from tinyzero_trainer.hardware.gpu import GIB


def test_the_benchmark_tells_the_phases_apart() -> None:
    watch = memory_benchmark.Watch([(0.5, 9), (1.5, 30), (2.5, 80), (3.5, 40), (4.5, 90)], before=10)
    names = ["", "gen", "update_actor", "", "gen"]
    marks = [{"name": name, "at": float(at), "allocated": at, "reserved": None} for at, name in enumerate(names, 1)]
    found = memory_benchmark.by_phase(marks, watch)
    assert found["gen"] == {"nvml": 80, "allocated": 5, "reserved": None}
    assert found["update_actor"] == {"nvml": 70, "allocated": 3, "reserved": None}
    assert watch.most() == 80
    assert memory_benchmark.Watch().most() is None


def test_the_benchmark_can_show_a_smaller_card(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, shares = 140 * GIB, []
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(total_memory=whole))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda *_: (whole - 30 * GIB, whole))
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", shares.append)
    memory_benchmark.on_a_smaller_gpu(24 * GIB)
    assert torch.cuda.mem_get_info(0) == (0, 24 * GIB)
    assert shares[0] * whole == pytest.approx(24 * GIB - constants.CONTEXT)


def test_the_benchmark_gives_each_key_once() -> None:
    words = ["--recipe", "ppo", "a.b=1", "--model", "x", "c.d=2", "a.b=3"]
    assert memory_benchmark.last_of_each(words) == ["--recipe", "ppo", "--model", "x", "c.d=2", "a.b=3"]
