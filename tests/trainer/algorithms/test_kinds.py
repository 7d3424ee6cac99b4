"""What estimators and losses say of themselves is what they do."""

from dataclasses import replace
from typing import get_args

import pytest
import torch

from tinyzero_trainer.algorithms.advantages import find_estimator
from tinyzero_trainer.algorithms.batch import TrainingBatch
from tinyzero_trainer.algorithms.kinds import ESTIMATORS, POLICY_LOSSES, Estimator
from tinyzero_trainer.algorithms.kl import SAMPLED
from tinyzero_trainer.algorithms.losses import LossInputs, find_policy_loss
from tinyzero_trainer.config import KlEstimator

TOKENS = torch.tensor([-1.0, -0.5, -2.0, -0.25, -1.5, -3.0, -0.75])
REWARDS = torch.tensor([1.0, 0.0, 0.5, 0.25])
COLUMNS = {
    "critic": {"values": TOKENS},
    "teacher": {"teacher_logprobs": TOKENS.flip(0)},
    "greedy": {"greedy_rewards": torch.tensor([0.5, 0.75])},
    "parts": {"reward_parts": REWARDS[:, None], "part_weights": torch.ones(4, 1)},
    "old_logprobs": {"old_logprobs": TOKENS},
}


def batch_for(kind: Estimator, rewards: torch.Tensor = REWARDS) -> TrainingBatch:
    """Two groups of two completions of two, one, one and three tokens, with what the estimator needs and no more."""
    columns = {name: column for need in kind.needs for name, column in COLUMNS[need].items()}
    if "parts" in kind.needs:
        columns["reward_parts"] = rewards[:, None]
    lengths = torch.tensor([2, 1, 1, 3])
    return TrainingBatch(rewards, lengths, group_size=2, gamma=0.9, gae_lambda=0.9, **columns)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_an_estimator_takes_what_it_needs_and_reads_the_settings_it_lists(name: str) -> None:
    kind, estimate = ESTIMATORS[name], find_estimator(name)
    batch = batch_for(kind)
    advantages = estimate(batch)
    for need in kind.needs:
        with pytest.raises(AssertionError):
            estimate(replace(batch, **dict.fromkeys(COLUMNS[need])))
    for setting in ("gamma", "gae_lambda"):
        changes = not torch.equal(estimate(replace(batch, **{setting: 0.5})), advantages)
        assert changes == (f"algorithm.{setting}" in kind.settings)
    assert kind.uses_rewards == (not torch.equal(estimate(batch_for(kind, REWARDS.flip(0))), advantages))
    equal_in_groups = estimate(batch_for(kind, torch.tensor([1.0, 1.0, 0.0, 0.0])))
    assert kind.compares_samples == (not equal_in_groups.any())


@pytest.mark.parametrize("name", POLICY_LOSSES)
def test_a_loss_reads_the_settings_it_lists(name: str) -> None:
    loss, logprobs = find_policy_loss(name), torch.tensor([-1.0, -1.0, -1.0, -1.0], requires_grad=True)
    inputs = LossInputs(
        torch.tensor([-3.0, 1.0, -3.0, 1.0]),
        torch.tensor([1.0, 1.0, -1.0, -1.0]),
        torch.ones(4, dtype=torch.long),
        clip_ratio_low=0.2,
        clip_ratio_high=0.2,
        dual_clip_c=3.0,
    )
    before = loss(logprobs, inputs).loss
    for setting in ("clip_ratio_low", "clip_ratio_high", "dual_clip_c"):
        after = loss(logprobs, replace(inputs, **{setting: 0.5 if "ratio" in setting else 1.5})).loss
        assert (not torch.equal(before, after)) == (f"algorithm.{setting}" in POLICY_LOSSES[name].settings)


def test_the_names_that_settings_take_are_those_of_functions() -> None:
    assert all(find_estimator(name).__name__ == name for name in ESTIMATORS)
    assert all(find_policy_loss(name).__name__ == name for name in POLICY_LOSSES)
    assert set(get_args(KlEstimator)) == {*SAMPLED, "exact"}
