"""Estimates of the KL: their values, their gradients, and above all their sign."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tinyzero_trainer.algorithms.kl import SAMPLED, adapted_coefficient, entropy, exact

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


def expected_gradient(name: str) -> tuple[list[float], list[list[float]]]:
    """Of an estimator as a loss, E_π[∇ estimate] with respect to the logits; and the two distributions."""
    reference, logits = randoms(1, 6, seed=2), randoms(1, 6, seed=3).requires_grad_()
    distribution = torch.log_softmax(logits, dim=-1)
    (distribution.exp().detach() * SAMPLED[name](distribution, reference)).sum().backward()
    assert logits.grad is not None
    return logits.grad[0].tolist(), [distribution[0].exp().tolist(), reference[0].exp().tolist()]


def through_softmax(policy: list[float], by_probability: list[float]) -> list[float]:
    """From a gradient with respect to probabilities to that with respect to logits: ∂π_i/∂z_j = π_i·(1_ij − π_j)."""
    mean = sum(p * g for p, g in zip(policy, by_probability, strict=True))
    return [p * (g - mean) for p, g in zip(policy, by_probability, strict=True)]


# What each estimator's gradient is that of, in expectation over tokens sampled from π: its derivative by π(v).
DESCENDED = {
    "k1": lambda p, q: 0.0,  # nothing: as a loss it holds nothing back
    "abs": lambda p, q: math.copysign(1.0, p - q),  # Σ |π − π_ref|, twice the total variation
    "k2": lambda p, q: math.log(p / q) + 1,  # KL(π ‖ π_ref)
    "k3": lambda p, q: -q / p,  # the reverse, KL(π_ref ‖ π)
    "k1+": lambda p, q: math.log(p / q) + 1,
    "abs+": lambda p, q: math.log(p / q) + 1,
    "k3+": lambda p, q: math.log(p / q) + 1,
}


@pytest.mark.parametrize("name", SAMPLED)
def test_what_an_estimator_descends_in_expectation(name: str) -> None:
    gradient, (policy, reference) = expected_gradient(name)
    by_probability = [DESCENDED[name](p, q) for p, q in zip(policy, reference, strict=True)]
    assert gradient == pytest.approx(through_softmax(policy, by_probability), abs=1e-12)


def test_the_exact_divergences_gradient_is_the_definitions() -> None:
    reference, logits = randoms(5, 6, seed=2), randoms(5, 6, seed=3).requires_grad_()
    distribution = torch.log_softmax(logits, dim=-1)
    exact(distribution, reference).sum().backward()
    assert logits.grad is not None
    for p, q, gradient in zip(distribution.exp().tolist(), reference.exp().tolist(), logits.grad.tolist(), strict=True):
        by_probability = [math.log(a / b) + 1 for a, b in zip(p, q, strict=True)]
        assert gradient == pytest.approx(through_softmax(p, by_probability), abs=1e-12)


def test_the_entropys_gradient_is_the_definitions() -> None:
    logits = randoms(5, 6, seed=3).requires_grad_()
    distribution = torch.log_softmax(logits, dim=-1)
    entropy(distribution).sum().backward()
    assert logits.grad is not None
    for p, gradient in zip(distribution.exp().tolist(), logits.grad.tolist(), strict=True):
        assert gradient == pytest.approx(through_softmax(p, [-math.log(a) - 1 for a in p]), abs=1e-12)
    more = torch.log_softmax(logits.detach() + 0.1 * logits.grad, dim=-1)
    assert entropy(more).sum() > entropy(distribution.detach()).sum()


@pytest.mark.parametrize("name", SAMPLED)
@pytest.mark.parametrize("difference", [-700.0, 700.0])
def test_a_token_that_one_of_the_two_thinks_impossible_leaves_all_finite(name: str, difference: float) -> None:
    logprobs = torch.tensor([min(difference, 0.0)], requires_grad=True)
    value = SAMPLED[name](logprobs, torch.tensor([min(-difference, 0.0)]))
    value.sum().backward()
    assert logprobs.grad is not None
    assert torch.isfinite(torch.cat([value.detach(), logprobs.grad])).all()
    if name.startswith("k3"):
        assert value.item() == 10.0


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


@given(st.floats(0, 10), st.integers(1, 10**7), st.integers(1, 10**5))
def test_the_adaptive_coefficient_stays_positive_whatever_the_batch(measured: float, count: int, horizon: int) -> None:
    after = adapted_coefficient(0.1, measured, target=0.05, horizon=horizon, count=count)
    assert 0.1 * 0.8 - 1e-12 <= after <= 0.1 * 1.2 + 1e-12
    assert (after > 0.1) == (measured > 0.05) or after == 0.1


@given(
    st.lists(st.tuples(st.floats(0, 3), st.integers(1, 4096)), max_size=20),
    st.floats(0.01, 1),
    st.integers(4096, 20_000),
)
def test_the_adaptive_coefficient_follows_the_papers_controller(batches, target: float, horizon: int) -> None:
    """arXiv 1909.08593, §2.2: e = clip(KL/target − 1, −0.2, 0.2), β ← β·(1 + e·n/horizon)."""
    ours = papers = 0.1
    for measured, count in batches:
        ours = adapted_coefficient(ours, measured, target=target, horizon=horizon, count=count)
        error = (measured - target) / target
        papers += papers * (0.2 if error > 0.2 else -0.2 if error < -0.2 else error) / horizon * count
        assert ours == pytest.approx(papers, rel=1e-9)
        assert ours > 0
