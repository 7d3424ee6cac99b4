import pytest
import torch

from tests.trainer.samples import ragged_samples
from tinyzero_trainer import forward
from tinyzero_trainer.batching import micro_batches
from tinyzero_trainer.forward import head_of, token_statistics
from tinyzero_trainer.models import LanguageModel
from tinyzero_trainer.tiny import TinyShape, build_model

CPU = torch.device("cpu")


def one_batch(toy: LanguageModel) -> forward.MicroBatch:
    samples = ragged_samples(toy)
    (batch,) = micro_batches(samples, token_budget=10**6, pad_id=toy.pad_id, device=CPU)
    return batch


def test_logprobs_equal_those_of_each_sequence_alone(toy_model: LanguageModel) -> None:
    samples, batch = ragged_samples(toy_model), one_batch(toy_model)
    statistics = token_statistics(toy_model.model.eval(), batch, temperature=1.0)
    alone = torch.tensor([value for row in batch.rows for value in samples[row].rollout.logprobs])
    torch.testing.assert_close(statistics.logprobs, alone, atol=1e-5, rtol=1e-5)
    assert statistics.divergence is None


def test_temperature_divides_the_logits(toy_model: LanguageModel) -> None:
    sample = ragged_samples(toy_model)[0]
    (batch,) = micro_batches([sample], token_budget=10**6, pad_id=toy_model.pad_id, device=CPU)
    prompt, ids = sample.prompt.token_ids, sample.rollout.token_ids
    with torch.no_grad():
        logits = toy_model.model.eval()(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1] / 2.0
        statistics = token_statistics(toy_model.model, batch, temperature=2.0)
    distribution = torch.distributions.Categorical(logits=logits)
    torch.testing.assert_close(statistics.logprobs, distribution.log_prob(torch.tensor(ids)), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(statistics.entropy, distribution.entropy(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("estimator", ["exact", "k3"])
def test_chunks_change_neither_values_nor_gradients(
    toy_model: LanguageModel, estimator: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = build_model(TinyShape(32, 2, 16, 48, 256), toy_model.tokenizer, seed=1).eval()
    batch = one_batch(toy_model)
    results = []
    for elements in (2**26, 1252 * 7):
        monkeypatch.setattr(forward, "CHUNK_ELEMENTS", elements)
        toy_model.model.zero_grad()
        statistics = token_statistics(
            toy_model.model.train(), batch, temperature=0.8, reference=reference, estimator=estimator
        )
        assert statistics.divergence is not None
        (statistics.logprobs.sum() + statistics.divergence.sum()).backward()
        gradient = torch.cat([parameter.grad.flatten() for parameter in toy_model.model.parameters()])
        results.append((statistics.logprobs, statistics.entropy, statistics.divergence, gradient))
    for whole, chunked in zip(*results, strict=True):
        torch.testing.assert_close(whole, chunked, atol=1e-5, rtol=1e-5)


def test_the_divergence_to_oneself_is_zero(toy_model: LanguageModel) -> None:
    batch = one_batch(toy_model)
    model = toy_model.model.eval()
    for estimator in ("exact", "k3"):
        statistics = token_statistics(model, batch, temperature=1.0, reference=model, estimator=estimator)
        assert statistics.divergence is not None
        assert statistics.divergence.abs().max() < 1e-6


def test_the_reference_gets_no_gradient(toy_model: LanguageModel) -> None:
    reference = build_model(TinyShape(32, 2, 16, 48, 256), toy_model.tokenizer, seed=1)
    statistics = token_statistics(
        toy_model.model, one_batch(toy_model), temperature=1.0, reference=reference, estimator="exact"
    )
    assert statistics.divergence is not None
    statistics.divergence.sum().backward()
    assert all(parameter.grad is None for parameter in reference.parameters())


@pytest.mark.parametrize("kind", ["gemma2", "granite", "cohere"])
def test_capped_and_scaled_heads_give_the_models_own_logits(kind: str) -> None:
    import transformers

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
