"""Each estimator against its paper's equation, written out completion by completion in Python floats."""

import math
import statistics
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.trainer.samples import make_sample
from tinyzero_sdk import Score
from tinyzero_trainer.algorithms.advantages import find_estimator, whiten
from tinyzero_trainer.algorithms.batch import TrainingBatch, mask_rejected
from tinyzero_trainer.algorithms.kinds import ESTIMATORS

real = st.floats(-3, 3, width=32)
quarters = st.integers(-8, 8).map(lambda number: number / 4)  # no std of almost nothing


@st.composite
def outcomes(draw: st.DrawFn) -> TrainingBatch:
    groups, size = draw(st.integers(1, 3)), draw(st.integers(2, 4))
    count = groups * size
    lengths = draw(st.lists(st.integers(1, 4), min_size=count, max_size=count))
    tokens = sum(lengths)

    def some(number: int) -> torch.Tensor:
        return torch.tensor(draw(st.lists(real, min_size=number, max_size=number)), dtype=torch.float64)

    parts, weights = (draw(st.lists(quarters, min_size=number, max_size=number)) for number in (2 * count, 2))
    return TrainingBatch(
        rewards=some(count),
        lengths=torch.tensor(lengths),
        group_size=size,
        kl_penalties=some(tokens) if draw(st.booleans()) else None,
        old_logprobs=some(tokens),
        teacher_logprobs=some(tokens),
        values=some(tokens),
        greedy_rewards=some(groups),
        # In double precision, too: of parts that nearly cancel, the sum is mostly rounding.
        reward_parts=torch.tensor(parts, dtype=torch.float64).view(count, 2),
        part_weights=torch.tensor([weights] * count, dtype=torch.float64),
        gamma=draw(st.sampled_from([1.0, 0.9])),
        gae_lambda=draw(st.sampled_from([1.0, 0.95, 0.0])),
    )


def token_rewards(outcome: TrainingBatch) -> list[list[float]]:
    """[completions][tokens] r_t: minus the penalty, and the score at the end."""
    rows, place = [], 0
    for reward, length in zip(outcome.rewards.tolist(), outcome.lengths.tolist(), strict=True):
        penalties = (
            [0.0] * length if outcome.kl_penalties is None else outcome.kl_penalties[place : place + length].tolist()
        )
        rows.append([-penalty for penalty in penalties])
        rows[-1][-1] += reward
        place += length
    return rows


def returns(outcome: TrainingBatch) -> list[list[float]]:
    """Σ_k γ^k r_{t+k}, the definition itself."""
    gamma = outcome.gamma
    return [
        [sum(gamma**k * reward for k, reward in enumerate(row[start:])) for start in range(len(row))]
        for row in token_rewards(outcome)
    ]


def by_group(outcome: TrainingBatch) -> list[list[float]]:
    """[groups][samples] everything a completion earned."""
    earned = [sum(row) for row in token_rewards(outcome)]
    return [earned[start : start + outcome.group_size] for start in range(0, len(earned), outcome.group_size)]


def whitened(values: list[float]) -> list[float]:
    if len(values) < 2:
        return [0.0] * len(values)
    mean, variance = statistics.fmean(values), statistics.variance(values)
    return [(value - mean) / math.sqrt(variance + 1e-8) for value in values]


def spread(outcome: TrainingBatch, by_completion: list[float]) -> list[float]:
    return [value for value, length in zip(by_completion, outcome.lengths.tolist(), strict=True) for _ in range(length)]


