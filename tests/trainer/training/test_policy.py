"""An update of the policy: its metrics, what it skips, and when old log-probabilities are computed."""

import copy
import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from tests.trainer.samples import build_policy, flat_gradient, masked, ragged_samples, with_advantages, with_dropout
from tinyzero_trainer.algorithms.losses import LossInputs, PolicyLoss
from tinyzero_trainer.algorithms.schedules import StepSettings
from tinyzero_trainer.config import OptimizerConfig
from tinyzero_trainer.models.loading import LanguageModel
from tinyzero_trainer.training.micro_batches import completion_lengths
from tinyzero_trainer.training.optimizer import Optimizer, UpdateError
from tinyzero_trainer.training.policy import Policy, _metrics
from tinyzero_trainer.training.update_metrics import MetricAccumulator

ADVANTAGES = [1.0, -1.0, 0.5, -0.5] * 3
NOW = StepSettings(learning_rate=1e-3, temperature=1.0, kl_coefficient=0.1)


def make_policy(language_model: LanguageModel, **optimizer: Any) -> Policy:
    return build_policy(language_model, optimizer=OptimizerConfig(max_grad_norm=1e9, **optimizer))


def test_the_only_pass_of_an_update_finds_the_old_logprobs_itself(toy_model: LanguageModel) -> None:
    given, gradients = with_advantages(ragged_samples(toy_model), ADVANTAGES), []
    found = replace(given, old_logprobs=None)
    for batch in (given, found):
        policy = make_policy(replace(toy_model, model=copy.deepcopy(toy_model.model)))
        metrics = policy.update(batch, NOW)
        gradients.append(flat_gradient(policy.language_model.model))
    assert (gradients[0] - gradients[1]).norm() < 1e-5 * gradients[0].norm()
    assert metrics["actor/ratio/mean"] == 1
    assert metrics["actor/ratio/outside_clip_frac"] == metrics["actor/ppo_kl"] == 0
    with pytest.raises(AssertionError):
        make_policy(toy_model, update_epochs=2).update(found, NOW)


