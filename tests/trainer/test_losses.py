import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tinyzero_trainer.losses import clipped_policy_loss, entropy_of, exact_divergence, k3_divergence

logprob = st.floats(-30, 0)


@given(logprob, logprob, st.floats(-3, 3))
def test_clipped_loss_is_the_papers_minimum(new: float, old: float, advantage: float) -> None:
    low, high = 0.2, 0.28
    ratio = math.exp(min(20, max(-20, new - old)))
    expected = -min(ratio * advantage, min(1 + high, max(1 - low, ratio)) * advantage)
    args = [torch.tensor([value], dtype=torch.float64) for value in (new, old, advantage)]
    result = clipped_policy_loss(*args, clip_low=low, clip_high=high)
    assert result.loss.item() == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_clip_takes_the_gradient_away_only_where_the_policy_has_gone_far_enough() -> None:
    # (log-ratio, advantage) → whether the token still pulls
    cases = [(0.5, 1.0, False), (-0.5, 1.0, True), (0.5, -1.0, True), (-0.5, -1.0, False), (0.0, 1.0, True)]
    logprobs = torch.tensor([case[0] for case in cases], requires_grad=True)
    advantages = torch.tensor([case[1] for case in cases])
    result = clipped_policy_loss(logprobs, torch.zeros(len(cases)), advantages, clip_low=0.2, clip_high=0.2)
    result.loss.sum().backward()
    assert logprobs.grad is not None
    assert (logprobs.grad != 0).tolist() == [case[2] for case in cases]
    assert result.clipped.tolist() == [not case[2] for case in cases]


def test_a_step_down_the_loss_makes_good_tokens_likelier() -> None:
    logits = torch.zeros(1, 5, requires_grad=True)
    logprobs = torch.log_softmax(logits, dim=-1)[:, 2]
    clipped_policy_loss(
        logprobs, logprobs.detach(), torch.tensor([1.0]), clip_low=0.2, clip_high=0.2
    ).loss.sum().backward()
    assert logits.grad is not None
    assert torch.log_softmax(logits - logits.grad, dim=-1)[0, 2] > logprobs.item()


@pytest.mark.parametrize("estimator", ["exact", "k3"])
def test_a_step_on_the_kl_loss_alone_lowers_the_kl(estimator: str) -> None:
    generator = torch.Generator().manual_seed(0)
    reference = torch.log_softmax(torch.randn(64, 7, generator=generator), dim=-1)
    logits = torch.randn(64, 7, generator=generator, requires_grad=True)

    def exact(values: torch.Tensor) -> float:
        return exact_divergence(torch.log_softmax(values, dim=-1), reference).sum().item()

    distribution = torch.log_softmax(logits, dim=-1)
    if estimator == "exact":
        exact_divergence(distribution, reference).sum().backward()
    else:
        tokens = torch.multinomial(distribution.exp().detach(), 1, generator=generator)
        k3_divergence(distribution.gather(1, tokens)[:, 0], reference.gather(1, tokens)[:, 0]).sum().backward()
    assert logits.grad is not None
    assert exact(logits.detach() - 0.1 * logits.grad) < exact(logits.detach())


@given(logprob, logprob)
def test_k3_is_never_negative_and_is_bounded(new: float, reference: float) -> None:
    value = k3_divergence(torch.tensor([new]), torch.tensor([reference])).item()
    assert -1e-6 <= value <= 10  # rounding


def test_k3_estimates_the_divergence_without_bias() -> None:
    generator = torch.Generator().manual_seed(1)
    policy = torch.log_softmax(torch.randn(1, 6, generator=generator, dtype=torch.float64), dim=-1)
    reference = torch.log_softmax(torch.randn(1, 6, generator=generator, dtype=torch.float64), dim=-1)
    expectation = (policy.exp() * k3_divergence(policy, reference)).sum()
    assert expectation.item() == pytest.approx(exact_divergence(policy, reference).item(), abs=1e-12)


def test_exact_divergence_and_entropy_are_torchs() -> None:
    generator = torch.Generator().manual_seed(2)
    left, right = (torch.distributions.Categorical(logits=torch.randn(5, 9, generator=generator)) for _ in range(2))
    expected = torch.distributions.kl_divergence(left, right)
    assert torch.allclose(exact_divergence(left.logits, right.logits), expected, atol=1e-6)
    assert torch.allclose(entropy_of(left.logits), left.entropy(), atol=1e-6)
