import copy
from dataclasses import replace

import pytest
import torch
import transformers

from tests.trainer.conftest import SHAPE
from tests.trainer.samples import ragged_samples
from tests.trainer.training.test_micro_batches import make_sample
from tinyzero_trainer.config import AlgorithmConfig, Estimator, OptimizerConfig
from tinyzero_trainer.models import fused_logprobs as head
from tinyzero_trainer.models.loading import LanguageModel, ModelError
from tinyzero_trainer.sft.tiny_model import build_model
from tinyzero_trainer.training import logprobs as forward
from tinyzero_trainer.training.logprobs import PolicyModel, head_of
from tinyzero_trainer.training.micro_batches import micro_batches
from tinyzero_trainer.training.packing_checks import keeps_packed_apart
from tinyzero_trainer.training.policy import Policy

CPU = torch.device("cpu")


def one_batch(toy: LanguageModel) -> forward.MicroBatch:
    samples = ragged_samples(toy)
    (batch,) = micro_batches(samples, token_budget=10**6, pad_id=toy.pad_id, device=CPU)
    return batch


def test_logprobs_equal_those_of_each_sequence_alone(toy_model: LanguageModel) -> None:
    samples, batch = ragged_samples(toy_model), one_batch(toy_model)
    statistics = PolicyModel(toy_model.model.eval())(batch, temperature=1.0)
    alone = torch.tensor([value for row in batch.indices for value in samples[row].generation.logprobs])
    torch.testing.assert_close(statistics.logprobs, alone, atol=1e-5, rtol=1e-5)
    assert statistics.divergence is None


def test_temperature_divides_the_logits(toy_model: LanguageModel) -> None:
    sample = ragged_samples(toy_model)[0]
    (batch,) = micro_batches([sample], token_budget=10**6, pad_id=toy_model.pad_id, device=CPU)
    prompt, ids = sample.prompt.token_ids, sample.generation.token_ids
    with torch.no_grad():
        logits = toy_model.model.eval()(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1] / 2.0
        statistics = PolicyModel(toy_model.model)(batch, temperature=2.0)
    distribution = torch.distributions.Categorical(logits=logits)
    torch.testing.assert_close(statistics.logprobs, distribution.log_prob(torch.tensor(ids)), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(statistics.entropy, distribution.entropy(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("estimator", ["exact", "k3"])
def test_chunks_change_neither_values_nor_gradients(
    toy_model: LanguageModel, estimator: Estimator, monkeypatch: pytest.MonkeyPatch
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
        gradient = torch.cat([parameter.grad.flatten() for parameter in toy_model.model.parameters()])
        results.append((statistics.logprobs, statistics.entropy, statistics.divergence, gradient))
    for whole, chunked in zip(*results, strict=True):
        torch.testing.assert_close(whole, chunked, atol=1e-5, rtol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("chunk", [2**26, 1252 * 7])
@pytest.mark.parametrize("entropy_gradient", [False, True])
def test_a_gpu_finds_the_exact_divergence_and_the_gradient_that_a_cpu_finds(
    entropy_gradient: bool, chunk: int, toy_model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(head.CHUNK_ELEMENTS, torch.float32, chunk)
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
        gradient = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
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


@pytest.mark.parametrize("kind", ["gemma2", "granite", "cohere"])
def test_capped_and_scaled_heads_give_the_models_own_logits(kind: str) -> None:
    torch.manual_seed(0)
    common = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1}
    common |= {"num_attention_heads": 2, "num_key_value_heads": 2}
    if kind == "gemma2":
        config = transformers.Gemma2Config(**common, head_dim=16, final_logit_softcapping=2.0)
        model = transformers.Gemma2ForCausalLM(config)
    elif kind == "granite":
        model = transformers.GraniteForCausalLM(transformers.GraniteConfig(**common, logits_scaling=4.0))
    else:
        model = transformers.CohereForCausalLM(transformers.CohereConfig(**common, logit_scale=0.3))
    tokens = torch.randint(0, 64, (2, 6))
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(50)
        states = model.eval().base_model(tokens).last_hidden_state
        torch.testing.assert_close(head_of(model)(states), model(tokens).logits)


def attending_model(kind: str, attention: str) -> transformers.PreTrainedModel:
    """A small model of an architecture that hides tokens from each other in its own way."""
    torch.manual_seed(0)
    common = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    common |= {"num_attention_heads": 2, "num_key_value_heads": 1, "attn_implementation": attention}
    if kind == "gpt2":
        config = transformers.GPT2Config(
            vocab_size=64, n_embd=32, n_layer=2, n_head=2, n_positions=64, attn_implementation=attention
        )
        return transformers.GPT2LMHeadModel(config).eval()
    if kind == "mistral":  # a sliding window in every layer
        return transformers.MistralForCausalLM(transformers.MistralConfig(**common, sliding_window=3)).eval()
    if kind == "gemma3":  # a sliding window in one of two layers
        config = transformers.Gemma3TextConfig(
            **common, head_dim=16, sliding_window=3, layer_types=["sliding_attention", "full_attention"]
        )
        return transformers.Gemma3ForCausalLM(config).eval()
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**common)).eval()


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", ["llama", "mistral", "gemma3", "gpt2"])
def test_packed_sequences_do_not_see_each_other(kind: str, attention: str) -> None:
    model, samples = attending_model(kind, attention), [make_sample(3, 6), make_sample(2, 5), make_sample(1, 1)]
    samples = [
        replace(
            sample,
            prompt=replace(sample.prompt, token_ids=[1 + index, 2, 3][: len(sample.prompt.token_ids)]),
            generation=replace(sample.generation, token_ids=[10 + index + token for token in range(length)]),
        )
        for index, (sample, length) in enumerate(zip(samples, (6, 5, 1), strict=True))
    ]
    (packed,) = micro_batches(samples, token_budget=10**6, pad_id=0, device=CPU, layout="packed")
    policy_model = PolicyModel(model)
    found = policy_model(packed, temperature=1.0).logprobs
    alone = [
        policy_model(batch, temperature=1.0).logprobs
        for sample in samples
        for batch in micro_batches([sample], token_budget=1, pad_id=0, device=CPU)
    ]
    torch.testing.assert_close(found, torch.cat(alone), atol=1e-5, rtol=1e-5)
    assert keeps_packed_apart(policy_model)


def test_an_architecture_that_cannot_keep_them_apart_is_refused(toy_model: LanguageModel) -> None:
    config = transformers.MambaConfig(vocab_size=64, hidden_size=16, state_size=4, num_hidden_layers=1)
    model = transformers.MambaForCausalLM(config)
    assert not keeps_packed_apart(PolicyModel(model))
    recurrent = replace(toy_model, name="a recurrent model", model=model)
    with pytest.raises(ModelError, match=r"a recurrent model lets packed .* take padded"):
        Policy(
            recurrent,
            algorithm=AlgorithmConfig(),
            optimizer=OptimizerConfig(packing="packed"),
            max_tokens=8,
            reference=None,
        )
