"""The critic: its initial values, its loss and gradient, and that the policy is unchanged."""

import copy
import statistics
from pathlib import Path

import pytest
import torch

from tests.trainer.samples import masked, ragged_samples, with_dropout
from tinyzero_trainer.algorithms.batch import TrainingBatch
from tinyzero_trainer.config import CriticConfig, OptimizerConfig
from tinyzero_trainer.models.loading import LanguageModel
from tinyzero_trainer.training.critic import Critic, ValueModel
from tinyzero_trainer.training.micro_batches import completion_lengths
from tinyzero_trainer.types import Rollout
from tinyzero_trainer.utils import jagged


def make_critic(language_model: LanguageModel, **optimizer: int) -> Critic:
    settings = CriticConfig(learning_rate=3e-3, value_clip_range=10.0)
    return Critic(language_model, settings=settings, optimizer=OptimizerConfig(max_grad_norm=1e9, **optimizer))


def as_experience(critic: Critic, samples: list[Rollout], returns: list[float]) -> TrainingBatch:
    """One return per completion, the same at all of its tokens."""
    lengths, values = completion_lengths(samples), critic.values(samples)
    nothing = torch.zeros(len(values))
    columns = {"values": values, "returns": jagged.repeat_to_tokens(torch.tensor(returns), lengths)}
    return TrainingBatch.of(samples, 4, old_logprobs=nothing, advantages=nothing, **columns)


@pytest.mark.slow
def test_a_restored_critic_continues_to_the_bit_and_the_policy_is_left_alone(
    toy_model: LanguageModel, tmp_path: Path
) -> None:
    critic, samples = make_critic(toy_model), ragged_samples(toy_model)
    returns = [1.0, 0.0, -1.0] * 4
    before = copy.deepcopy(toy_model.model.state_dict())
    critic.update(as_experience(critic, samples, returns))
    assert all(torch.equal(before[name], value) for name, value in toy_model.model.state_dict().items())
    critic.save(tmp_path)
    restored = make_critic(toy_model)
    restored.load(tmp_path)
    for each in (critic, restored):
        each.update(as_experience(each, samples, returns))
    assert torch.equal(critic.values(samples), restored.values(samples))


def test_a_batch_of_masked_completions_changes_nothing(toy_model: LanguageModel) -> None:
    critic = make_critic(toy_model)
    samples = list(map(masked, ragged_samples(toy_model)))
    metrics = critic.update(as_experience(critic, samples, [1.0] * 12))
    assert metrics == {"critic/lr": pytest.approx(3e-3)}
    assert not critic.values(samples).any()


def test_an_update_descends_the_clipped_loss_averaged_over_all_tokens(toy_model: LanguageModel) -> None:
    """Gradient and metrics against PPO's value loss, one completion and token at a time, in float64."""
    generator, samples, clip = torch.Generator().manual_seed(0), ragged_samples(toy_model), 0.1
    critic = Critic(
        toy_model,
        settings=CriticConfig(learning_rate=1e-3, value_clip_range=clip),
        optimizer=OptimizerConfig(max_grad_norm=1e9, micro_batch_tokens=60),
    )
    torch.nn.init.normal_(critic.model.head.weight, std=0.3, generator=generator)
    lengths, twin = completion_lengths(samples), copy.deepcopy(critic.model).double()
    tokens = int(lengths.sum())
    old = critic.values(samples) + 0.2 * torch.randn(tokens, generator=generator)
    returns = torch.randn(tokens, generator=generator)
    samples[3] = masked(samples[3])
    nothing = torch.zeros(tokens)
    metrics = critic.update(TrainingBatch.of(samples, 4, advantages=nothing, values=old, returns=returns))

    place, losses, clipped, residuals, targets = 0, [], 0, [], []
    for sample, length in zip(samples, lengths.tolist(), strict=True):
        values = alone(twin, sample)
        for value in values if not sample.score.masked else []:
            before, target = old[place].double(), returns[place].double()
            bounded = before + max(-clip, min(clip, value.item() - before.item())) + 0 * value
            if abs(value.item() - before.item()) < clip:
                bounded = value
            free, held = (value - target) ** 2, (bounded - target) ** 2
            losses.append((free if free > held else held) / 2)
            clipped += held.item() > free.item()
            residuals.append(target.item() - before.item())
            targets.append(target.item())
            place += 1
        place += length if sample.score.masked else 0
    total = sum(losses) / len(losses)
    total.backward()
    for (name, ours), reference in zip(critic.model.named_parameters(), twin.parameters(), strict=True):
        if reference.grad is not None:
            assert (ours.grad - reference.grad).abs().max() < 1e-5 * max(1e-3, reference.grad.abs().max()), name
    assert metrics["critic/vf_loss"] == pytest.approx(total.item(), rel=1e-5)
    assert metrics["critic/vf_clipfrac"] == pytest.approx(clipped / len(losses))
    assert 0.1 < clipped / len(losses) < 0.9
    explained = 1 - statistics.pvariance(residuals) / statistics.pvariance(targets)
    assert metrics["critic/vf_explained_var"] == pytest.approx(explained, abs=1e-5)
    assert metrics["critic/returns/max"] == pytest.approx(max(targets))
    assert metrics["critic/values/min"] == pytest.approx(min(t - r for t, r in zip(targets, residuals, strict=True)))


def alone(model: ValueModel, sample: Rollout) -> torch.Tensor:
    """V before each completion token, from a pass without batch, padding or mask."""
    ids = torch.tensor([sample.prompt.token_ids + sample.generation.token_ids])
    states = model.body.base_model(ids).last_hidden_state[0, len(sample.prompt.token_ids) - 1 : -1]
    return model.head(states)[:, 0]


def test_dropout_changes_no_value(toy_model: LanguageModel) -> None:
    """An update starts from the old values: with them as returns the loss is 0."""
    model = with_dropout(toy_model)
    critic, samples = make_critic(model), ragged_samples(model)
    torch.nn.init.normal_(critic.model.head.weight, generator=torch.Generator().manual_seed(0))
    values = critic.values(samples)
    nothing = torch.zeros(len(values))
    metrics = critic.update(TrainingBatch.of(samples, 4, advantages=nothing, values=values, returns=values))
    assert metrics["critic/vf_loss"] < 1e-8


def test_it_has_its_own_learning_rate(toy_model: LanguageModel) -> None:
    """The first step of Adam moves every weight that has a gradient by the learning rate."""
    critic, samples = make_critic(toy_model), ragged_samples(toy_model)
    critic.update(as_experience(critic, samples, [1.0] * 12))
    assert critic.model.head.weight.abs().max().item() == pytest.approx(3e-3, rel=1e-3)


def test_a_nonfinite_update_is_skipped_and_counted(toy_model: LanguageModel) -> None:
    critic, samples = make_critic(toy_model, num_mini_batches=3), ragged_samples(toy_model)
    returns = [float("nan")] + [1.0] * 11
    metrics = critic.update(as_experience(critic, samples, returns))
    assert metrics["critic/skipped_updates"] == 1
    assert 0 < metrics["critic/grad_norm"] < float("inf")
