"""Log-probability and entropy from hidden states, against the same written out, in values and gradients."""

from collections.abc import Sequence
from weakref import ref

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from tinyzero_trainer.algorithms.kl import entropy, exact
from tinyzero_trainer.models.fused_logprobs import _gradient, _statistics, token_statistics


def written_out(states: Tensor, weight: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    logprobs = torch.log_softmax(states @ weight.T / temperature, dim=-1)
    return logprobs.gather(1, targets[:, None]).squeeze(1), -(logprobs.exp() * logprobs).sum(-1)


def assert_gradients_close(found: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    """To 1e-4 of the largest entry: an entry sums terms of that size, and each carries the rounding of its logit.

    At temperature 0.3 logits reach 60, where float32 resolves 4e-6; a divergence of tens multiplies that.
    """
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4 * max(1.0, theirs.abs().max().item()))


CASES = {
    "tokens": st.integers(1, 12),
    "vocabulary": st.integers(2, 9),
    "temperature": st.sampled_from([0.3, 1.0, 2.0]),
    "chunk": st.integers(1, 60),
    "seed": st.integers(0, 999),
}


def test_no_more_logits_than_a_chunk_are_held(monkeypatch):
    """Of 1,000 tokens × 500 entries 5,000 logits are there at a time, forwards and backwards."""
    largest = []
    product = torch.Tensor.__matmul__

    def counted(left: Tensor, right: Tensor) -> Tensor:
        largest.append(len(left) * right.shape[-1])
        return product(left, right)

    monkeypatch.setattr(torch.Tensor, "__matmul__", counted)
    states, weight = torch.randn(1000, 4, requires_grad=True), torch.randn(500, 4)
    found, _ = token_statistics(
        states, weight, torch.zeros(1000, dtype=torch.long), temperature=1.0, chunk_elements=5000
    )
    found.sum().backward()
    assert max(largest) == 5000
    assert len(largest) == 2 * 100


def test_logits_that_are_kept_are_computed_once_and_freed_by_the_backward_pass(monkeypatch):
    alive = []
    product = torch.Tensor.__matmul__

    def watched(left: Tensor, right: Tensor) -> Tensor:
        result = product(left, right)
        alive.append(ref(result))
        return result

    monkeypatch.setattr(torch.Tensor, "__matmul__", watched)
    states, weight, targets = torch.randn(100, 4, requires_grad=True), torch.randn(50, 4), torch.zeros(100).long()
    options = {"temperature": 1.0, "chunk_elements": 500, "recompute": False}
    found, _ = token_statistics(states, weight, targets, **options)
    assert sum(one() is not None for one in alive) == 10
    found.sum().backward()
    assert len(alive) == 10
    assert not any(one() is not None for one in alive)
    with torch.no_grad():
        token_statistics(states, weight, targets, **options)
    assert not any(one() is not None for one in alive)


@pytest.mark.slow
@settings(max_examples=80)
@given(**CASES, with_reference=st.booleans(), recompute=st.booleans())
@example(tokens=9, vocabulary=6, temperature=0.3, chunk=1, seed=138, with_reference=True, recompute=True)
def test_values_and_gradients_are_those_written_out_whatever_the_chunk(
    tokens, vocabulary, temperature, chunk, seed, with_reference, recompute
):
    generator = torch.Generator().manual_seed(seed)
    states, anchors = (torch.randn(tokens, width, generator=generator) for width in (5, 3))
    weight, anchor_weight = (torch.randn(vocabulary, width, generator=generator) for width in (5, 3))
    targets = torch.randint(0, vocabulary, (tokens,), generator=generator)
    inputs, options = (
        (states.requires_grad_(), weight.requires_grad_()),
        {"temperature": temperature, "recompute": recompute},
    )
    expected = written_out(states.double(), weight.double(), targets, temperature)
    if with_reference:
        found = token_statistics(*inputs, targets, (anchors, anchor_weight), chunk_elements=chunk, **options)
        policy, reference = (
            torch.log_softmax(left.double() @ right.double().T / temperature, dim=-1)
            for left, right in ((states, weight), (anchors, anchor_weight))
        )
        expected = (*expected, exact(policy, reference))
    else:
        found = token_statistics(*inputs, targets, chunk_elements=chunk, **options)
    torch.testing.assert_close(torch.stack(found), torch.stack(expected).float(), rtol=1e-5, atol=1e-5)
    upstream = torch.randn(len(found), tokens, generator=generator)
    ours, theirs = (torch.autograd.grad((torch.stack(one) * upstream).sum(), inputs) for one in (found, expected))
    assert_gradients_close(ours, theirs)


def test_the_divergence_to_equal_logits_is_exactly_zero_and_pulls_nowhere():
    states, weight = torch.randn(9, 4, requires_grad=True), torch.randn(50, 4)
    targets = torch.zeros(9, dtype=torch.long)
    *_, divergence = token_statistics(states, weight, targets, (states.detach(), weight), temperature=0.7)
    divergence.sum().backward()
    assert divergence.tolist() == [0.0] * 9
    assert not states.grad.any()


def test_a_frozen_head_gets_no_gradient_and_large_logits_stay_finite():
    states = torch.tensor([[1e4, -1e4]], requires_grad=True)
    logprob, entropy = token_statistics(states, torch.eye(2), torch.tensor([1]), temperature=1.0)
    (logprob + entropy).sum().backward()
    assert logprob.item() == pytest.approx(-2e4)
    assert entropy.item() == 0.0
    assert torch.isfinite(states.grad).all()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("anchored", [False, True])
@pytest.mark.parametrize("impossible", [0, 3 / 7])  # of 10,001 more than a block
@pytest.mark.parametrize("vocabulary", [7, 1252, 4096, 10_001])
def test_the_kernels_compute_what_is_written_out(vocabulary, impossible, anchored, dtype):
    from tinyzero_trainer.models import fused_logprobs_triton as head_kernels

    logits = (3 * torch.randn(33, vocabulary, device="cuda")).to(dtype)
    logits[:, : int(vocabulary * impossible)] = -torch.inf
    anchors = (logits + torch.randn_like(logits)).to(dtype) if anchored else None
    targets = torch.randint(0, vocabulary, (33,), device="cuda")
    upstream = torch.randn(3 if anchored else 2, 33, device="cuda")
    columns = head_kernels.measure(logits, anchors, targets, 0.7)
    torch.testing.assert_close(columns, _statistics(logits, anchors, targets, 0.7), rtol=1e-4, atol=1e-4)
    expected = _gradient(logits, anchors, targets, columns, upstream, 0.7)
    found = head_kernels.gradient(logits, anchors, targets, columns, upstream, 0.7)
    torch.testing.assert_close(found, expected, rtol=2e-2 if dtype == torch.bfloat16 else 1e-4, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("vocabulary", [1252, 10_001])
def test_the_kernels_find_no_divergence_where_there_is_none(vocabulary):
    from tinyzero_trainer.models import fused_logprobs_triton as head_kernels

    logits = (3 * torch.randn(33, vocabulary, device="cuda")).bfloat16()
    columns = head_kernels.measure(logits, logits.clone(), torch.zeros(33, dtype=torch.long, device="cuda"), 0.7)
    assert columns[3].tolist() == [0.0] * 33
    upstream = [torch.zeros(33, device="cuda"), torch.zeros(33, device="cuda"), torch.ones(33, device="cuda")]
    targets = torch.zeros(33, dtype=torch.long, device="cuda")
    assert not head_kernels.gradient(logits, logits.clone(), targets, columns, upstream, 0.7).any()


@settings(max_examples=10)
@given(seed=st.integers(0, 999), masked=st.integers(1, 5), temperature=st.sampled_from([0.3, 1.0]))
def test_logits_of_minus_infinity_add_nothing(seed: int, masked: int, temperature: float) -> None:
    """Values and gradients are those without these entries of the vocabulary, written out or fused."""
    generator = torch.Generator().manual_seed(seed)
    logits, anchors = (4 * torch.randn(3, 9, generator=generator) for _ in range(2))
    hidden = torch.randperm(9, generator=generator)[:masked]
    seen = torch.tensor([entry for entry in range(9) if entry not in hidden])
    targets, places = seen[:3], torch.arange(3)
    logits[:, hidden] = anchors[:, hidden] = -torch.inf
    upstream = [torch.randn(3, generator=generator) for _ in range(3)]
    for other, few_other in ((None, None), (anchors, anchors[:, seen])):
        found = _statistics(logits, other, targets, temperature)
        torch.testing.assert_close(found, _statistics(logits[:, seen], few_other, places, temperature))
        gradient = _gradient(logits.clone(), other, targets, found, upstream, temperature)
        few = _gradient(logits[:, seen], few_other, places, found, upstream, temperature)
        torch.testing.assert_close(gradient, torch.zeros(3, 9).index_copy(1, seen, few))

    free = logits.requires_grad_(True)
    own, of_reference = (torch.log_softmax(values / temperature, -1) for values in (free, anchors))
    results = torch.stack([entropy(own), exact(own, of_reference)])
    found = _statistics(logits.detach(), anchors, targets, temperature)[[1, 3]]
    torch.testing.assert_close(results.detach(), found, rtol=1e-5, atol=1e-4)
    results.sum().backward()
    assert free.grad is not None
    assert free.grad.isfinite().all()
