"""Packed sequences through the variable-length kernel: its inputs, and the same results as padded ones."""

import copy
from dataclasses import replace

import pytest
import torch
from transformers import GptOssConfig, GptOssForCausalLM, Qwen2Config, Qwen2ForCausalLM

from tests.trainer.conftest import random_model
from tests.trainer.samples import flat_gradient, mixed_lengths, states_by_completion
from tinyzero_trainer.training import varlen_attention as attention
from tinyzero_trainer.training.logprobs import PolicyModel, completion_states
from tinyzero_trainer.training.micro_batches import micro_batches
from tinyzero_trainer.training.packing import choose_layout, keeps_packed_apart


def fake_kernel(query, key, value, starts, starts_k, most, most_k, *, scale, window_size, enable_gqa=True):
    """Takes what the real one takes, and computes it in plain PyTorch."""
    assert starts.dtype == starts_k.dtype == torch.int32
    assert most == most_k >= int(starts_k.diff().max())
    assert (starts.diff() <= starts_k.diff()).all()
    assert window_size[1] == 0
    return attention.one_after_another(query, key, value, starts, starts_k, scale=scale, window=window_size[0])


@pytest.fixture
def with_kernel(monkeypatch):
    """A model that attends through the fake kernel, as if on a GPU."""
    monkeypatch.setattr(attention, "varlen_attn", fake_kernel)
    monkeypatch.setattr(attention, "_has_kernel", lambda device, dtype: True)

    def prepare(model):
        attention.AttentionInterface.register(attention.KERNEL, attention._attend)
        attention.AttentionMaskInterface.register(attention.KERNEL, attention.sdpa_mask)
        model.set_attn_implementation(attention.KERNEL)
        return model

    return prepare


@pytest.mark.parametrize("kind", ["qwen2", "qwen3", "llama", "sliding"])
@pytest.mark.parametrize("kernel", [True, False], ids=["kernel", "plain"])
def test_packed_equals_padded_through_the_kernel_and_without_one(kind, kernel, with_kernel):
    model, rollouts = random_model(kind), mixed_lengths()
    padded = states_by_completion(model, rollouts, "padded")
    if kernel:
        model = with_kernel(model)
    else:
        assert attention.use_kernel(model, torch.float32, torch.device("cpu"), or_plain=True)
    assert keeps_packed_apart(PolicyModel(model))
    for layout in ("packed", "padded"):  # padded rows do not go through the kernel
        torch.testing.assert_close(states_by_completion(model, rollouts, layout), padded, rtol=1e-4, atol=1e-5)


def grouped() -> list:
    """The same rollouts, of which some have a prompt in common."""
    rollouts = mixed_lengths()
    prompts = [rollouts[place].prompt for place in (0, 0, 2, 0, 2, 1)]
    return [replace(rollout, prompt=prompt) for rollout, prompt in zip(rollouts, prompts, strict=True)]


def gradient(model, *, share_prompts: bool):
    """Of a sum that tells the completions apart."""
    options = {"token_budget": 60, "pad_id": 0, "device": model.device, "layout": "packed"}
    for batch in micro_batches(grouped(), **options, share_prompts=share_prompts):
        weights = torch.tensor(batch.indices, device=model.device).add(1).repeat_interleave(batch.lengths)
        states = completion_states(model, batch).float()
        # Not their squares, whose sum a norm keeps constant.
        direction = torch.linspace(-1, 1, states.shape[1], device=model.device)
        (states @ direction * weights).sum().backward()
    found = flat_gradient(model).clone()
    model.zero_grad()
    return found


@pytest.mark.parametrize("kind", ["qwen2", "qwen3", "llama", "sliding"])
def test_a_shared_prompt_is_as_one_of_its_own(kind, with_kernel):
    model, rollouts = with_kernel(random_model(kind)), grouped()
    assert keeps_packed_apart(PolicyModel(model))
    own, shared = (states_by_completion(model, rollouts, "packed", share_prompts=share) for share in (False, True))
    torch.testing.assert_close(shared, own, rtol=1e-4, atol=1e-5)
    own, shared = (gradient(model, share_prompts=share) for share in (False, True))
    torch.testing.assert_close(shared, own, rtol=1e-3, atol=1e-4)


def test_prompts_are_not_shared_where_tokens_affect_each_other_besides(with_kernel):
    model = with_kernel(random_model("qwen2"))
    assert keeps_packed_apart(PolicyModel(model))
    layer = model.model.layers[0]
    layer.mlp.register_forward_hook(lambda module, args, output: output + output.roll(1, dims=1))
    assert not keeps_packed_apart(PolicyModel(model))


def test_there_is_no_kernel_off_a_gpu(any_model):
    assert not attention.use_kernel(any_model, torch.bfloat16, torch.device("cpu"))
    assert not attention.has_kernel(any_model)


@pytest.mark.parametrize(("config", "kernel"), [("qwen2", True), ("sinks", False), ("chunks", False)])
def test_what_the_kernel_does_not_compute_is_left_alone(config, kernel, monkeypatch):
    monkeypatch.setattr(attention, "varlen_attn", fake_kernel)
    sizes = {"vocab_size": 97, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    if config == "sinks":
        experts = {"num_local_experts": 2, "num_experts_per_tok": 1, "head_dim": 8}
        model = GptOssForCausalLM(GptOssConfig(**sizes, **heads, **experts))
    else:
        model = Qwen2ForCausalLM(Qwen2Config(**sizes, **heads))
        model.config.layer_types = ["chunked_attention" if config == "chunks" else "full_attention"] * 2
    implementation = model.config._attn_implementation
    other = copy.deepcopy(model)
    assert attention.use_kernel(model, torch.bfloat16, torch.device("cuda")) == kernel
    assert attention.use_kernel(other, torch.float32, torch.device("cpu"), or_plain=True) == kernel
    assert model.config._attn_implementation == (attention.KERNEL if kernel else implementation)


def test_without_a_kernel_a_gpu_pads(any_model, monkeypatch):
    monkeypatch.setattr("tinyzero_trainer.training.packing.device_of", lambda model: torch.device("cuda"))
    assert choose_layout(PolicyModel(any_model), "auto", name="any") == "padded"


@pytest.mark.gpu
def test_the_real_kernel_agrees_in_half_precision(any_model):
    model, rollouts = any_model.to("cuda", torch.bfloat16), mixed_lengths()
    padded = states_by_completion(model, rollouts, "padded")
    assert attention.use_kernel(model, torch.bfloat16, model.device)
    torch.testing.assert_close(states_by_completion(model, rollouts, "packed"), padded, rtol=0.05, atol=0.05)
    assert keeps_packed_apart(PolicyModel(model))
    own, shared = (gradient(model, share_prompts=share).float() for share in (False, True))
    assert (shared - own).norm() < 0.02 * own.norm()
