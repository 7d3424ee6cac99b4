"""Each policy loss and aggregation against its paper's equation, in Python floats and by finite differences."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tinyzero_trainer.algorithms.losses import POLICY_LOSSES, LossInputs, token_weights, value_loss
from tinyzero_trainer.utils import jagged
from tinyzero_trainer.utils.import_object import BUILT_IN

LOW, HIGH = 0.2, 0.28
MODES = ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"]
real = st.floats(-1.5, 1.5)


@st.composite
def batches(draw: st.DrawFn) -> tuple[torch.Tensor, LossInputs]:
    lengths = draw(st.lists(st.integers(1, 5), min_size=1, max_size=4))
    tokens = sum(lengths)

    def some() -> torch.Tensor:
        return torch.tensor(draw(st.lists(real, min_size=tokens, max_size=tokens)), dtype=torch.float64)

    dual_clip = draw(st.sampled_from([None, 3.0]))
    given = LossInputs(some() - 2, some(), torch.tensor(lengths), LOW, HIGH, dual_clip)
    return some() - 2, given


def rows(values: torch.Tensor, lengths: torch.Tensor) -> list[list[float]]:
    return [part.tolist() for part in values.split(lengths.tolist())]


def clip(ratio: float) -> float:
    return min(1 + HIGH, max(1 - LOW, ratio))


def surrogate(ratio: float, advantage: float, dual_clip: float | None) -> float:
    """What PPO maximises."""
    value = min(ratio * advantage, clip(ratio) * advantage)
    return max(value, dual_clip * advantage) if dual_clip is not None and advantage < 0 else value


def reference(name: str, logprobs: torch.Tensor, given: LossInputs, mode: str, at: torch.Tensor) -> float:
    """The mini-batch's loss; what a loss holds constant is computed from `at` instead of `logprobs`."""
    by_completion = []
    columns = (logprobs, given.old_logprobs, given.advantages, at)
    for new, old, advantages, fixed in zip(*(rows(column, given.lengths) for column in columns), strict=True):
        ratios = [math.exp(n - o) for n, o in zip(new, old, strict=True)]
        if name == "gspo":
            ratios = [math.exp(sum(n - o for n, o in zip(new, old, strict=True)) / len(new))] * len(new)
        if name in ("ppo", "gspo"):
            losses = [-surrogate(r, a, given.dual_clip_c) for r, a in zip(ratios, advantages, strict=True)]
        else:
            constant = [clip(math.exp(f - o)) if name == "cispo" else 1.0 for f, o in zip(fixed, old, strict=True)]
            losses = [-c * a * n for c, a, n in zip(constant, advantages, new, strict=True)]
        by_completion.append(losses)
    return aggregate(by_completion, mode)


def aggregate(by_completion: list[list[float]], mode: str) -> float:
    count, total = len(by_completion), sum(map(sum, by_completion))
    return {
        "token-mean": total / sum(map(len, by_completion)),
        "seq-mean-token-mean": sum(sum(losses) / len(losses) for losses in by_completion) / count,
        "seq-mean-token-sum": total / count,
        "seq-mean-token-sum-norm": total / count / 16,
    }[mode]


def ours(name: str, logprobs: torch.Tensor, given: LossInputs, mode: str) -> torch.Tensor:
    weights = token_weights(given.lengths, mode, max_tokens=16).double()
    return (jagged.repeat_to_tokens(weights, given.lengths) * POLICY_LOSSES[name](logprobs, given).loss).sum()


def slope(function: Callable[[torch.Tensor], float], at: torch.Tensor) -> list[float]:
    """Central differences."""
    steps = 1e-6 * torch.eye(len(at), dtype=at.dtype)
    return [(function(at + step) - function(at - step)) / 2e-6 for step in steps]


def test_the_configuration_knows_every_loss_that_is_registered() -> None:
    assert set(BUILT_IN) == set(POLICY_LOSSES)


@pytest.mark.parametrize("name", POLICY_LOSSES)
@given(mode=st.sampled_from(MODES), batch=batches())
def test_value_is_the_papers_equation(name: str, mode: str, batch: tuple[torch.Tensor, LossInputs]) -> None:
    logprobs, given = batch
    value = ours(name, logprobs, given, mode)
    assert value.item() == pytest.approx(reference(name, logprobs, given, mode, logprobs), rel=1e-6, abs=1e-6)


def random_batch(
    name: str, dual_clip: float | None, *, one_advantage: bool, count: int = 40
) -> tuple[torch.Tensor, LossInputs]:
    """Completions whose ratios leave the clip range on both sides, with advantages of both signs."""
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(1, 7, (count,), generator=generator)
    tokens = int(lengths.sum())
    old, new, advantages = (torch.randn(tokens, generator=generator, dtype=torch.float64) for _ in range(3))
    if one_advantage:
        advantages = jagged.repeat_to_tokens(advantages[: len(lengths)], lengths)
    spread = 1.2 if name == "gspo" else 0.6  # its ratio is of a mean
    return (old + spread * new - 2).requires_grad_(), LossInputs(old - 2, advantages, lengths, LOW, HIGH, dual_clip)


