"""Whether the plan predicts what was measured on a GPU."""

from dataclasses import replace
from typing import Any

import pytest

from tests.trainer.plan.planned import HALF_B, SPECS, config_of
from tinyzero_sdk.settings import flatten
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.estimate import constants
from tinyzero_trainer.estimate.fit import predict_within, with_settings
from tinyzero_trainer.estimate.speed import predict_speed
from tinyzero_trainer.hardware.gpu import GIB
from tinyzero_trainer.hardware.gpu_specs import find_gpu_spec
from tinyzero_trainer.models.spec import ModelSpec
from tinyzero_trainer.sft import default_model as own_model

OWN = ModelSpec(
    "m", 9_930_624, hidden=384, layers=6, heads=6, kv_heads=2, head_size=64, mlp=1024, vocabulary=1252, tied=True
)
MANY_KEYS = replace(OWN, parameters=9_782_400, kv_heads=6, mlp=832)


@pytest.mark.parametrize(
    ("spec", "groups", "prompt", "new", "rate"),
    [
        (SPECS[HALF_B], 128, 140, 1024, 218_240),
        (SPECS[HALF_B], 128, 11, 256, 283_899),
        (OWN, 512, 24, 256, 3_258_502),
        (OWN, 128, 24, 256, 2_151_090),
        (MANY_KEYS, 1024, 11, 256, 1_460_000),
        (MANY_KEYS, 128, 11, 256, 1_240_000),
    ],
)
def test_tokens_a_second_of_the_torch_engine_as_measured_on_an_h200(
    spec: ModelSpec, groups: int, prompt: int, new: int, rate: int
) -> None:
    gpu = find_gpu_spec("NVIDIA H200")
    assert gpu is not None
    config = config_of(f"data.prompts_per_step={groups}", f"rollout.max_completion_tokens={new}")
    assert predict_speed(spec, config, gpu, prompt).rollout == pytest.approx(rate, rel=0.1)


@pytest.mark.parametrize(
    ("spec", "prompt", "new", "rate"), [(SPECS[HALF_B], 140, 1024, 40_011), (OWN, 24, 256, 62_601)]
)
def test_tokens_a_second_of_vllm_as_measured_on_an_h200(spec: ModelSpec, prompt: int, new: int, rate: int) -> None:
    gpu = find_gpu_spec("NVIDIA H200")
    assert gpu is not None
    config = config_of("data.prompts_per_step=128", f"rollout.max_completion_tokens={new}", "rollout.engine=vllm")
    speed = predict_speed(spec, config, gpu, prompt)
    assert speed.rollout == pytest.approx(rate, rel=0.1)
    assert speed.tokens == 1024 * (prompt + new)
    assert speed.throughput == pytest.approx(speed.tokens / sum(speed.seconds.values()))


SMALL_BATCHES = (
    "rollout.engine=vllm",
    "rollout.max_completion_tokens=1024",
    "vllm.gpu_memory_gb=6.48",
    "data.max_prompt_tokens=256",
)
PPO = {"algorithm.advantage_estimator": "gae", "algorithm.kl_placement": "reward", "algorithm.kl_estimator": "k1"}


@pytest.mark.parametrize(
    ("changes", "seconds"),
    [
        ({"vllm.sleep_mode": True, "optimizer.micro_batch_tokens": 4096}, 24.9),
        ({**PPO, "vllm.sleep_mode": False, "optimizer.micro_batch_tokens": 2048, "memory.cpu_offload": "idle"}, 93.5),
    ],
    ids=["GRPO", "PPO"],
)
def test_seconds_of_a_step_of_small_micro_batches_as_measured_on_an_h200(
    changes: dict[str, Any], seconds: float
) -> None:
    gpu = find_gpu_spec("NVIDIA H200")
    assert gpu is not None
    base = config_of(
        "data.prompts_per_step=32", *SMALL_BATCHES, "optimizer.num_mini_batches=2", "algorithm.kl_coefficient=0.001"
    )
    assert predict_speed(SPECS[HALF_B], with_settings(base, changes), gpu, 256).step == pytest.approx(seconds, rel=0.25)


def test_seconds_of_the_update_as_measured_on_an_h200() -> None:
    gpu = find_gpu_spec("NVIDIA H200")
    assert gpu is not None
    config = config_of("data.prompts_per_step=128", "rollout.max_completion_tokens=1024")
    assert predict_speed(SPECS[HALF_B], config, gpu, 140).seconds["update_actor"] == pytest.approx(9.73, rel=0.1)


def test_memory_of_the_own_models_run_as_measured_on_an_h200() -> None:
    config = with_settings(TrainConfig(), dict(flatten(own_model.SETTINGS)))
    memory = predict_within(OWN, config, 130 * GIB, 24)
    held = memory.peak - constants.CONTEXT - {part.what: part.size for part in memory.worst.parts}["allocator"]
    assert held == pytest.approx(16.34 * GIB, rel=0.1)  # perf/max_memory_allocated_gb
