"""A whole mini-batch through the policy's update, against the sum written out token by token in float64.

Each term has its own tests; these are of their combination: weights, signs, temperature, masks.
"""

import copy
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from tests.trainer.samples import build_policy, flat_gradient, masked, ragged_samples
from tinyzero_sdk import Score
from tinyzero_trainer.algorithms.advantages import raft
from tinyzero_trainer.algorithms.batch import TrainingBatch, mask_rejected
from tinyzero_trainer.algorithms.schedules import StepSettings
from tinyzero_trainer.config import AlgorithmConfig, OptimizerConfig
from tinyzero_trainer.models.loading import LanguageModel
from tinyzero_trainer.training.micro_batches import completion_lengths
from tinyzero_trainer.types import Rollout

MAX_TOKENS, TEMPERATURE, KL, ENTROPY = 40, 0.8, 0.3, 0.05


def nudged(language_model: LanguageModel, seed: int, scale: float) -> torch.nn.Module:
    """A copy with other weights."""
    generator, model = torch.Generator().manual_seed(seed), copy.deepcopy(language_model.model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(scale * torch.randn(parameter.shape, generator=generator))
    return model.eval().requires_grad_(False)


def distribution(model: torch.nn.Module, sample: Rollout) -> Tensor:
    """[tokens, vocabulary] log π of a completion, from an unbatched pass in the model's precision."""
    prompt, ids = sample.prompt.token_ids, sample.generation.token_ids
    logits = model(torch.tensor([prompt + ids])).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits / TEMPERATURE, dim=-1)


def batch_of(language_model: LanguageModel) -> TrainingBatch:
    """Old log-probabilities outside the clip range on both sides, importance weights, a masked sample."""
    samples, generator = ragged_samples(language_model, groups=2), torch.Generator().manual_seed(0)
    samples[4] = masked(samples[4])
    lengths = completion_lengths(samples)
    tokens = int(lengths.sum())
    with torch.no_grad():
        now = [
            distribution(language_model.model, sample).gather(1, torch.tensor(sample.generation.token_ids)[:, None])[
                :, 0
            ]
            for sample in samples
        ]
    return TrainingBatch.of(
        samples,
        group_size=4,
        old_logprobs=torch.cat(now) + 0.4 * torch.randn(tokens, generator=generator),
        advantages=torch.randn(tokens, generator=generator),
        engine_logprobs=None,
        is_weights=0.5 + torch.rand(tokens, generator=generator),
    )


def divergence(name: str, policy: Tensor, reference: Tensor, token: int) -> Tensor:
    """KL of one position, from [vocabulary] each."""
    if name == "exact":
        return (policy.exp() * policy - policy.exp() * reference).sum()
    gap = policy[token] - reference[token]
    return gap * gap / 2 if name == "k2" else torch.exp(-gap) - 1 + gap


def written_out(
    model: torch.nn.Module, reference: torch.nn.Module, experience: TrainingBatch, algorithm: AlgorithmConfig
) -> tuple[Tensor, dict[str, float]]:
    """The loss of the mini-batch; and what metrics report: its part without KL and entropy, and means over tokens."""
    place, by_completion = 0, []
    sums = {"kl_loss": 0.0, "entropy": 0.0, "pg_clipfrac": 0.0}
    assert experience.is_weights is not None
    for sample in experience.rollouts:
        ours, theirs, losses = distribution(model, sample), distribution(reference, sample).detach(), []
        surrogates = []
        for position, token in enumerate(sample.generation.token_ids):
            old, advantage, importance = (
                column[place].item()
                for column in (experience.old_logprobs, experience.advantages, experience.is_weights)
            )
            place += 1
            if sample.score.masked:
                continue
            ratio = torch.exp(ours[position, token] - old)
            bounded = 1 + algorithm.clip_ratio_high if advantage > 0 else 1 - algorithm.clip_ratio_low
            outside = ratio > bounded if advantage > 0 else ratio < bounded  # a tensor
            surrogate = -importance * advantage * (bounded * torch.ones(()) if outside else ratio)
            kl = divergence(algorithm.kl_estimator, ours[position], theirs[position], token)
            entropy = -(ours[position].exp() * ours[position]).sum()
            losses.append(surrogate + KL * kl - ENTROPY * entropy)
            surrogates.append(surrogate.item())
            for name, value in zip(sums, (kl, entropy, outside), strict=True):
                sums[name] += value.item()
        if losses:
            by_completion.append((losses, surrogates))
    tokens = sum(len(losses) for losses, _ in by_completion)
    total = surrogate_alone = 0.0
    for losses, surrogates in by_completion:
        weight = {
            "token-mean": 1 / tokens,
            "seq-mean-token-mean": 1 / len(losses) / len(by_completion),
            "seq-mean-token-sum": 1 / len(by_completion),
            "seq-mean-token-sum-norm": 1 / MAX_TOKENS / len(by_completion),
        }[algorithm.loss_aggregation]
        total = total + sum(losses) * weight
        surrogate_alone += sum(surrogates) * weight
    means = {f"actor/{name}": value / tokens for name, value in sums.items()}
    return total, {"actor/pg_loss": surrogate_alone, **means}


