"""The forward pass of training: log-probabilities, entropy, divergence, and layouts of the batch."""

import copy
from dataclasses import replace

import pytest
import torch
import transformers

from tests.trainer.conftest import SHAPE
from tests.trainer.samples import build_policy, flat_gradient, mixed_lengths, ragged_samples, states_by_completion
from tinyzero_trainer.config import KlEstimator, OptimizerConfig
from tinyzero_trainer.models import fused_logprobs as head
from tinyzero_trainer.models.loading import LanguageModel, ModelError
from tinyzero_trainer.models.new_model import build_model
from tinyzero_trainer.training import logprobs as forward
from tinyzero_trainer.training.logprobs import PolicyModel, head_of
from tinyzero_trainer.training.micro_batches import micro_batches
from tinyzero_trainer.training.packing import keeps_packed_apart

CPU = torch.device("cpu")


def one_batch(toy: LanguageModel) -> forward.MicroBatch:
    samples = ragged_samples(toy)
    (batch,) = micro_batches(samples, token_budget=10**6, pad_id=toy.pad_id, device=CPU)
    return batch


@pytest.mark.parametrize("estimator", ["exact", "k3"])
def test_chunks_change_neither_values_nor_gradients(
    toy_model: LanguageModel, estimator: KlEstimator, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = PolicyModel(build_model(SHAPE, toy_model.tokenizer, seed=1))
    batch = one_batch(toy_model)
    results = []
    for elements in (2**26, 1252 * 7):
        monkeypatch.setattr(forward, "CHUNK_ELEMENTS", elements)
        toy_model.model.zero_grad()
        statistics = PolicyModel(toy_model.model.train())(
            batch, temperature=0.8, reference=reference, estimator=estimator
        )
        assert statistics.divergence is not None
        (statistics.logprobs.sum() + statistics.divergence.sum()).backward()
        gradient = flat_gradient(toy_model.model)
        results.append((statistics.logprobs, statistics.entropy, statistics.divergence, gradient))
    for whole, chunked in zip(*results, strict=True):
        torch.testing.assert_close(whole, chunked, atol=1e-5, rtol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("chunk", [2**26, 1252 * 7])
@pytest.mark.parametrize("entropy_gradient", [False, True])
def test_exact_divergence_and_gradient_on_a_gpu_are_those_on_a_cpu(
    entropy_gradient: bool, chunk: int, toy_model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(head.HEAD_ELEMENTS, 4, chunk)
    other, results = build_model(SHAPE, toy_model.tokenizer, seed=1), []
    for device in (CPU, torch.device("cuda")):
        model, reference = copy.deepcopy(toy_model.model).to(device), PolicyModel(copy.deepcopy(other).to(device))
        (batch,) = micro_batches(ragged_samples(toy_model), token_budget=10**6, pad_id=toy_model.pad_id, device=device)
        found = PolicyModel(model.eval())(
            batch,
            temperature=0.8,
            reference=reference,
            estimator="exact",
            entropy_gradient=entropy_gradient,
        )
        assert found.divergence is not None
        loss = found.logprobs.sum() + found.divergence.sum() - (0.5 * found.entropy.sum() if entropy_gradient else 0)
        loss.backward()
        gradient = flat_gradient(model)
        results.append([part.detach().cpu() for part in (found.logprobs, found.entropy, found.divergence, gradient)])
    for on_cpu, on_gpu in zip(*results, strict=True):
        torch.testing.assert_close(on_gpu, on_cpu, atol=1e-4, rtol=1e-4)


def test_the_reference_gets_no_gradient(toy_model: LanguageModel) -> None:
    reference = build_model(SHAPE, toy_model.tokenizer, seed=1)
    statistics = PolicyModel(toy_model.model)(
        one_batch(toy_model), temperature=1.0, reference=PolicyModel(reference), estimator="exact"
    )
    assert statistics.divergence is not None
    statistics.divergence.sum().backward()
    assert all(parameter.grad is None for parameter in reference.parameters())


SIZES = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2}
HEADS: dict[str, transformers.PretrainedConfig] = {
    "gemma2": transformers.Gemma2Config(
        **SIZES, num_hidden_layers=1, num_key_value_heads=2, head_dim=16, final_logit_softcapping=2.0
    ),
    "granite": transformers.GraniteConfig(**SIZES, num_hidden_layers=1, num_key_value_heads=2, logits_scaling=4.0),
    "cohere": transformers.CohereConfig(**SIZES, num_hidden_layers=1, num_key_value_heads=2, logit_scale=0.3),
}


@pytest.mark.parametrize("kind", HEADS)
def test_capped_and_scaled_heads_give_the_models_own_logits(kind: str) -> None:
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(HEADS[kind])
    tokens = torch.randint(0, 64, (2, 6))
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(50)
        states = model.eval().base_model(tokens).last_hidden_state
        torch.testing.assert_close(head_of(model)(states), model(tokens).logits)


LAYERS = {"num_hidden_layers": 2, "num_key_value_heads": 1}
MASKS: dict[str, transformers.PretrainedConfig] = {
    "llama": transformers.LlamaConfig(**SIZES, **LAYERS),
    "mistral": transformers.MistralConfig(**SIZES, **LAYERS, sliding_window=3),
    "gemma3": transformers.Gemma3TextConfig(
        **SIZES, **LAYERS, head_dim=16, sliding_window=3, layer_types=["sliding_attention", "full_attention"]
    ),
    "gpt2": transformers.GPT2Config(vocab_size=64, n_embd=32, n_layer=2, n_head=2, n_positions=64),
}
"""Architectures that mask attention in different ways."""


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", MASKS)
def test_packed_sequences_do_not_see_each_other(kind: str, attention: str) -> None:
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(MASKS[kind], attn_implementation=attention).eval()
    rollouts = mixed_lengths(64)
    packed = states_by_completion(model, rollouts, "packed")
    alone = torch.cat([states_by_completion(model, [rollout], "padded") for rollout in rollouts])
    torch.testing.assert_close(packed, alone, atol=1e-5, rtol=1e-5)
    assert keeps_packed_apart(PolicyModel(model))


def test_an_architecture_that_cannot_keep_them_apart_is_refused(toy_model: LanguageModel) -> None:
    config = transformers.MambaConfig(vocab_size=64, hidden_size=16, state_size=4, num_hidden_layers=1)
    model = transformers.MambaForCausalLM(config)
    assert not keeps_packed_apart(PolicyModel(model))
    with pytest.raises(ModelError, match=r"a recurrent model lets packed .* take padded"):
        build_policy(
            replace(toy_model, name="a recurrent model", model=model), optimizer=OptimizerConfig(packing="packed")
        )
