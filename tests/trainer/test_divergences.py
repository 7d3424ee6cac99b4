"""Estimates of the KL: their values, their gradients, and above all their sign."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tinyzero_trainer.divergences import SAMPLED, adapted_coefficient, entropy, exact

logprob = st.floats(-30, 0)

# value, and derivative with respect to log π, of d = log π − log π_ref
DEFINITIONS = {
    "k1": (lambda d: d, lambda d: 1.0),
    "abs": (abs, lambda d: math.copysign(1.0, d)),
    "k2": (lambda d: d * d / 2, lambda d: d),
    "k3": (lambda d: math.exp(-d) - 1 + d, lambda d: 1 - math.exp(-d)),
}


def randoms(rows: int, columns: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.log_softmax(0.7 * torch.randn(rows, columns, generator=generator, dtype=torch.float64), dim=-1)


@pytest.mark.parametrize("name", SAMPLED)
@given(difference=st.floats(-2, 2).filter(lambda value: abs(value) > 1e-6))
def test_value_and_gradient_are_the_definitions(name: str, difference: float) -> None:
    logprobs = torch.tensor([-3.0 + difference], dtype=torch.float64, requires_grad=True)
    value = SAMPLED[name](logprobs, torch.tensor([-3.0], dtype=torch.float64))
    value.sum().backward()
    assert logprobs.grad is not None
    of_value, of_gradient = DEFINITIONS[name.rstrip("+")], DEFINITIONS["k2" if name.endswith("+") else name]
    assert value.item() == pytest.approx(of_value[0](difference), abs=1e-9)
    assert logprobs.grad.item() == pytest.approx(of_gradient[1](difference), abs=1e-9)


@pytest.mark.parametrize("name", ["exact", "abs", "k2", "k3", "k1+", "abs+", "k3+"])
def test_a_step_on_the_kl_loss_alone_lowers_the_kl(name: str) -> None:
    reference = randoms(64, 7, seed=0)
    logits = randoms(64, 7, seed=1).requires_grad_()
    distribution = torch.log_softmax(logits, dim=-1)
    if name == "exact":
        exact(distribution, reference).sum().backward()
    else:
        tokens = torch.multinomial(distribution.exp().detach(), 200, replacement=True)
        SAMPLED[name](distribution.gather(1, tokens), reference.gather(1, tokens)).mean(dim=1).sum().backward()
    assert logits.grad is not None
    after = torch.log_softmax(logits.detach() - 0.1 * logits.grad, dim=-1)
    assert exact(after, reference).sum() < exact(distribution.detach(), reference).sum()


@pytest.mark.parametrize(("name", "is_right"), [("k2", True), ("k1+", True), ("k3+", True), ("k1", False)])
def test_whose_expected_gradient_is_that_of_the_divergence(name: str, is_right: bool) -> None:
    """k1's is zero in expectation: in the loss it holds nothing back."""
    reference, logits = randoms(1, 6, seed=2), randoms(1, 6, seed=3).requires_grad_()
    exact(torch.log_softmax(logits, dim=-1), reference).sum().backward()
    assert logits.grad is not None
    right, logits.grad = logits.grad, None
    distribution = torch.log_softmax(logits, dim=-1)
    (distribution.exp().detach() * SAMPLED[name](distribution, reference)).sum().backward()
    assert torch.allclose(logits.grad, right if is_right else torch.zeros_like(right), atol=1e-12)


@pytest.mark.parametrize("name", ["k1", "k3"])
def test_an_unbiased_estimator_has_the_divergence_as_its_mean(name: str) -> None:
    policy, reference = randoms(1, 6, seed=4), randoms(1, 6, seed=5)
    expectation = (policy.exp() * SAMPLED[name](policy, reference)).sum()
    assert expectation.item() == pytest.approx(exact(policy, reference).item(), abs=1e-12)


@given(logprob, logprob)
def test_k3_is_never_negative_and_is_bounded(new: float, reference: float) -> None:
    value = SAMPLED["k3"](torch.tensor([new]), torch.tensor([reference])).item()
    assert -1e-6 <= value <= 10  # rounding


def test_exact_divergence_and_entropy_are_torchs() -> None:
    left, right = (torch.distributions.Categorical(logits=randoms(5, 9, seed=seed)) for seed in (6, 7))
    assert torch.allclose(exact(left.logits, right.logits), torch.distributions.kl_divergence(left, right))
    assert torch.allclose(entropy(left.logits), left.entropy())


def test_the_adaptive_coefficient_moves_towards_its_target_by_a_fifth_at_most() -> None:
    def adapt(measured: float) -> float:
        return adapted_coefficient(0.1, measured, target=0.05, horizon=1000, count=500)

    assert adapt(0.05) == pytest.approx(0.1)
    assert adapt(0.055) == pytest.approx(0.1 * (1 + 0.1 * 0.5))
    assert adapt(9.0) == pytest.approx(0.1 * 1.1)
    assert adapt(0.0) == pytest.approx(0.1 * 0.9)
