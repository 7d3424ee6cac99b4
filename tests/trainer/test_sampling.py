import pytest
import torch

from tinyzero_trainer.rollout import SamplingParams
from tinyzero_trainer.rollout.sampling import sample_tokens

ANY = 16  # max_tokens does not matter here


def frequencies(logits: torch.Tensor, params: SamplingParams, draws: int = 40_000) -> torch.Tensor:
    uniform = torch.rand(draws, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    tokens, _ = sample_tokens(logits.expand(draws, -1), uniform, params)
    return torch.bincount(tokens, minlength=logits.shape[-1]) / draws


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_tokens_come_as_often_as_their_probability_says(temperature: float) -> None:
    logits = torch.tensor([[2.0, 0.0, -1.0, 1.0, -20.0]])
    expected = torch.softmax(logits[0] / temperature, dim=-1)
    assert torch.allclose(frequencies(logits, SamplingParams(ANY, temperature)), expected, atol=0.01)


def test_temperature_zero_takes_the_likeliest() -> None:
    logits = torch.randn(50, 9, generator=torch.Generator().manual_seed(0))
    tokens, logprobs = sample_tokens(logits, torch.rand(50, dtype=torch.float64), SamplingParams(ANY, 0.0))
    assert torch.equal(tokens, logits.argmax(dim=-1))
    assert torch.allclose(logprobs, torch.log_softmax(logits, dim=-1).amax(dim=-1))


def test_top_k_and_top_p_leave_out_the_rest_and_keep_the_proportions() -> None:
    probabilities = torch.tensor([0.5, 0.3, 0.15, 0.05])
    logits = probabilities.log()[None]
    assert torch.allclose(
        frequencies(logits, SamplingParams(ANY, top_k=2)), torch.tensor([0.625, 0.375, 0, 0]), atol=0.01
    )
    top_p = frequencies(logits, SamplingParams(ANY, top_p=0.9))
    assert torch.allclose(top_p, torch.tensor([0.5, 0.3, 0.15, 0]) / 0.95, atol=0.01)
    assert frequencies(logits, SamplingParams(ANY, top_p=0.01))[0] == 1  # the likeliest always stays


def test_logprobs_are_those_of_the_tempered_distribution_before_top_p() -> None:
    logits = torch.randn(20, 7, generator=torch.Generator().manual_seed(3))
    uniform = torch.rand(20, dtype=torch.float64)
    tokens, logprobs = sample_tokens(logits, uniform, SamplingParams(ANY, 0.7, top_p=0.5, top_k=3))
    expected = torch.log_softmax(logits / 0.7, dim=-1).gather(1, tokens[:, None])[:, 0]
    assert torch.allclose(logprobs, expected)


@pytest.mark.parametrize("uniform", [0.0, 1.0 - 2**-53])
def test_no_number_draws_an_impossible_token(uniform: float) -> None:
    logits = torch.tensor([[float("-inf"), 0.0, 0.0, float("-inf")]])
    tokens, _ = sample_tokens(logits, torch.tensor([uniform], dtype=torch.float64), SamplingParams(ANY))
    assert tokens.item() in (1, 2)
