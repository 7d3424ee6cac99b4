"""That the plan proposes the shortest step there is room for."""

import time
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trainer.plan.planned import MODELS, SETTINGS, SPECS, config_of
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.estimate.fit import predict_within, with_settings
from tinyzero_trainer.estimate.memory import host_bytes
from tinyzero_trainer.estimate.speed import predict_speed
from tinyzero_trainer.hardware.gpu import GIB
from tinyzero_trainer.hardware.gpu_specs import GpuSpec, find_gpu_spec
from tinyzero_trainer.models.spec import ModelSpec, spec_from_config
from tinyzero_trainer.plan.plan import WORTHWHILE, Plan, make_plan

RTX_4090 = find_gpu_spec("RTX 4090") or GpuSpec("", 0, 0, 0, 0)


def step(spec: ModelSpec, config: TrainConfig) -> float:
    return predict_speed(spec, config, RTX_4090).step


def planned(spec: ModelSpec, config: TrainConfig, gib: float, host: int | None = None) -> Plan:
    return make_plan(spec, config, int(gib * GIB), gpu=RTX_4090, host=host)


@pytest.mark.slow
@given(MODELS, SETTINGS, st.integers(6, 80), st.floats(1.02, 4))
@settings(max_examples=40, deadline=None)
def test_more_memory_makes_no_step_slower(name: str, values: dict[str, Any], gib: int, factor: float) -> None:
    spec, config = SPECS[name], with_settings(TrainConfig(), values)
    less, more = (planned(spec, config, size) for size in (gib, gib * factor))
    assert more.fits or not less.fits
    if less.fits and less.config.lora.rank == more.config.lora.rank:  # else they train something else
        assert step(spec, more.config) <= WORTHWHILE * step(spec, less.config)


def test_the_fewest_sequences_are_tried_though_they_are_no_half() -> None:
    """Of 480, where 30 is the last half."""
    words = ("rollout.max_num_seqs=480", "model.dtype=float32", "lora.rank=16", "optimizer.num_mini_batches=4")
    words += ("data.prompts_per_step=4", "rollout.group_size=2", "optimizer.micro_batch_tokens=621")
    words += (
        "algorithm.advantage_estimator=gae",
        "algorithm.kl_coefficient=0.001",
        "rollout.max_completion_tokens=257",
    )
    sizes = {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "vocab_size": 128_256}
    sizes |= {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64}
    spec = spec_from_config("Llama-3.2-1B", {"model_type": "llama", "tie_word_embeddings": True, **sizes})
    found = planned(spec, config_of(*words, "model.compile=false", model="Llama-3.2-1B"), 10)
    assert (found.fits, found.config.rollout.max_num_seqs) == (True, 16)


@pytest.mark.parametrize("gib", [8, 12, 16, 24])
def test_a_small_gpu_is_not_planned_slower_than_it_need_be(gib: int) -> None:
    name = "Qwen/Qwen2.5-1.5B"
    config = config_of("data.prompts_per_step=128", model=name)
    begun = time.process_time()
    found = planned(SPECS[name], config, gib)
    assert time.process_time() - begun < 10  # against a search of everything
    assert found.fits
    assert step(SPECS[name], found.config) < {8: 165, 12: 155, 16: 151, 24: 149}[gib]


def test_a_tie_goes_to_the_fewest_changes() -> None:
    """Smaller micro-batches take no longer by the prediction, and are not proposed where idle weights are enough."""
    spec = SPECS["Qwen/Qwen2.5-0.5B"]
    config = with_settings(TrainConfig(), {"rollout.max_completion_tokens": 1024, "data.prompts_per_step": 32})
    found = planned(spec, config, 60)
    assert "optimizer.micro_batch_tokens" not in {change.key for change in found.changes}
    tight = planned(spec, config, 20)
    [change] = [change for change in tight.changes if change.key == "optimizer.micro_batch_tokens"]
    larger = with_settings(tight.config, {"optimizer.micro_batch_tokens": 2 * change.value})
    assert predict_within(spec, larger, tight.limit).peak > tight.limit


def test_nothing_is_moved_into_memory_that_the_machine_has_not() -> None:
    name = "Qwen/Qwen2.5-7B"
    spec, config = SPECS[name], config_of(model=name)
    rich, poor = planned(spec, config, 24), planned(spec, config, 24, host=64 * GIB)
    assert rich.config.memory.cpu_offload == "always"
    assert host_bytes(spec, rich.config) > 100 * GIB
    assert host_bytes(spec, poor.config) <= 64 * GIB
    asked = replace(config, memory=replace(config.memory, cpu_offload="always"))
    assert planned(spec, asked, 24, host=64 * GIB).config.memory.cpu_offload == "always"  # he wants it so
