import copy
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.trainer.samples import ragged_samples, with_dropout
from tinyzero_trainer.algorithms.batch import TrainingBatch
from tinyzero_trainer.algorithms.schedules import StepSettings
from tinyzero_trainer.config import AlgorithmConfig, OptimizerConfig
from tinyzero_trainer.models.loading import LanguageModel, from_parts
from tinyzero_trainer.training.logprobs import PolicyModel
from tinyzero_trainer.training.micro_batches import completion_lengths
from tinyzero_trainer.training.optimizer import UpdateError
from tinyzero_trainer.training.policy import Policy
from tinyzero_trainer.types import Rollout
from tinyzero_trainer.utils import jagged

SGD_LIKE = {"max_grad_norm": 1e9}
NOW = StepSettings(learning_rate=1e-3, temperature=1.0, kl_coefficient=0.1)


def make_policy(language_model: LanguageModel, *, kl: float = 0.0, **optimizer: float) -> Policy:
    reference = PolicyModel(copy.deepcopy(language_model.model).requires_grad_(False)) if kl else None
    return Policy(
        language_model,
        algorithm=AlgorithmConfig(kl_coefficient=kl, kl_estimator="exact" if kl else "k3"),
        optimizer=OptimizerConfig(**{**SGD_LIKE, **optimizer}),  # type: ignore[arg-type]
        max_tokens=32,
        reference=reference,
    )


def as_experience(samples: list[Rollout], advantages: list[float]) -> TrainingBatch:
    """One advantage a completion; the old policy is what the samples were drawn from."""
    lengths = completion_lengths(samples)
    old = torch.tensor([value for sample in samples for value in sample.generation.logprobs])
    spread = jagged.repeat_to_tokens(torch.tensor(advantages), lengths)
    return TrainingBatch.of(samples, 4, old_logprobs=old, advantages=spread, engine_logprobs=old)


def gradient_after(
    language_model: LanguageModel, samples: list[Rollout], advantages: list[float], **changes: object
) -> torch.Tensor:
    """The gradient of one mini-batch, flattened; the update itself is undone."""
    before = copy.deepcopy(language_model.model.state_dict())
    experience = replace(as_experience(samples, advantages), group_size=1, **changes)
    make_policy(language_model, kl=0.1).update(experience, NOW)
    gradient = torch.cat([parameter.grad.flatten() for parameter in language_model.model.parameters()])
    language_model.model.load_state_dict(before)
    return gradient


def test_the_gradient_is_that_of_the_mean_over_all_tokens(toy_model: LanguageModel) -> None:
    samples = ragged_samples(toy_model)
    advantages = [1.0, -1.0, 0.5, -0.5] * 3
    # At the start the ratio is 1, so the gradient of the surrogate is that of -A·log π, token by token.
    toy_model.model.eval().zero_grad()
    total = sum(len(sample.generation.token_ids) for sample in samples)
    for sample, advantage in zip(samples, advantages, strict=True):
        prompt, ids = sample.prompt.token_ids, sample.generation.token_ids
        logits = toy_model.model(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1]
        logprobs = torch.log_softmax(logits, dim=-1).gather(1, torch.tensor(ids)[:, None])
        (-advantage * logprobs.sum() / total).backward()
    expected = torch.cat([parameter.grad.flatten() for parameter in toy_model.model.parameters()])
    actual = gradient_after(toy_model, samples, advantages)  # the KL to oneself has no gradient
    assert (actual - expected).abs().max() < 1e-5 * expected.abs().max()


def test_masked_samples_count_neither_above_nor_below_the_fraction(toy_model: LanguageModel) -> None:
    samples, advantages = ragged_samples(toy_model), [1.0, -1.0, 0.5, -0.5] * 3
    rest = [index for index in range(12) if index != 5]
    masked = list(samples)
    masked[5] = replace(samples[5], score=replace(samples[5].score, masked=True))
    without = gradient_after(toy_model, [samples[row] for row in rest], [advantages[row] for row in rest])
    assert (gradient_after(toy_model, masked, advantages) - without).abs().max() < 1e-6


