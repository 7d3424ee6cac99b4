"""The value model: what it starts from, what it learns, what it leaves alone."""

import copy
from pathlib import Path

import pytest
import torch

from tests.trainer.samples import ragged_samples
from tinyzero_trainer import ragged
from tinyzero_trainer.batching import completion_lengths
from tinyzero_trainer.config import CriticConfig, OptimizerConfig
from tinyzero_trainer.critic import Critic
from tinyzero_trainer.experience import Experience
from tinyzero_trainer.models import LanguageModel
from tinyzero_trainer.records import Sample


def make_critic(language_model: LanguageModel, **optimizer: int) -> Critic:
    settings = CriticConfig(learning_rate=3e-3, value_clip=10.0)
    return Critic(language_model, settings=settings, optimizer=OptimizerConfig(max_grad_norm=1e9, **optimizer))


def as_experience(critic: Critic, samples: list[Sample], returns: list[float]) -> Experience:
    """One return a completion, the same at all of its tokens."""
    lengths, values = completion_lengths(samples), critic.values(samples)
    nothing = torch.zeros(len(values))
    return Experience(samples, lengths, nothing, nothing, values, ragged.spread(torch.tensor(returns), lengths))


def test_at_first_nothing_is_worth_anything(toy_model: LanguageModel) -> None:
    values = make_critic(toy_model).values(ragged_samples(toy_model))
    assert values.tolist() == [0.0] * len(values)


def test_it_learns_what_completions_are_worth_and_leaves_the_policy_alone(toy_model: LanguageModel) -> None:
    before = copy.deepcopy(toy_model.model.state_dict())
    critic, samples = make_critic(toy_model), ragged_samples(toy_model)
    returns = [1.0, 0.0, -1.0] * 4
    first = critic.update(as_experience(critic, samples, returns), group_size=4)
    for _ in range(60):
        last = critic.update(as_experience(critic, samples, returns), group_size=4)
    assert last["critic/vf_loss"] < 0.2 * first["critic/vf_loss"]
    assert last["critic/vf_explained_var"] > 0.7
    assert all(torch.equal(before[name], value) for name, value in toy_model.model.state_dict().items())


def test_micro_batches_do_not_change_the_update(toy_model: LanguageModel) -> None:
    samples, results = ragged_samples(toy_model), []
    for budget in (1, 40, 10**6):
        critic = make_critic(toy_model, micro_batch_tokens=budget)
        critic.update(as_experience(critic, samples, [1.0, 0.0, -1.0] * 4), group_size=4)
        results.append(critic.values(samples))
    for other in results[1:]:
        torch.testing.assert_close(results[0], other, atol=1e-5, rtol=1e-4)


def test_values_are_those_before_the_token_is_known(toy_model: LanguageModel) -> None:
    """The last token of a completion changes no value: it comes after all of them."""
    from dataclasses import replace

    critic = make_critic(toy_model)
    torch.nn.init.normal_(critic.model.head.weight, generator=torch.Generator().manual_seed(0))
    sample = next(sample for sample in ragged_samples(toy_model) if len(sample.rollout.token_ids) > 2)
    ids = sample.rollout.token_ids
    other = replace(sample, rollout=replace(sample.rollout, token_ids=[*ids[:-1], (ids[-1] + 1) % 1252]))
    assert torch.equal(critic.values([sample]), critic.values([other]))
    assert critic.values([sample]).unique().numel() > 1


def test_a_restored_critic_goes_on_bit_for_bit(toy_model: LanguageModel, tmp_path: Path) -> None:
    critic, samples = make_critic(toy_model), ragged_samples(toy_model)
    returns = [1.0, 0.0, -1.0] * 4
    critic.update(as_experience(critic, samples, returns), group_size=4)
    critic.save(tmp_path)
    restored = make_critic(toy_model)
    restored.load(tmp_path)
    for each in (critic, restored):
        each.update(as_experience(each, samples, returns), group_size=4)
    assert torch.equal(critic.values(samples), restored.values(samples))


def test_a_batch_without_counting_tokens_changes_nothing(toy_model: LanguageModel) -> None:
    from dataclasses import replace

    critic = make_critic(toy_model)
    samples = [replace(sample, score=replace(sample.score, masked=True)) for sample in ragged_samples(toy_model)]
    metrics = critic.update(as_experience(critic, samples, [1.0] * 12), group_size=4)
    assert metrics == {"critic/lr": pytest.approx(3e-3)}
    assert not critic.values(samples).any()
