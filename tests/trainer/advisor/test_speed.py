"""Predicted times: their laws, and what was measured on an H200."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trainer.advisor.planned import (
    ASYNC,
    GRPO,
    H200,
    HALF_B,
    MODELS,
    OWN,
    SETTINGS,
    SPECS,
    config_of,
    configured,
    on,
)
from tinyzero_trainer.advisor.engine_choice import EngineSpeed, read_speeds
from tinyzero_trainer.advisor.speed import COLLECTING, predict_speed
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.config.settings import with_settings
from tinyzero_trainer.hardware.gpu_specs import GpuSpec, find_gpu_spec, known_gpus
from tinyzero_trainer.rollout.torch.cost_model import step_seconds


@given(MODELS, SETTINGS, st.integers(1, 7), st.sampled_from(["token", "sequence"]))
@settings(max_examples=15, deadline=None)
def test_async_sampling_is_no_slower_than_taking_turns(
    name: str, values: dict[str, Any], engines: int, level: str
) -> None:
    values = {key: value for key, value in values.items() if key != "memory.cpu_offload"}
    config = on(with_settings(TrainConfig(), values), 8, rollout__num_engines=engines)
    ahead = with_settings(config, {**ASYNC, "rollout_correction.is_level": level})
    turns = with_settings(ahead, {"rollout.max_async_level": 0})
    fast, slow = (predict_speed(SPECS[name], config, H200) for config in (ahead, turns))
    assert fast.seconds == slow.seconds
    assert fast.step <= slow.step * (1 + 1e-9)
    assert fast.step >= max(sum(slow.seconds[part] for part in COLLECTING if part in slow.seconds), slow.step / 2)


@given(MODELS, SETTINGS, st.sampled_from([2, 4, 8]))
@settings(max_examples=15, deadline=None)
def test_several_gpus_are_no_faster_than_as_many_times_one(name: str, values: dict[str, Any], count: int) -> None:
    # Padded: how groups that share prompts fit into rows may be better on several GPUs by chance.
    values = {**values, "memory.cpu_offload": "none", "model.compile": None, "optimizer.packing": "padded"}
    spec, config = SPECS[name], configured(values)
    one = predict_speed(spec, config, H200).seconds["update_actor"]
    assert predict_speed(spec, on(config, count), H200).seconds["update_actor"] * count >= one * (1 - 1e-9)


@pytest.mark.parametrize("offload", ["none", "always"])
@pytest.mark.parametrize("phase", ["update_actor", "update_critic"])
def test_every_epoch_takes_as_long(offload: str, phase: str) -> None:
    config = config_of("algorithm.advantage_estimator=gae", "algorithm.kl_coefficient=0.1", *GRPO)
    config = with_settings(config, {"memory.cpu_offload": offload})
    epochs = (with_settings(config, {"optimizer.update_epochs": count}) for count in (1, 3))
    once, thrice = (predict_speed(SPECS[HALF_B], one, H200).seconds[phase] for one in epochs)
    assert thrice == pytest.approx(3 * once)


@given(MODELS, st.sampled_from(known_gpus()), st.integers(1, 2048), st.integers(1, 4096), st.sampled_from([2, 4]))
@settings(deadline=None)
def test_no_step_is_promised_to_be_as_fast_as_with_graphs(
    name: str, gpu: Any, sequences: int, length: int, number: int
) -> None:
    config = config_of(f"model.dtype={'float32' if number == 4 else 'bfloat16'}")
    with_graphs, without = (
        step_seconds(replace(SPECS[name], graphs=graphs), config, gpu, sequences, length) for graphs in (True, False)
    )
    longer = step_seconds(replace(SPECS[name], graphs=False), config, gpu, sequences, length + 100)
    assert with_graphs < without <= longer


H100 = find_gpu_spec("H100")
assert H100 is not None


@pytest.mark.parametrize(
    ("in_fp8", "rate"),
    [("kv_cache_dtype", 272_838), ("quantization", 278_792), ("kv_cache_dtype quantization", 355_052)],
)
def test_tokens_a_second_in_fp8_as_measured_on_an_h200(in_fp8: str, rate: int) -> None:
    words = (f"rollout.{key}=fp8" for key in in_fp8.split())
    config = config_of("data.prompts_per_step=128", "rollout.max_completion_tokens=1024", *words)
    assert predict_speed(SPECS[HALF_B], config, H200, 140).rollout == pytest.approx(rate, rel=0.1)


@pytest.mark.parametrize("row", read_speeds(), ids=lambda row: row.about)
def test_tokens_a_second_of_both_engines_as_in_the_table(row: EngineSpeed) -> None:
    spec = next(spec for spec in (*SPECS.values(), OWN) if spec.parameters == pytest.approx(row.parameters, rel=0.001))
    gpu = find_gpu_spec(row.gpu)
    assert gpu is not None
    words = (f"data.prompts_per_step={row.completions // 8}", f"rollout.max_completion_tokens={row.completion_tokens}")
    long_prompts = row.parameters < 1e9 and row.prompt_tokens > 1000  # are predicted too fast
    for engine, rate, error in (("torch", row.torch, 0.3 if long_prompts else 0.15), ("vllm", row.vllm, 0.2)):
        speed = predict_speed(spec, config_of(*words, f"rollout.engine={engine}"), gpu, row.prompt_tokens)
        assert speed.rollout == pytest.approx(rate, rel=error)
        assert speed.tokens == row.completions * (row.prompt_tokens + row.completion_tokens)
        assert speed.throughput == pytest.approx(speed.tokens / sum(speed.seconds.values()))


@pytest.mark.parametrize(
    ("gpu", "recompute_logits", "seconds"),
    [(H200, True, 7.97), (H200, False, 7.36), (H100, True, 8.46), (H100, False, 7.86)],
)
def test_seconds_of_the_update_as_measured(gpu: GpuSpec, recompute_logits: bool, seconds: float) -> None:
    """Measured with FlashAttention-4; with PyTorch's own attention an update takes 7% longer."""
    words = ("data.prompts_per_step=128", "rollout.max_completion_tokens=1024", "optimizer.micro_batch_tokens=32768")
    config = with_settings(config_of(*words), {"memory.recompute_logits": recompute_logits})
    predicted = predict_speed(SPECS[HALF_B], config, gpu, 140).seconds["update_actor"]
    assert predicted == pytest.approx(1.07 * seconds, rel=0.1)
