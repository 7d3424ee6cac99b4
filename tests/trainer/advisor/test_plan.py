"""What a plan proposes where a run does not fit: it fits, is needed, and makes the shortest step."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trainer.advisor.planned import (
    GRPO,
    MODELS,
    SETTINGS,
    SEVEN_B,
    SPECS,
    config_of,
    gpu_of,
    on,
)
from tinyzero_trainer.advisor.auto import MEMORY_SETTINGS, choose
from tinyzero_trainer.advisor.fit import predict_within
from tinyzero_trainer.advisor.memory import host_bytes
from tinyzero_trainer.advisor.plan import Plan, make_plan
from tinyzero_trainer.advisor.speed import predict_speed
from tinyzero_trainer.advisor.target_gpu import TargetGpu
from tinyzero_trainer.cli.plan_report import plan_for
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.config.settings import with_settings
from tinyzero_trainer.distributed.parallel_dims import planned_dims
from tinyzero_trainer.distributed.sizes import usable
from tinyzero_trainer.hardware.gpu import GIB
from tinyzero_trainer.models.spec import ModelSpec, spec_from_config

RTX_4090 = gpu_of("RTX 4090")
LARGER, VLLM = "Qwen/Qwen2.5-1.5B", "rollout.engine=vllm"


def step(spec: ModelSpec, config: TrainConfig) -> float:
    return predict_speed(spec, config, RTX_4090).step


def planned(spec: ModelSpec, config: TrainConfig, gib: float, host: int | None = None) -> Plan:
    return make_plan(spec, config, int(gib * GIB), gpu=RTX_4090, host=host)


@pytest.mark.slow
@given(MODELS, SETTINGS, st.integers(6, 200), st.sampled_from([0, 1, 2, 8]), st.integers(0, 1))
@settings(max_examples=12, deadline=None)
def test_what_is_proposed_is_a_configuration_that_fits(
    name: str, values: dict[str, Any], gib: int, gpus: int, engines: int
) -> None:
    config = with_settings(TrainConfig(), values)
    if gpus:
        config = on(config, gpus, rollout__num_engines=engines if gpus > 1 else 0)
    found = make_plan(SPECS[name], config, gib * GIB)
    changed = with_settings(config, {change.key: change.value for change in (*found.changes, *found.chosen)})
    assert planned_dims(changed) == planned_dims(config)
    assert predict_within(SPECS[name], changed, found.limit).peak == found.memory.peak
    assert found.fits == (found.memory.peak <= usable(gib * GIB))
    assert all(change.value != change.before for change in found.changes)
    assert not found.fits or all(change.trade_off for change in found.changes)
    assert config.rollout.engine == "vllm" or not any(change.key.startswith("vllm.") for change in found.changes)


@pytest.mark.slow
@given(MODELS, SETTINGS, st.integers(6, 200))
@settings(max_examples=8, deadline=None)
def test_nothing_is_proposed_without_which_it_fits_as_well(name: str, values: dict[str, Any], gib: int) -> None:
    spec, config = SPECS[name], with_settings(TrainConfig(), values)
    found = make_plan(spec, config, gib * GIB)
    settled = with_settings(found.config, {change.key: "auto" for change in found.chosen})
    for change in found.changes if found.fits else ():
        if change.key in MEMORY_SETTINGS:
            assert (
                choose(spec, with_settings(settled, {change.key: change.before}), found.limit).memory.peak > found.limit
            )


def test_the_fewest_sequences_are_tried_though_they_are_no_half() -> None:
    """Of 480, where 30 is the last half."""
    words = ("rollout.max_num_seqs=480", "model.dtype=float32", "lora.rank=16", "optimizer.num_mini_batches=4")
    words += ("data.prompts_per_step=4", "rollout.group_size=2", "optimizer.micro_batch_tokens=621")
    words += ("algorithm.kl_coefficient=0.001", "rollout.max_completion_tokens=257")
    words += ("algorithm.advantage_estimator=gae",)
    sizes = {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "vocab_size": 128_256}
    sizes |= {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64}
    spec = spec_from_config("Llama-3.2-1B", {"model_type": "llama", "tie_word_embeddings": True, **sizes})
    found = planned(spec, config_of(*words, "model.compile=false", model="Llama-3.2-1B"), 10)
    assert (found.fits, found.config.rollout.max_num_seqs) == (True, 16)


@pytest.mark.slow
def test_nothing_is_offloaded_that_host_memory_cannot_hold() -> None:
    spec, config = SPECS[SEVEN_B], config_of(model=SEVEN_B)
    rich, poor = planned(spec, config, 24), planned(spec, config, 24, host=64 * GIB)
    assert rich.config.memory.cpu_offload == "always"
    assert host_bytes(spec, rich.config) > 100 * GIB
    assert host_bytes(spec, poor.config) <= 64 * GIB
    requested = with_settings(config, {"memory.cpu_offload": "always"})
    assert planned(spec, requested, 24, host=64 * GIB).config.memory.cpu_offload == "always"


@pytest.mark.slow
def test_an_engine_without_cuda_graphs_takes_at_most_512_sequences_at_a_time() -> None:
    spec = replace(SPECS["Qwen/Qwen2.5-1.5B"], graphs=False)
    config = config_of("data.prompts_per_step=128", "rollout.max_completion_tokens=1024", model=spec.name)
    roomy, tight = (make_plan(spec, config, gib * GIB) for gib in (300, 32))
    assert roomy.config.rollout.max_num_seqs == 512
    assert tight.fits
    assert not tight.changes
    assert tight.config.rollout.max_num_seqs in (256, 128, 64, 32)


def test_an_unknown_gpu_and_a_model_that_is_only_counted_are_planned_too() -> None:
    spec = ModelSpec(
        "m", 10**9, hidden=2048, layers=16, heads=32, kv_heads=8, head_size=64, mlp=8192, vocabulary=128_000, tied=True
    )
    planned = plan_for(spec, on(config_of(*GRPO), 2), TargetGpu("a GPU", 24 * GIB, None))
    assert planned.plan.fits
    assert planned.speed is None
