"""Each policy loss and aggregation against its paper's equation and its derivative, in Python floats."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tinyzero_trainer.algorithms.kinds import POLICY_LOSSES
from tinyzero_trainer.algorithms.losses import LossInputs, find_policy_loss, token_weights, value_loss
from tinyzero_trainer.utils import jagged

LOW, HIGH = 0.2, 0.28
MODES = ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"]
real = st.floats(-1.5, 1.5)


def paper(
    name: str, logprobs: torch.Tensor, given: LossInputs, mode: str
) -> tuple[float, list[float], list[float], list[bool]]:
    """The mini-batch's loss; per token its derivative, the ratio and whether it is clipped.

    GSPO's derivative is that of its token-level objective, arXiv 2507.18071, eq. 13 and 14.
    """
    total, derivatives, ratios, clips, lengths = 0.0, [], [], [], given.lengths.tolist()
    columns = (logprobs.detach(), given.old_logprobs, given.advantages)
    for rows in zip(*(column.split(lengths) for column in columns), strict=True):
        news, olds, advantages = (row.tolist() for row in rows)
        mean = sum(new - old for new, old in zip(news, olds, strict=True)) / len(news)
        weight = {
            "token-mean": 1 / sum(lengths),
            "seq-mean-token-mean": 1 / len(lengths) / len(news),
            "seq-mean-token-sum": 1 / len(lengths),
            "seq-mean-token-sum-norm": 1 / len(lengths) / 16,
        }[mode]
        for new, old, advantage in zip(news, olds, advantages, strict=True):
            ratio = math.exp(mean if name == "gspo" else new - old)
            bounded = min(1 + HIGH, max(1 - LOW, ratio))
            if name in ("ppo", "gspo"):
                surrogate = min(ratio * advantage, bounded * advantage)
                clipped = ratio > 1 + HIGH if advantage > 0 else ratio < 1 - LOW
                if given.dual_clip_c is not None and advantage < 0:
                    surrogate = max(surrogate, given.dual_clip_c * advantage)
                    clipped = clipped or ratio > given.dual_clip_c
                factor = 0.0 if clipped else ratio
            else:
                factor = bounded if name == "cispo" else 1.0
                clipped = name == "cispo" and bounded != ratio
                surrogate = factor * advantage * new
            total -= weight * surrogate
            derivatives.append(-weight * factor * advantage)
            ratios.append(ratio)
            clips.append(clipped)
    return total, derivatives, ratios, clips


@pytest.mark.parametrize("dual_clip", [None, 1.5])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", POLICY_LOSSES)
def test_value_gradient_ratio_and_clipping_are_the_papers(name: str, mode: str, dual_clip: float | None) -> None:
    """On ratios that leave the clip range on both sides, with advantages of both signs."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(1, 7, (40,), generator=generator)  # of one token, too
    tokens = int(lengths.sum())
    old, new, advantages = (torch.randn(tokens, generator=generator, dtype=torch.float64) for _ in range(3))
    spread = 1.2 if name == "gspo" else 0.6  # its ratio is of a mean
    logprobs = (old + spread * new - 2).requires_grad_()
    given = LossInputs(old - 2, advantages, lengths, LOW, HIGH, dual_clip)
    result = find_policy_loss(name)(logprobs, given)
    weights = token_weights(lengths, mode, max_tokens=16).double()
    loss = (jagged.repeat_to_tokens(weights, lengths) * result.loss).sum()
    loss.backward()
    expected, derivatives, ratios, clips = paper(name, logprobs, given, mode)
    assert loss.item() == pytest.approx(expected, rel=1e-6)
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == pytest.approx(derivatives, rel=1e-6, abs=1e-9)
    assert result.ratio.tolist() == pytest.approx(ratios, rel=1e-9)
    assert result.clipped.tolist() == clips
    assert name == "reinforce" or 0.1 < sum(clips) / tokens < 0.9


@pytest.mark.parametrize("name", POLICY_LOSSES)
@pytest.mark.parametrize("gap", [-800.0, 800.0])
def test_a_policy_far_from_the_old_one_leaves_loss_and_gradient_finite(name: str, gap: float) -> None:
    """float32 cannot hold e^89; the log-ratio stays within ±20, and beyond it the surrogate has no gradient."""
    logprobs = torch.tensor([-1.0, -1.0], requires_grad=True)
    given = LossInputs(logprobs.detach() - gap, torch.tensor([1.0, -1.0]), torch.tensor([1, 1]), LOW, HIGH)
    result = find_policy_loss(name)(logprobs, given)
    result.loss.sum().backward()
    assert result.ratio.tolist() == pytest.approx([math.exp(math.copysign(20.0, gap))] * 2, rel=1e-5)
    assert logprobs.grad is not None
    assert torch.isfinite(torch.cat([result.loss.detach(), logprobs.grad])).all()
    if name in ("ppo", "gspo"):
        assert logprobs.grad.tolist() == [0.0, 0.0]


@given(st.lists(st.tuples(real, real, real), min_size=1, max_size=6))
def test_value_loss_and_its_gradient_are_the_papers_maximum(triples: list[tuple[float, float, float]]) -> None:
    values, old, returns = (torch.tensor(column, dtype=torch.float64) for column in zip(*triples, strict=True))
    loss, clipped = value_loss(values.requires_grad_(), old, returns, clip=0.5)
    loss.sum().backward()
    assert values.grad is not None
    for index, (value, before, target) in enumerate(triples):
        bounded = min(before + 0.5, max(before - 0.5, value))
        free, held = (value - target) ** 2, (bounded - target) ** 2
        assert loss[index].item() == pytest.approx(max(free, held) / 2, abs=1e-12)
        if abs(held - free) > 1e-9:
            assert clipped[index].item() == (held > free)
        if abs(held - free) > 1e-9 or abs(value - before) < 0.49:
            assert values.grad[index].item() == pytest.approx(0.0 if held > free else value - target, abs=1e-12)