def test_the_only_pass_of_an_update_finds_the_old_logprobs_itself(toy_model: LanguageModel) -> None:
    samples, advantages = ragged_samples(toy_model), [1.0, -1.0, 0.5, -0.5] * 3
    own, found = (gradient_after(toy_model, samples, advantages, **old) for old in ({}, {"old_logprobs": None}))
    assert (own - found).norm() < 1e-5 * own.norm()
    experience = replace(as_experience(samples, advantages), old_logprobs=None)
    metrics = make_policy(toy_model).update(experience, NOW)
    assert metrics["actor/ratio/mean"] == 1
    assert metrics["actor/ratio/outside_clip_frac"] == metrics["actor/ppo_kl"] == 0
    with pytest.raises(AssertionError):
        make_policy(toy_model, update_epochs=2).update(experience, NOW)


def test_a_weight_scales_a_tokens_loss_and_zero_leaves_it_out(toy_model: LanguageModel) -> None:
    samples, advantages = ragged_samples(toy_model), [1.0, -1.0, 0.5, -0.5] * 3
    weights = torch.rand(12, generator=torch.Generator().manual_seed(4)).mul(2).tolist()
    weights[5] = 0.0
    importance = jagged.repeat_to_tokens(torch.tensor(weights), completion_lengths(samples))
    weighted = gradient_after(toy_model, samples, advantages, is_weights=importance)
    same = gradient_after(toy_model, samples, [a * b for a, b in zip(advantages, weights, strict=True)])
    assert (weighted - same).norm() < 1e-5 * same.norm()


@pytest.mark.parametrize(("shift", "outside"), [(0.0, 0.0), (0.17, 0.0), (0.19, 0.25), (-0.21, 0.0), (-0.24, 0.25)])
def test_the_share_of_ratios_outside_the_clips_bounds(shift: float, outside: float, toy_model: LanguageModel) -> None:
    """Bounds 0.8 and 1.2: log-ratios -0.223 and 0.182, for every fourth token."""
    experience = as_experience(ragged_samples(toy_model), [0.0] * 12)  # also where no advantage makes a clip matter
    assert experience.old_logprobs is not None
    count = len(experience.old_logprobs) // 4
    shifts = torch.zeros(len(experience.old_logprobs))
    shifts[: 4 * count : 4] = shift
    metrics = make_policy(toy_model).update(replace(experience, old_logprobs=experience.old_logprobs - shifts), NOW)
    assert metrics["actor/ratio/outside_clip_frac"] == pytest.approx(4 * outside * count / len(shifts), abs=1e-6)


def test_the_engines_logprobs_are_compared_before_the_first_update_or_not_at_all(toy_model: LanguageModel) -> None:
    experience = as_experience(ragged_samples(toy_model), [1.0, -1.0, 0.5, -0.5] * 3)
    assert experience.old_logprobs is not None
    off = replace(experience, engine_logprobs=experience.old_logprobs - 0.5)
    metrics = make_policy(toy_model, num_mini_batches=3).update(off, NOW)
    assert metrics["training/rollout_logprobs_diff_mean"] == pytest.approx(0.5, abs=1e-4)
    assert metrics["rollout_corr/kl"] == pytest.approx(-0.5, abs=1e-4)  # seen from tokens that the engine likes less
    metrics = make_policy(toy_model).update(replace(experience, engine_logprobs=None), NOW)
    assert not any(name.startswith(("training/", "rollout_corr/")) for name in metrics)


@pytest.mark.parametrize("epochs", [1, 2])
def test_every_mini_batch_of_every_pass_is_an_update(toy_model: LanguageModel, epochs: int) -> None:
    policy = make_policy(toy_model, num_mini_batches=3, update_epochs=epochs)
    metrics = policy.update(as_experience(ragged_samples(toy_model), [1.0, -1.0, 0.0, 0.0] * 3), NOW)
    assert metrics["actor/lr"] == NOW.learning_rate
    states = policy._optimizer._adamw.state.values()
    assert {int(state["step"]) for state in states} == {3 * epochs}