def reference(name: str, outcome: TrainingBatch) -> list[float]:
    groups, n = by_group(outcome), outcome.group_size
    if name == "grpo":
        scaled = [(r - statistics.fmean(g)) / (statistics.stdev(g) + 1e-6) for g in groups for r in g]
        return spread(outcome, scaled)
    if name == "dr_grpo":
        return spread(outcome, [r - statistics.fmean(g) for g in groups for r in g])
    if name == "rloo":
        others = [r - (sum(g) - r) / (n - 1) for g in groups for r in g]
        return spread(outcome, others)
    if name == "gdpo":
        rows, weights = outcome.reward_parts.tolist(), outcome.part_weights.tolist()[0]
        summed = [0.0] * len(rows)
        for part, weight in enumerate(weights):
            for start in range(0, len(rows), n):
                g = [row[part] for row in rows[start : start + n]]
                for index, r in enumerate(g):
                    summed[start + index] += weight * (r - statistics.fmean(g)) / (statistics.stdev(g) + 1e-6)
        return spread(outcome, [(a - statistics.fmean(summed)) / (statistics.stdev(summed) + 1e-6) for a in summed])
    if name == "reinforce_pp":
        return whitened([value for row in returns(outcome) for value in row])
    if name == "reinforce_pp_baseline":
        return whitened(reference("dr_grpo", outcome))
    if name == "remax":
        greedy = outcome.greedy_rewards.tolist()
        return [value - greedy[index // n] for index, row in enumerate(returns(outcome)) for value in row]
    if name == "raft":
        return spread(outcome, [1.0] * len(outcome.lengths))
    if name == "on_policy_distillation":
        pairs = zip(outcome.teacher_logprobs.tolist(), outcome.old_logprobs.tolist(), strict=True)
        return [teacher - policy for teacher, policy in pairs]
    assert name == "gae"
    return [value for row in gae_rows(outcome) for value in row]


def gae_rows(outcome: TrainingBatch) -> list[list[float]]:
    """A_t = Σ_k (γλ)^k δ_{t+k}."""
    rows, place, gamma, decay = [], 0, outcome.gamma, outcome.gamma * outcome.gae_lambda
    for rewards in token_rewards(outcome):
        values = [*outcome.values[place : place + len(rewards)].tolist(), 0.0]
        place += len(rewards)
        deltas = [reward + gamma * values[t + 1] - values[t] for t, reward in enumerate(rewards)]
        rows.append([sum(decay**k * d for k, d in enumerate(deltas[t:])) for t in range(len(deltas))])
    return rows


@settings(max_examples=25)
@given(outcome=outcomes())
def test_every_estimator_is_its_papers_equation(outcome: TrainingBatch) -> None:
    noise = any(0 < statistics.pstdev(group) < 1e-5 for group in by_group(outcome))
    for name in ESTIMATORS:
        if name != "gae" and noise:
            continue  # division by almost nothing
        expected = reference(name, outcome)
        if ("reinforce_pp" in name or name == "gdpo") and statistics.pstdev(expected) < 0.7:
            continue  # likewise, whitening of a constant, or of parts that nearly cancel: else it is √½ at least
        assert find_estimator(name)(outcome).tolist() == pytest.approx(expected, rel=1e-6, abs=1e-6), name


def test_of_a_group_only_the_first_right_completions_are_accepted() -> None:
    right, wrong, masked = Score(1.0, True), Score(0.9, False, "wrong"), Score(1.0, True, masked=True)
    rollouts = [replace(make_sample(1, 1), score=score) for score in (wrong, right, right, masked, right, wrong)]
    for most, accepted in ((None, [1, 2, 4]), (1, [1, 4])):
        kept = [not rollout.score.masked for rollout in mask_rejected(rollouts, 3, most)]
        assert [place for place, counts in enumerate(kept) if counts] == accepted


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo"])
@pytest.mark.parametrize("reward", [0.0, 1.0, 0.1, 1 / 3])
def test_a_group_of_equal_rewards_has_no_advantage(name: str, reward: float) -> None:
    outcome = TrainingBatch(torch.full((14,), reward), torch.randint(1, 5, (14,)), group_size=7)
    assert not find_estimator(name)(outcome).any()


def test_a_group_of_one_keeps_its_reward() -> None:
    outcome = TrainingBatch(torch.tensor([0.5, -1.0]), torch.tensor([1, 2]), group_size=1)
    assert find_estimator("grpo")(outcome).tolist() == [0.5, -1.0, -1.0]


@pytest.mark.parametrize("name", ["grpo", "dr_grpo", "rloo", "gdpo", "reinforce_pp_baseline"])
@pytest.mark.parametrize("failed", [0, 4])
def test_a_score_that_is_unknown_counts_in_no_mean(name: str, failed: int) -> None:
    """Two groups of five, in one a scorer failed: the advantages are those of five and four completions."""
    rewards = torch.tensor([[1.0, 0.5, 0.25, 0.0, 0.125]])
    others = [place for place in range(5) if place != failed]

    def advantages(rewards: torch.Tensor, known: torch.Tensor | None = None) -> torch.Tensor:
        parts = torch.stack([rewards.flatten(), rewards.flatten().square()], dim=1)
        columns = {"reward_parts": parts, "part_weights": torch.ones_like(parts), "mask": known, "known": known}
        lengths = torch.ones(rewards.numel(), dtype=torch.long)
        outcome = TrainingBatch(rewards.flatten(), lengths, group_size=rewards.shape[1], **columns)
        return find_estimator(name)(outcome)

    known = torch.tensor([place != failed for place in range(5)])
    found, expected = advantages(rewards, known), advantages(rewards[:, others])
    assert found[others].tolist() == pytest.approx(expected.tolist(), abs=1e-6)
    assert found[failed] == 0
    equal = torch.ones(1, 5)
    equal[0, failed] = 0.0  # what a failed score holds
    assert not advantages(equal, known).any()
    assert not advantages(rewards, torch.arange(5) == 1).any()


@pytest.mark.parametrize("name", ["reinforce_pp", "reinforce_pp_baseline"])  # gae: test_step.py
def test_masked_completions_shift_no_advantage(name: str) -> None:
    """Whitened over the tokens that count; a masked score still counts in the mean of its group."""
    rewards, lengths = torch.tensor([1.0, 0.0, 0.5, 0.0, 0.25, 1.0]), torch.tensor([2, 1, 3, 2, 1, 2])
    counted = torch.tensor([True, True, False, True, False, True])
    outcome = TrainingBatch(rewards, lengths, group_size=2, mask=counted)
    found = find_estimator(name)(outcome)
    rows = returns(outcome)
    if name == "reinforce_pp_baseline":
        rows = [[reward] * len(row) for reward, row in zip([0.5, -0.5, 0.25, -0.25, -0.375, 0.375], rows, strict=True)]
    kept = whitened([value for row, counts in zip(rows, counted.tolist(), strict=True) if counts for value in row])
    chosen = counted.repeat_interleave(lengths)
    assert found[chosen].tolist() == pytest.approx(kept, abs=1e-5)
    assert not found[~chosen].any()


@pytest.mark.parametrize(
    ("values", "mask"), [([1.0, 2.0], torch.tensor([False, False])), ([3.0] * 5, None), ([3.0], None)]
)
def test_whitening_nothing_or_a_constant_gives_zeros(values: list[float], mask: torch.Tensor | None) -> None:
    assert not whiten(torch.tensor(values), mask).any()
