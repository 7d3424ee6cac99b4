"""GPU memory and model FLOPs utilization, with fake GPUs."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from tinyzero_sdk import Item, Score
from tinyzero_trainer.config import OptimizerConfig, TrainConfig
from tinyzero_trainer.controller import step as training_step
from tinyzero_trainer.controller.step import TrainingStep
from tinyzero_trainer.monitoring import performance
from tinyzero_trainer.monitoring.performance import GpuMemoryUsage
from tinyzero_trainer.types import Generation, Prompt, Rollout

SECONDS = {"gen": 1.0, "update_actor": 2.0, "update_critic": 4.0, "step": 7.0}


def gpu(name: str, gib: int = 1) -> GpuMemoryUsage:
    return GpuMemoryUsage(name, gib * 2**30, 2 * gib * 2**30)


def test_known_gpus_have_the_peak_of_their_data_sheet() -> None:
    h200, old = gpu("NVIDIA H200"), gpu("Quadro 6000")
    assert performance.peak_flops([h200]) == 989e12
    assert performance.peak_flops([h200, h200]) == 2 * 989e12
    assert performance.peak_flops([h200, old]) is None
    assert performance.peak_flops([]) is None


def test_memory_is_that_of_the_fullest_gpu() -> None:
    assert performance.memory_metrics([gpu("one", 3), gpu("other", 2)]) == {
        "perf/max_memory_allocated_gb": 3.0,
        "perf/max_memory_reserved_gb": 6.0,
    }
    assert performance.memory_metrics([]) == {}
    assert performance.memory_usage(torch.device("cpu")) is None


def step(monkeypatch: pytest.MonkeyPatch, *, adapter: object = None) -> TrainingStep:
    """On GPUs of 500 FLOP/s, with 2 epochs; the policy has 10 parameters, the critic 4."""
    monkeypatch.setattr(training_step, "peak_flops", lambda gpus: 500.0 * len(gpus) or None)
    taken = object.__new__(TrainingStep)
    taken.config = TrainConfig(optimizer=OptimizerConfig(update_epochs=2))
    critic = SimpleNamespace(parameters=4)
    taken.workers = SimpleNamespace(language_model=SimpleNamespace(adapter=adapter, parameters=10), critic=critic)
    return taken


def test_it_counts_the_tokens_of_all_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Rollout(Prompt(Item(None), "", [1, 2]), Generation([3, 4, 5], None, True), "", Score(0.0, False))
    left_out = replace(one, score=Score(0.0, False, masked=True))
    samples = [one, one, left_out]  # 10 tokens a pass
    gpus = [gpu("a"), gpu("b")]
    assert step(monkeypatch).utilization(SECONDS, samples, gpus) == {
        "perf/mfu/actor": pytest.approx(6 * 10 * 20 / 2.0 / 1000),
        "perf/mfu/critic": pytest.approx(6 * 4 * 20 / 4.0 / 1000),
    }
    assert "perf/mfu/actor" not in step(monkeypatch, adapter=object()).utilization(SECONDS, samples, gpus)
    assert step(monkeypatch).utilization(SECONDS, samples, []) == {}
