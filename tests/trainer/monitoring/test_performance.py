"""GPU memory and model FLOPs utilization, with fake GPUs."""

from dataclasses import replace

import pytest
import torch

from tests.trainer.samples import make_rollout
from tinyzero_sdk import Score
from tinyzero_trainer.controller.step_metrics import trained_tokens
from tinyzero_trainer.monitoring import performance
from tinyzero_trainer.monitoring.performance import GpuMemoryUsage

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


def test_it_counts_the_tokens_that_are_trained() -> None:
    one = make_rollout([1, 2], [3, 4, 5])
    tokens = trained_tokens([one, one, replace(one, score=Score(0.0, False, masked=True))])
    assert tokens == 10
    parameters = {"actor": 10, "critic": 4, "reference": 10}
    assert performance.utilization(SECONDS, 2 * tokens, parameters=parameters, peak=1000.0) == {
        "perf/mfu/actor": pytest.approx(6 * 10 * 20 / 2.0 / 1000),
        "perf/mfu/critic": pytest.approx(6 * 4 * 20 / 4.0 / 1000),
    }
