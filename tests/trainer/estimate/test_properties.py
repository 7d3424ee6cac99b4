"""Laws that every prediction of memory and time keeps, and that it counts what the code does."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import (
    Qwen2Config,
    Qwen2ForCausalLM,
)

from tests.trainer.plan.planned import COMMON, MODELS, SETTINGS, SPECS, config_of
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.estimate import constants
from tinyzero_trainer.estimate.fit import with_settings
from tinyzero_trainer.estimate.memory import predict_memory
from tinyzero_trainer.estimate.speed import predict_speed
from tinyzero_trainer.estimate.workload import workload_of
from tinyzero_trainer.hardware.gpu_specs import find_gpu_spec
from tinyzero_trainer.models import fused_logprobs as head
from tinyzero_trainer.models.spec import ModelSpec


def test_constants_are_those_of_the_code() -> None:
    assert constants.HEAD_ELEMENTS[2] == head.CHUNK_ELEMENTS[torch.bfloat16]
    assert constants.HEAD_ELEMENTS[4] == head.CHUNK_ELEMENTS[torch.float32]


def kept_for_backward(layers: int, tokens: int, *, compiled: bool) -> int:
    """Bytes that autograd keeps of a model's forward pass."""
    config = Qwen2Config(**COMMON | {"num_hidden_layers": layers}, num_key_value_heads=2)
    model = Qwen2ForCausalLM(config).to(torch.bfloat16)
    for layer in model.model.layers if compiled else ():
        layer.forward = torch.compile(layer.forward, dynamic=True, backend="aot_eager_decomp_partition")
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept: dict[int, int] = {}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        states = model.model(input_ids=torch.zeros(1, tokens, dtype=torch.long), use_cache=False).last_hidden_state
    assert states.requires_grad
    return sum(kept.values())


@pytest.mark.filterwarnings("ignore")  # the compiler has many for itself
@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_activations_of_a_layer_are_what_autograd_keeps(compiled: bool) -> None:
    tokens = 256
    measured = (kept_for_backward(5, tokens, compiled=compiled) - kept_for_backward(3, tokens, compiled=compiled)) / 2
    spec = ModelSpec("m", 0, hidden=64, layers=1, heads=4, kv_heads=2, head_size=16, mlp=96, vocabulary=100, tied=False)
    words = (
        f"model.compile={str(compiled).lower()}",
        f"optimizer.micro_batch_tokens={tokens}",
        "rollout.max_completion_tokens=64",
    )
    memory = predict_memory(spec, config_of(*words), prompt_tokens=64)
    phase = next(phase for phase in memory.phases if phase.name == "update_actor")
    [planned] = [part.size for part in phase.parts if part.what == "activations"]
    assert planned == pytest.approx(measured, rel=0.02)


LARGER = ["rollout.max_completion_tokens", "data.prompts_per_step", "rollout.max_num_seqs"]


def configured(values: dict[str, Any]) -> TrainConfig:
    if values["rollout.engine"] == "vllm":
        values = {**values, "vllm.gpu_memory_gb": 20.0, "vllm.sleep_mode": False}
    return with_settings(TrainConfig(), values)


@given(MODELS, SETTINGS, st.sampled_from(LARGER), st.integers(1, 3000))
@settings(max_examples=40, deadline=None)
def test_more_of_anything_takes_no_less_memory(name: str, values: dict[str, Any], key: str, more: int) -> None:
    if key == "rollout.max_num_seqs" and values[key] is None:
        values = {**values, key: 8}
    before = predict_memory(SPECS[name], configured(values)).peak
    assert predict_memory(SPECS[name], configured({**values, key: values[key] + more})).peak >= before


@given(SETTINGS)
@settings(max_examples=40, deadline=None)
def test_a_larger_model_takes_more_memory_and_time(values: dict[str, Any]) -> None:
    family = ["Qwen/Qwen2.5-0.5B", "Qwen/Qwen2.5-1.5B", "Qwen/Qwen2.5-3B", "Qwen/Qwen2.5-7B"]
    config, gpu = configured(values), find_gpu_spec("H200")
    assert gpu is not None
    sizes = [predict_memory(SPECS[name], config) for name in family]
    updates = [next(phase.total for phase in memory.phases if phase.name == "update_actor") for memory in sizes]
    assert updates == sorted(updates)
    # The deepest is not the largest, and where there is little to compute a step takes what launching each layer takes.
    times = [predict_speed(replace(SPECS[name], layers=28), config, gpu).step for name in family]
    assert times == sorted(times)


@given(MODELS, SETTINGS)
@settings(max_examples=40, deadline=None)
def test_no_saving_setting_takes_more_memory(name: str, values: dict[str, Any]) -> None:
    dear = {**values, "memory.activation_checkpointing": False, "memory.cpu_offload": None}
    peaks = [
        predict_memory(SPECS[name], configured({**dear, **cheaper})).peak
        for cheaper in (
            {},
            {"memory.cpu_offload": "idle"},
            {"memory.cpu_offload": "idle", "memory.activation_checkpointing": True},
            {"memory.cpu_offload": "always", "memory.activation_checkpointing": True},
        )
    ]
    assert peaks == sorted(peaks, reverse=True)


@given(MODELS, SETTINGS)
@settings(max_examples=40, deadline=None)
def test_the_parts_make_the_whole(name: str, values: dict[str, Any]) -> None:
    config = configured(values)
    memory = predict_memory(SPECS[name], config)
    for phase in memory.phases:
        assert all(part.size > 0 and part.what for part in phase.parts)
        assert phase.total == sum(phase.of(role) for role in ("policy", "critic", "reference", "rollout", "process"))
        assert not phase.of("critic") or config.algorithm.needs_critic
        assert not phase.of("reference") or config.algorithm.kl_coefficient
    gpu = find_gpu_spec("RTX 4090")
    assert gpu is not None
    speed = predict_speed(SPECS[name], config, gpu)
    assert speed.seconds.keys() - {"reward"} == {phase.name for phase in memory.phases}
    assert all(seconds > 0 for seconds in speed.seconds.values())


def test_a_step_has_no_more_than_its_tokens() -> None:
    work = workload_of(
        config_of("data.prompts_per_step=1", "rollout.group_size=2", "rollout.max_completion_tokens=8"), 8
    )
    assert (work.sequence, work.tokens, work.micro_batch, work.accumulates) == (16, 32, 32, False)
    assert workload_of(config_of("rollout.max_completion_tokens=20000"), 8).micro_batch == 20008
