"""KL estimators: their values, their gradients, and above all their sign; and the adaptive coefficient."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tinyzero_trainer.algorithms.kl import SAMPLED, adapted_coefficient, entropy, exact

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


@pytest.mark.parametrize("name", SAMPLED)
@pytest.mark.parametrize("difference", [-700.0, 700.0])
def test_a_token_impossible_under_one_distribution_leaves_everything_finite(name: str, difference: float) -> None:
    logprobs = torch.tensor([min(difference, 0.0)], requires_grad=True)
    value = SAMPLED[name](logprobs, torch.tensor([min(-difference, 0.0)]))
    value.sum().backward()
    assert logprobs.grad is not None
    assert torch.isfinite(torch.cat([value.detach(), logprobs.grad])).all()
    if name.startswith("k3"):
        assert value.item() == 10.0


def test_exact_divergence_and_entropy_and_their_gradients_are_torchs() -> None:
    logits, reference = randoms(5, 9, seed=6), randoms(5, 9, seed=7)
    results = []
    for ours in (True, False):
        at = logits.clone().requires_grad_()
        if ours:
            policy = torch.log_softmax(at, dim=-1)
            values = exact(policy, reference), entropy(policy)
        else:
            policy, other = (torch.distributions.Categorical(logits=each) for each in (at, reference))
            values = torch.distributions.kl_divergence(policy, other), policy.entropy()
        results.append([*values, *(torch.autograd.grad(value.sum(), at, retain_graph=True)[0] for value in values)])
    torch.testing.assert_close(*results)


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