@pytest.mark.parametrize(
    ("mode", "estimator"),
    [
        ("token-mean", "exact"),
        pytest.param("seq-mean-token-mean", "k2", marks=pytest.mark.slow),
        pytest.param("seq-mean-token-sum", "k3", marks=pytest.mark.slow),
        pytest.param("seq-mean-token-sum-norm", "k3", marks=pytest.mark.slow),
    ],
)
def test_the_gradient_of_an_update_is_that_of_the_written_out_sum(
    toy_model: LanguageModel, mode: str, estimator: str
) -> None:
    reference, twin = nudged(toy_model, 1, 0.05), copy.deepcopy(toy_model.model).double()
    policy = build_policy(
        toy_model,
        reference=reference,
        optimizer=OptimizerConfig(max_grad_norm=1e9, micro_batch_tokens=70),
        max_tokens=MAX_TOKENS,
        loss_aggregation=mode,
        clip_ratio_high=0.28,
        kl_coefficient=5 * KL,  # the initial one; the update takes the step's
        kl_estimator=estimator,
        entropy_coefficient=ENTROPY,
    )
    experience = batch_of(toy_model)
    loss, means = written_out(twin, copy.deepcopy(reference).double(), experience, policy._algorithm)
    loss.backward()
    metrics = policy.update(experience, StepSettings(1e-9, TEMPERATURE, KL))
    ours, expected = flat_gradient(toy_model.model).double(), flat_gradient(twin)
    assert (ours - expected).norm() < 1e-5 * expected.norm()
    assert {name: metrics[name] for name in means} == pytest.approx(means, rel=1e-4)
    assert 0.1 < means["actor/pg_clipfrac"] < 0.9


def test_a_mini_batch_is_weighted_by_its_own_tokens(toy_model: LanguageModel) -> None:
    """An update on two mini-batches is an update on one and then on the other."""
    experience, now = batch_of(toy_model), StepSettings(1e-3, TEMPERATURE, 0.0)

    def after(language_model: LanguageModel, parts: list[range], mini_batches: int) -> Tensor:
        policy = build_policy(language_model, optimizer=OptimizerConfig(num_mini_batches=mini_batches))
        for part in parts:
            policy.update(experience.select(part), now)
        return torch.cat([parameter.detach().flatten() for parameter in language_model.model.parameters()])

    twin = replace(toy_model, model=copy.deepcopy(toy_model.model))
    one_after_the_other = after(toy_model, [range(4), range(4, 8)], 1)
    torch.testing.assert_close(after(twin, [range(8)], 2), one_after_the_other, atol=1e-6, rtol=0)


def test_raft_with_reinforce_is_supervised_fine_tuning_on_the_right_completions(toy_model: LanguageModel) -> None:
    """The gradient of transformers' own loss, a mean over the tokens of those completions."""
    twin, right = copy.deepcopy(toy_model.model).double(), (1, 2, 6)
    rollouts = [
        replace(sample, score=Score(float(index in right), index in right))
        for index, sample in enumerate(ragged_samples(toy_model, groups=2))
    ]
    sums = []
    for index in right:
        prompt, ids = rollouts[index].prompt.token_ids, rollouts[index].generation.token_ids
        labels = torch.tensor([[-100] * len(prompt) + ids])
        sums.append(len(ids) * twin(torch.tensor([prompt + ids]), labels=labels).loss)
    tokens = sum(len(rollouts[index].generation.token_ids) for index in right)
    expected = sum(sums) / tokens
    expected.backward()
    settings = OptimizerConfig(max_grad_norm=1e9, micro_batch_tokens=70)
    policy = build_policy(toy_model, optimizer=settings, policy_loss="reinforce", advantage_estimator="raft")
    batch = TrainingBatch.of(mask_rejected(rollouts, 4), 4)
    batch.advantages = raft(batch)
    metrics = policy.update(batch, StepSettings(1e-9, 1.0, 0.0))
    ours, theirs = flat_gradient(toy_model.model).double(), flat_gradient(twin)
    assert (ours - theirs).norm() < 1e-5 * theirs.norm()
    assert metrics["actor/pg_loss"] == pytest.approx(expected.item(), rel=1e-5)
