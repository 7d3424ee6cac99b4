"""What a plan proposes where a run does not fit: it fits, is needed, and makes the shortest step."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.trainer.advisor.planned import (
    GRPO,
    GRPO_1024,
    HALF_B,
    MODELS,
    SETTINGS,
    SEVEN_B,
    SPECS,
    config_of,
    gpu_of,
    on,
    target_of,
)
from tinyzero_trainer.advisor.auto import MEMORY_SETTINGS
from tinyzero_trainer.advisor.fit import predict_within, settle
from tinyzero_trainer.advisor.memory import host_bytes, predict_memory
from tinyzero_trainer.advisor.plan import WORTHWHILE, Plan, candidate_changes, make_plan
from tinyzero_trainer.advisor.speed import predict_speed
from tinyzero_trainer.advisor.target_gpu import TargetGpu
from tinyzero_trainer.cli.plan_report import plan_for
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.config.settings import with_settings
from tinyzero_trainer.distributed.parallel_dims import planned_dims
from tinyzero_trainer.distributed.sizes import MARGIN, usable
from tinyzero_trainer.distributed.workload import workload_of
from tinyzero_trainer.hardware.gpu import GIB
from tinyzero_trainer.models.spec import ModelSpec, spec_from_config
from tinyzero_trainer.rollout.sizes import GB
from tinyzero_trainer.rollout.vllm.cost_model import needed

RTX_4090 = gpu_of("RTX 4090")
ENGINE_DECIDES = [key for key, trade in MEMORY_SETTINGS.items() if trade.chosen_by == "engine"]
LARGER, VLLM = "Qwen/Qwen2.5-1.5B", "rollout.engine=vllm"


def step(spec: ModelSpec, config: TrainConfig) -> float:
    return predict_speed(spec, config, RTX_4090).step


def planned(spec: ModelSpec, config: TrainConfig, gib: float, host: int | None = None) -> Plan:
    return make_plan(spec, config, int(gib * GIB), gpu=RTX_4090, host=host)


@pytest.mark.slow
@given(MODELS, SETTINGS, st.integers(6, 200), st.sampled_from([0, 1, 2, 8]), st.integers(0, 1))
@settings(max_examples=40, deadline=None)
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
    assert all(change.value != change.before and change.trade_off for change in found.changes)
    assert config.rollout.engine == "vllm" or not any(change.key.startswith("vllm.") for change in found.changes)


@pytest.mark.slow
@given(MODELS, SETTINGS, st.integers(6, 200))
@settings(max_examples=40, deadline=None)
def test_nothing_is_proposed_that_is_not_needed(name: str, values: dict[str, Any], gib: int) -> None:
    spec, config = SPECS[name], with_settings(TrainConfig(), values)
    found = make_plan(spec, config, gib * GIB)
    made = {change.key: change.value for change in found.changes}
    for key in made.keys() - {*ENGINE_DECIDES, "optimizer.learning_rate"} if found.fits else ():
        others = {other: value for other, value in made.items() if other != key and not other.startswith("vllm")}
        without = settle(spec, with_settings(config, others), found.limit)
        if predict_memory(spec, without).peak <= found.limit:
            assert step(spec, without) > step(spec, found.config)


@pytest.mark.slow
@given(MODELS, SETTINGS, st.integers(6, 80), st.floats(1.02, 4))
@settings(max_examples=40, deadline=None)
def test_more_memory_makes_no_step_slower(name: str, values: dict[str, Any], gib: int, factor: float) -> None:
    spec, config = SPECS[name], with_settings(TrainConfig(), values)
    less, more = (planned(spec, config, size) for size in (gib, gib * factor))
    assert more.fits or not less.fits
    if less.fits and less.config.lora.rank == more.config.lora.rank:  # else they train something else
        # Each plan is greedy: of two changes in a row, each may leave a gain that is not worthwhile.
        assert step(spec, more.config) <= WORTHWHILE**2 * step(spec, less.config)


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


def test_the_order_of_what_is_tried() -> None:
    config = config_of("rollout.engine=vllm", "vllm.sleep_mode=false", "vllm.gpu_memory_gb=30")
    assert [next(iter(change)) for change in candidate_changes(config)] == [
        *("vllm.sleep_mode", "rollout.max_num_seqs", "optimizer.micro_batch_tokens", "memory.cpu_offload"),
        *("memory.activation_checkpointing", "memory.cpu_offload", "lora.rank"),
    ]


@pytest.mark.parametrize("engines_decide", [True, False])
def test_replicas_are_given_up_before_anything_is_offloaded(engines_decide: bool) -> None:
    words = () if engines_decide else ("rollout.max_num_seqs=64",)
    config = config_of(*GRPO, *words, "rollout.max_completion_tokens=1024", model=SEVEN_B)
    found = make_plan(SPECS[SEVEN_B], on(config, 16, parallel__dp_replicate=16), target_of("H100").free)
    assert found.fits
    assert {change.key: change.value for change in found.changes}["parallel.dp_replicate"] == 1
    assert "memory.cpu_offload" not in [change.key for change in found.changes]


@pytest.mark.parametrize(("size", "words"), [(1024, "evaluations are"), (8, "completions are")])
def test_who_is_generated_in_more_rounds(size: int, words: str) -> None:
    config = config_of(f"eval.num_problems={size}", *GRPO_1024)  # 256 completions
    weights = SPECS[HALF_B].parameters * (18 if size > 256 else 6)
    config = with_settings(config, {"memory.cpu_offload": "none" if size > 256 else "idle"})
    limit = int(weights + (7 if size > 256 else 3.5) * GIB)
    found = make_plan(SPECS[HALF_B], config, int(limit / (1 - MARGIN)))
    [costs] = [change.trade_off for change in found.chosen if change.key == "rollout.max_num_seqs"]
    assert costs.startswith(words)


@pytest.mark.slow
def test_an_engine_without_cuda_graphs_takes_at_most_512_sequences_at_a_time() -> None:
    spec = replace(SPECS["Qwen/Qwen2.5-1.5B"], graphs=False)
    config = config_of("data.prompts_per_step=128", "rollout.max_completion_tokens=1024", model=spec.name)
    roomy, tight = (make_plan(spec, config, gib * GIB) for gib in (300, 32))
    assert roomy.config.rollout.max_num_seqs == 512
    assert tight.fits
    assert not tight.changes
    assert tight.config.rollout.max_num_seqs in (256, 128, 64, 32)


@pytest.mark.slow
@given(
    st.sampled_from([HALF_B, LARGER]),
    st.floats(0.1, 60),
    st.sampled_from(["auto", False, True]),
    st.sampled_from(["auto", 16, 64, 480]),
    st.integers(6, 80),
)
@example(HALF_B, 0.5, "auto", "auto", 24)
@example(LARGER, 4, "auto", 64, 22)
@settings(max_examples=6, deadline=None)
def test_what_vllm_is_given_never_decides_whether_something_fits(
    model: str, size: float, sleep: bool | str, sequences: int | str, gib: int
) -> None:
    spec = SPECS[model]
    open_ = with_settings(config_of(VLLM, model=model), {"vllm.sleep_mode": sleep, "rollout.max_num_seqs": sequences})
    given_ = with_settings(open_, {"vllm.gpu_memory_gb": size})
    left_out, found = (make_plan(spec, config, gib * GIB) for config in (open_, given_))
    assert found.fits or not left_out.fits
    least = needed(spec, found.config, workload_of(found.config), sequences=1)
    assert found.config.vllm.gpu_memory_gb != "auto"
    assert not found.fits or found.config.vllm.gpu_memory_gb * GB + GB / 100 >= least


def test_an_unknown_gpu_and_a_model_that_is_only_counted_are_planned_too() -> None:
    spec = ModelSpec(
        "m", 10**9, hidden=2048, layers=16, heads=32, kv_heads=8, head_size=64, mlp=8192, vocabulary=128_000, tied=True
    )
    planned = plan_for(spec, on(config_of(*GRPO), 2), TargetGpu("a GPU", 24 * GIB, None))
    assert planned.plan.fits
    assert (planned.speed, planned.interconnect) == (None, None)