@pytest.mark.slow
def test_an_update_gives_the_entropy_at_each_token_in_the_order_of_the_batch(toy_model: LanguageModel) -> None:
    rollouts = ragged_samples(toy_model)
    rollouts[5] = masked(rollouts[5])
    expected = []
    for rollout in rollouts:
        prompt, ids = rollout.prompt.token_ids, rollout.generation.token_ids
        logits = toy_model.model(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1]
        entropy = torch.distributions.Categorical(logits=logits.detach()).entropy()
        expected.append(entropy * torch.nan if rollout.score.masked else entropy)
    policy = make_policy(toy_model, num_mini_batches=3, update_epochs=2, micro_batch_tokens=64)
    policy.update(with_advantages(rollouts, ADVANTAGES), replace(NOW, learning_rate=1e-9))
    torch.testing.assert_close(policy.entropies(), torch.cat(expected), rtol=0, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize(("shift", "outside"), [(0.0, 0.0), (0.17, 0.0), (0.19, 0.25), (-0.21, 0.0), (-0.24, 0.25)])
def test_the_fraction_of_ratios_outside_the_clip_bounds(shift: float, outside: float, toy_model: LanguageModel) -> None:
    """Bounds 0.8 and 1.2: log-ratios -0.223 and 0.182, for every fourth token."""
    experience = with_advantages(ragged_samples(toy_model), [0.0] * 12)  # also where no advantage makes a clip matter
    assert experience.old_logprobs is not None
    count = len(experience.old_logprobs) // 4
    shifts = torch.zeros(len(experience.old_logprobs))
    shifts[: 4 * count : 4] = shift
    metrics = make_policy(toy_model).update(replace(experience, old_logprobs=experience.old_logprobs - shifts), NOW)
    assert metrics["actor/ratio/outside_clip_frac"] == pytest.approx(4 * outside * count / len(shifts), abs=1e-6)


def test_the_engines_logprobs_are_compared_before_the_first_update_or_not_at_all(toy_model: LanguageModel) -> None:
    experience = with_advantages(ragged_samples(toy_model), ADVANTAGES)
    assert experience.old_logprobs is not None
    off = replace(experience, engine_logprobs=experience.old_logprobs - 0.5)
    metrics = make_policy(toy_model, num_mini_batches=3).update(off, NOW)
    assert metrics["training/rollout_logprobs_diff_mean"] == pytest.approx(0.5, abs=1e-4)
    assert metrics["rollout_corr/kl"] == pytest.approx(-0.5, abs=1e-4)  # the engine finds these tokens less likely
    metrics = make_policy(toy_model).update(replace(experience, engine_logprobs=None), NOW)
    assert not any(name.startswith(("training/", "rollout_corr/")) for name in metrics)


@pytest.mark.parametrize("epochs", [1, 2])
def test_every_mini_batch_of_every_pass_is_an_update(toy_model: LanguageModel, epochs: int) -> None:
    policy = make_policy(toy_model, num_mini_batches=3, update_epochs=epochs)
    metrics = policy.update(with_advantages(ragged_samples(toy_model), [1.0, -1.0, 0.0, 0.0] * 3), NOW)
    assert metrics["actor/lr"] == NOW.learning_rate
    states = policy._optimizer._adamw.state.values()
    assert {int(state["step"]) for state in states} == {3 * epochs}


def test_a_nonfinite_gradient_is_skipped_and_repeated_ones_stop_the_run(toy_model: LanguageModel) -> None:
    policy = make_policy(toy_model, max_nonfinite_updates=3)
    samples = ragged_samples(toy_model)
    before = copy.deepcopy(toy_model.model.state_dict())
    poison = [float("nan")] + [0.0] * 11
    for _ in range(2):
        assert policy.update(with_advantages(samples, poison), NOW)["actor/skipped_updates"] == 1
    policy.update(with_advantages(samples, [1.0, -1.0, 0.0, 0.0] * 3), NOW)  # a finite one resets the count
    after = copy.deepcopy(toy_model.model.state_dict())
    assert any(not torch.equal(before[name], after[name]) for name in before)
    for _ in range(2):
        policy.update(with_advantages(samples, poison), NOW)
    with pytest.raises(UpdateError, match="3 updates in a row"):
        policy.update(with_advantages(samples, poison), NOW)
    assert all(torch.equal(after[name], value) for name, value in toy_model.model.state_dict().items())


def test_a_loss_that_is_not_finite_is_skipped_though_its_gradient_is(toy_model: LanguageModel) -> None:
    policy, samples = make_policy(toy_model), ragged_samples(toy_model)
    loss = policy._policy_loss

    def with_infinite_constant(logprobs: torch.Tensor, inputs: LossInputs) -> PolicyLoss:
        found = loss(logprobs, inputs)
        return replace(found, loss=found.loss + torch.inf)

    policy._policy_loss = with_infinite_constant
    before = copy.deepcopy((toy_model.model.state_dict(), policy._optimizer._adamw.state_dict()))
    metrics = policy.update(with_advantages(samples, [1.0, -1.0, 0.0, 0.0] * 3), NOW)
    assert metrics["actor/skipped_updates"] == 1
    assert "actor/grad_norm" not in metrics
    after = (toy_model.model.state_dict(), policy._optimizer._adamw.state_dict()["state"])
    torch.testing.assert_close(after, (before[0], before[1]["state"]), rtol=0, atol=0)


def test_the_95th_percentile_of_ratios_is_the_nearest_rank() -> None:
    metrics, ratios = MetricAccumulator(), torch.randperm(40) + 1.0
    metrics.extend(ratio=ratios, log_ratio=ratios.log())
    metrics.end_mini_batch(torch.tensor(1.0))
    assert _metrics(metrics)["actor/ratio/p95"] == 38


def test_biases_and_norms_do_not_decay() -> None:
    model = torch.nn.Linear(2, 2)
    model.requires_grad_(True)
    torch.nn.init.ones_(model.weight)
    torch.nn.init.ones_(model.bias)
    optimizer = Optimizer(model, OptimizerConfig(weight_decay=0.5))
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step(0.1, optimizer.gather_gradients(torch.zeros(())))
    assert model.weight.tolist() == [[pytest.approx(0.95)] * 2] * 2
    assert model.bias.tolist() == [1, 1]


def test_a_batch_of_masked_completions_changes_nothing(toy_model: LanguageModel) -> None:
    before = copy.deepcopy(toy_model.model.state_dict())
    samples = list(map(masked, ragged_samples(toy_model)))
    make_policy(toy_model).update(with_advantages(samples, [1.0] * 12), NOW)
    assert all(torch.equal(before[name], value) for name, value in toy_model.model.state_dict().items())


def test_dropout_changes_no_ratio(toy_model: LanguageModel) -> None:
    """Old log-probabilities are computed without dropout, so the update must do without as well."""
    model = with_dropout(toy_model)
    experience = with_advantages(ragged_samples(model), ADVANTAGES)
    policy = make_policy(model)
    old = policy.logprobs(experience.rollouts, 1.0)
    metrics = policy.update(replace(experience, old_logprobs=old), NOW)
    assert metrics["actor/ratio/mean"] == pytest.approx(1.0, abs=1e-5)
    assert metrics["actor/ratio/std"] < 1e-5


def test_the_reported_ratio_is_that_of_the_loss(toy_model: LanguageModel) -> None:
    """GSPO's ratio is that of the completion: one token of 24 that moves by 1 hardly leaves the bounds."""
    samples = ragged_samples(toy_model)
    lengths = completion_lengths(samples)
    experience = with_advantages(samples, [1.0] * 12)
    assert experience.old_logprobs is not None
    shifts = torch.zeros(len(experience.old_logprobs))
    shifts[lengths.cumsum(0) - 1] = 1.0
    policy = build_policy(toy_model, policy_loss="gspo")
    metrics = policy.update(replace(experience, old_logprobs=experience.old_logprobs - shifts), NOW)
    ratios = [math.exp(1 / length) for length in lengths.tolist() for _ in range(length)]
    assert metrics["actor/ratio/mean"] == pytest.approx(sum(ratios) / len(ratios), rel=1e-4)
    assert metrics["actor/ppo_kl"] == pytest.approx(-12 / len(ratios), rel=1e-3)