def test_a_gradient_that_is_not_finite_is_skipped_and_stops_the_run_in_the_end(toy_model: LanguageModel) -> None:
    policy = make_policy(toy_model, max_nonfinite_updates=3)
    samples = ragged_samples(toy_model)
    before = copy.deepcopy(toy_model.model.state_dict())
    poison = [float("nan")] + [0.0] * 11
    for _ in range(2):
        assert policy.update(as_experience(samples, poison), NOW)["actor/skipped_updates"] == 1
    policy.update(as_experience(samples, [1.0, -1.0, 0.0, 0.0] * 3), NOW)  # a sound one starts the count anew
    after = copy.deepcopy(toy_model.model.state_dict())
    assert any(not torch.equal(before[name], after[name]) for name in before)
    for _ in range(2):
        policy.update(as_experience(samples, poison), NOW)
    with pytest.raises(UpdateError, match="3 updates in a row"):
        policy.update(as_experience(samples, poison), NOW)
    assert all(torch.equal(after[name], value) for name, value in toy_model.model.state_dict().items())


def test_a_batch_without_counting_tokens_changes_nothing(toy_model: LanguageModel) -> None:
    before = copy.deepcopy(toy_model.model.state_dict())
    samples = [replace(sample, score=replace(sample.score, masked=True)) for sample in ragged_samples(toy_model)]
    make_policy(toy_model).update(as_experience(samples, [1.0] * 12), NOW)
    assert all(torch.equal(before[name], value) for name, value in toy_model.model.state_dict().items())


def test_a_restored_optimiser_goes_on_bit_for_bit(toy_model: LanguageModel, tmp_path: Path) -> None:
    samples, advantages = ragged_samples(toy_model), [1.0, -1.0, 0.5, -0.5] * 3
    policy = make_policy(toy_model)
    policy.update(as_experience(samples, advantages), NOW)
    policy.save(tmp_path)
    twin = from_parts("twin", copy.deepcopy(toy_model.model), toy_model.tokenizer)
    restored = make_policy(twin)
    restored.load(tmp_path)
    for each in (policy, restored):
        each.update(as_experience(samples, advantages), NOW)
    for left, right in zip(toy_model.model.parameters(), twin.model.parameters(), strict=True):
        assert torch.equal(left, right)


def test_dropout_blurs_no_ratio(toy_model: LanguageModel) -> None:
    """Old log-probabilities are found without it, so the update must do without as well."""
    model = with_dropout(toy_model)
    experience = as_experience(ragged_samples(model), [1.0, -1.0, 0.5, -0.5] * 3)
    policy = make_policy(model)
    old = policy.logprobs(experience.rollouts, 1.0)
    metrics = policy.update(replace(experience, old_logprobs=old), NOW)
    assert metrics["actor/ratio/mean"] == pytest.approx(1.0, abs=1e-5)
    assert metrics["actor/ratio/std"] < 1e-5


def test_the_ratio_reported_is_the_one_of_the_loss(toy_model: LanguageModel) -> None:
    """GSPO's is that of the completion: one of 24 tokens that moved by 1 is hardly outside."""
    samples = ragged_samples(toy_model)
    lengths = completion_lengths(samples)
    experience = as_experience(samples, [1.0] * 12)
    assert experience.old_logprobs is not None
    shifts = torch.zeros(len(experience.old_logprobs))
    shifts[jagged.last_tokens(lengths)] = 1.0
    policy = Policy(
        toy_model,
        algorithm=AlgorithmConfig(policy_loss="gspo"),
        optimizer=OptimizerConfig(),
        max_tokens=32,
        reference=None,
    )
    metrics = policy.update(replace(experience, old_logprobs=experience.old_logprobs - shifts), NOW)
    ratios = [math.exp(1 / length) for length in lengths.tolist() for _ in range(length)]
    assert metrics["actor/ratio/mean"] == pytest.approx(sum(ratios) / len(ratios), rel=1e-4)
    assert metrics["actor/ppo_kl"] == pytest.approx(-12 / len(ratios), rel=1e-3)


def test_the_loss_reported_is_the_mean_over_mini_batches(toy_model: LanguageModel) -> None:
    """At ratio 1 it is minus the mean advantage of the tokens of each, however many those are."""
    samples = ragged_samples(toy_model)
    lengths, advantages = completion_lengths(samples), [1.0] * 4 + [-0.25] * 4 + [0.5] * 4
    policy = make_policy(toy_model, num_mini_batches=3, micro_batch_tokens=40)
    metrics = policy.update(as_experience(samples, advantages), replace(NOW, learning_rate=1e-9))
    assert len({int(lengths[start : start + 4].sum()) for start in (0, 4, 8)}) > 1
    assert metrics["actor/pg_loss"] == pytest.approx(-(1.0 - 0.25 + 0.5) / 3, abs=1e-5)
