"""Log-probability and entropy from hidden states, against the same written out, in values and gradients."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tinyzero_trainer.head import _gradient, _statistics, token_logprobs


def written_out(states: Tensor, weight: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    logprobs = torch.log_softmax(states @ weight.T / temperature, dim=-1)
    return logprobs.gather(1, targets[:, None]).squeeze(1), -(logprobs.exp() * logprobs).sum(-1)


@settings(max_examples=40)
@given(
    tokens=st.integers(1, 12),
    vocabulary=st.integers(2, 9),
    temperature=st.sampled_from([0.3, 1.0, 2.0]),
    chunk=st.integers(1, 60),
    seed=st.integers(0, 999),
)
def test_values_and_gradients_are_those_written_out_whatever_the_chunk(tokens, vocabulary, temperature, chunk, seed):
    generator = torch.Generator().manual_seed(seed)
    states = torch.randn(tokens, 5, generator=generator).requires_grad_()
    weight = torch.randn(vocabulary, 5, generator=generator).requires_grad_()
    targets = torch.randint(0, vocabulary, (tokens,), generator=generator)
    upstream = torch.randn(2, tokens, generator=generator)
    found = token_logprobs(states, weight, targets, temperature=temperature, chunk_elements=chunk)
    expected = written_out(states.double(), weight.double(), targets, temperature)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs.float(), rtol=1e-5, atol=1e-5)
    inputs = (states, weight)
    gradients = torch.autograd.grad((torch.stack(found) * upstream).sum(), inputs)
    wanted = torch.autograd.grad((torch.stack(expected) * upstream).sum(), inputs)
    for ours, theirs in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_no_more_logits_than_a_chunk_are_held(monkeypatch):
    """Of 1,000 tokens × 500 entries 5,000 logits are there at a time, forwards and backwards."""
    largest = []
    product = torch.Tensor.__matmul__

    def counted(left: Tensor, right: Tensor) -> Tensor:
        largest.append(len(left) * right.shape[-1])
        return product(left, right)

    monkeypatch.setattr(torch.Tensor, "__matmul__", counted)
    states, weight = torch.randn(1000, 4, requires_grad=True), torch.randn(500, 4)
    found, _ = token_logprobs(states, weight, torch.zeros(1000, dtype=torch.long), temperature=1.0, chunk_elements=5000)
    found.sum().backward()
    assert max(largest) == 5000
    assert len(largest) == 2 * 100


def test_a_frozen_head_gets_no_gradient_and_large_logits_stay_finite():
    states = torch.tensor([[1e4, -1e4]], requires_grad=True)
    logprob, entropy = token_logprobs(states, torch.eye(2), torch.tensor([1]), temperature=1.0)
    (logprob + entropy).sum().backward()
    assert logprob.item() == pytest.approx(-2e4)
    assert entropy.item() == 0.0
    assert torch.isfinite(states.grad).all()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocabulary", [7, 4096, 10_001])
def test_the_kernels_compute_what_is_written_out(dtype, vocabulary):
    from tinyzero_trainer import head_kernels

    logits = (3 * torch.randn(33, vocabulary, device="cuda")).to(dtype)
    targets = torch.randint(0, vocabulary, (33,), device="cuda")
    of_logprob, of_entropy = torch.randn(2, 33, device="cuda")
    columns = head_kernels.measure(logits, targets, 0.7)
    torch.testing.assert_close(columns, _statistics(logits, targets, 0.7), rtol=1e-4, atol=1e-4)
    expected = _gradient(logits, targets, columns, of_logprob, of_entropy, 0.7)
    found = head_kernels.gradient(logits, targets, columns, of_logprob, of_entropy, 0.7)
    torch.testing.assert_close(found, expected, rtol=2e-2 if dtype == torch.bfloat16 else 1e-4, atol=1e-5)