@pytest.mark.slow
@pytest.mark.parametrize("dual_clip", [None, 1.5])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", POLICY_LOSSES)
def test_gradient_is_that_of_the_papers_equation(name: str, mode: str, dual_clip: float | None) -> None:
    if name == "gspo" and mode != "seq-mean-token-mean":
        return  # the paper's loss has this aggregation alone; its tokens' shares in others are tested below
    logprobs, given = random_batch(name, dual_clip, one_advantage=True, count=20)
    ours(name, logprobs, given, mode).backward()
    fixed = logprobs.detach()
    expected = slope(lambda at: reference(name, at, given, mode, fixed), fixed)
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("dual_clip", [None, 1.5])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", POLICY_LOSSES)
def test_a_tokens_gradient_is_its_weight_times_ratio_times_advantage_or_nothing(
    name: str, mode: str, dual_clip: float | None
) -> None:
    """Each token with an advantage of its own: for GSPO the token-level objective, arXiv 2507.18071, eq. 13 and 14."""
    logprobs, given = random_batch(name, dual_clip, one_advantage=False)
    result = POLICY_LOSSES[name](logprobs, given)
    ours(name, logprobs, given, mode).backward()
    assert logprobs.grad is not None
    lengths, total = given.lengths.tolist(), int(given.lengths.sum())
    columns = (logprobs.detach(), given.old_logprobs, given.advantages)
    expected, ratios, clips = [], [], []
    for news, olds, advantages in zip(*(rows(column, given.lengths) for column in columns), strict=True):
        count = len(news)
        mean = sum(new - old for new, old in zip(news, olds, strict=True)) / count
        weight = {
            "token-mean": 1 / total,
            "seq-mean-token-mean": 1 / len(lengths) / count,
            "seq-mean-token-sum": 1 / len(lengths),
            "seq-mean-token-sum-norm": 1 / len(lengths) / 16,
        }[mode]
        for new, old, advantage in zip(news, olds, advantages, strict=True):
            ratio = math.exp(mean if name == "gspo" else new - old)
            too_far = ratio > 1 + HIGH if advantage > 0 else ratio < 1 - LOW
            too_bad = dual_clip is not None and advantage < 0 and ratio > dual_clip
            clipped = {"cispo": clip(ratio) != ratio, "reinforce": False}.get(name, too_far or too_bad)
            pull = {"cispo": clip(ratio), "reinforce": 1.0}.get(name, 0.0 if clipped else ratio)
            expected.append(-weight * pull * advantage)
            ratios.append(ratio)
            clips.append(clipped)
    assert logprobs.grad.tolist() == pytest.approx(expected, rel=1e-6, abs=1e-9)
    assert result.ratio.tolist() == pytest.approx(ratios, rel=1e-9)
    assert result.clipped.tolist() == clips
    assert name == "reinforce" or 0.1 < sum(clips) / total < 0.9


@pytest.mark.parametrize("name", POLICY_LOSSES)
@pytest.mark.parametrize("gap", [-800.0, 800.0])
def test_a_policy_gone_far_from_what_it_was_leaves_loss_and_gradient_finite(name: str, gap: float) -> None:
    """float32 cannot hold e^89; the log-ratio stays within ±20, and beyond it the surrogate has no gradient."""
    logprobs = torch.tensor([-1.0, -1.0], requires_grad=True)
    given = LossInputs(logprobs.detach() - gap, torch.tensor([1.0, -1.0]), torch.tensor([1, 1]), LOW, HIGH)
    result = POLICY_LOSSES[name](logprobs, given)
    result.loss.sum().backward()
    assert result.ratio.tolist() == pytest.approx([math.exp(math.copysign(20.0, gap))] * 2, rel=1e-5)
    assert logprobs.grad is not None
    assert torch.isfinite(torch.cat([result.loss.detach(), logprobs.grad])).all()
    if name in ("ppo", "gspo"):
        assert logprobs.grad.tolist() == [0.0, 0.0]


@given(st.lists(st.tuples(real, real, real), min_size=1, max_size=6))
def test_value_loss_is_the_papers_maximum(triples: list[tuple[float, float, float]]) -> None:
    values, old, returns = (torch.tensor(column, dtype=torch.float64) for column in zip(*triples, strict=True))
    loss, clipped = value_loss(values, old, returns, clip=0.5)
    for index, (value, before, target) in enumerate(triples):
        bounded = min(before + 0.5, max(before - 0.5, value))
        free, held = (value - target) ** 2, (bounded - target) ** 2
        assert loss[index].item() == pytest.approx(max(free, held) / 2, abs=1e-12)
        if abs(held - free) > 1e-9:
            assert clipped[index].item() == (held > free)


def test_the_value_losss_gradient_is_that_of_the_maximum() -> None:
    generator = torch.Generator().manual_seed(0)
    values, old, returns = (torch.randn(60, generator=generator, dtype=torch.float64) for _ in range(3))
    values.requires_grad_()
    loss, clipped = value_loss(values, old, returns, clip=0.5)
    loss.sum().backward()

    def reference(at: torch.Tensor) -> float:
        total = 0.0
        for value, before, target in zip(at.tolist(), old.tolist(), returns.tolist(), strict=True):
            bounded = min(before + 0.5, max(before - 0.5, value))
            total += 0.5 * max((value - target) ** 2, (bounded - target) ** 2)
        return total

    assert values.grad is not None
    assert values.grad.tolist() == pytest.approx(slope(reference, values.detach()), abs=1e-6)
    assert torch.equal(values.grad == 0, clipped)
    assert 0.1 < clipped.double().mean() < 0.9
