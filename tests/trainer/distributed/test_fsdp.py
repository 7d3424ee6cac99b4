"""Sharded models do what plain ones do: the same bits on the CPU, whatever is saved of memory."""

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from tests.trainer.distributed.sharded import (
    CASES,
    CPU,
    EXPECTED,
    NOW,
    OPTIMIZER,
    PLAIN,
    SAVING,
    Case,
    each,
    learn,
    made_up,
    make_policy,
)
from tests.trainer.distributed.sharded import group as group
from tests.trainer.processes import on_ranks
from tests.trainer.samples import ragged_samples
from tinyzero_trainer.config import AlgorithmConfig, CriticConfig
from tinyzero_trainer.distributed.dtensor import full_tensor, local_shard
from tinyzero_trainer.models.loading import LanguageModel, load_model, save_model
from tinyzero_trainer.rollout.weight_sync import named_weights
from tinyzero_trainer.training import logprobs as forward
from tinyzero_trainer.training.critic import Critic
from tinyzero_trainer.training.optimizer import Optimizer
from tinyzero_trainer.training.policy import Policy

COMBINATIONS = {f"{case}, {saving}": (case, saving) for case in CASES for saving in SAVING}
QUICK = [f"{case}, as it is" for case in ("all weights", "exact KL", "LoRA, exact KL to itself")] + ["KL, all of it"]


@pytest.mark.slow
@pytest.mark.parametrize("combination", each(COMBINATIONS, *QUICK))
def test_a_sharded_policy_learns_the_same_bits(combination: str, toy_model: LanguageModel, tmp_path: Path) -> None:
    case, saving = COMBINATIONS[combination]
    experience = made_up(toy_model)
    if case not in EXPECTED:
        EXPECTED[case] = learn(make_policy(toy_model, CASES[case], None), experience, tmp_path)
    assert learn(make_policy(toy_model, CASES[case], SAVING[saving]), experience, tmp_path) == EXPECTED[case]


@pytest.mark.slow
@pytest.mark.parametrize("saving", each(SAVING, "all of it"))
def test_a_sharded_critic_learns_the_same_bits(saving: str, toy_model: LanguageModel, tmp_path: Path) -> None:
    shown = []
    for options in (None, SAVING[saving]):
        critic = Critic(toy_model, settings=CriticConfig(), optimizer=OPTIMIZER, options=options)
        experience = made_up(toy_model)
        metrics = [critic.update(experience) for _ in range(2)]
        critic.save(tmp_path)
        files = [(tmp_path / name).read_bytes() for name in ("critic.safetensors", "critic_optimizer.safetensors")]
        values = critic.values(experience.rollouts)
        again = Critic(toy_model, settings=CriticConfig(), optimizer=OPTIMIZER, options=options)
        again.load(tmp_path)
        assert torch.equal(again.values(experience.rollouts), values)
        shown.append((metrics, files, values.tolist(), again.update(experience)))
    assert shown[0] == shown[1]


@pytest.mark.slow
@pytest.mark.parametrize("case", ["exact KL", "LoRA, exact KL to itself"])
def test_the_fused_exact_divergence_of_a_gpu_teaches_the_same(
    case: str, toy_model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = []
    for fused in (False, True):
        monkeypatch.setattr(forward, "fuses_exact", lambda states, fused=fused: fused)
        policy = make_policy(toy_model, CASES[case], PLAIN)
        shown.append([policy.update(made_up(toy_model), NOW) for _ in range(2)])
    for written_out, fused_too in zip(*shown, strict=True):
        assert fused_too == pytest.approx(written_out, rel=1e-3, abs=1e-5)
    assert shown[0] != shown[1]  # by two ways


def test_weights_that_were_gathered_without_a_gradient_are_gathered_anew_after_a_step(toy_model: LanguageModel) -> None:
    policy, experience = make_policy(toy_model, Case(), PLAIN), made_up(toy_model)
    shards = [local_shard(parameter) for parameter in policy.language_model.model.parameters()]
    before = policy.logprobs(experience.rollouts, 1.0)
    torch._foreach_mul_(shards, 1.5)
    after = policy.logprobs(experience.rollouts, 1.0)
    plain = replace(toy_model, model=copy.deepcopy(toy_model.model))
    with torch.no_grad():
        for parameter in plain.model.parameters():
            parameter.mul_(1.5)
    expected = Policy(plain, algorithm=AlgorithmConfig(), optimizer=OPTIMIZER, max_tokens=40, reference=None)
    assert torch.equal(after, expected.logprobs(experience.rollouts, 1.0))
    assert not torch.equal(after, before)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the compiler has many for itself
def test_compiled_layers_compute_the_same(toy_model: LanguageModel) -> None:
    experience, found = made_up(toy_model), []
    for options in (PLAIN, replace(PLAIN, compile=True, activation_checkpointing=True)):
        policy = make_policy(toy_model, Case(), options)
        metrics = policy.update(experience, NOW)
        found.append((metrics, {name: value.clone() for name, value in named_weights(policy.language_model.model)}))
    for metrics, weights in found[1:]:
        assert metrics == pytest.approx(found[0][0], rel=1e-3, abs=1e-5)
        assert weights.keys() == found[0][1].keys()
        for name, value in weights.items():
            torch.testing.assert_close(value, found[0][1][name], rtol=0, atol=4e-3)  # Adam's steps are of 1e-2


def _one_of_two_ranks(start: str) -> tuple[float, dict[str, Tensor], dict[str, Tensor]]:
    """A step with half of a mini-batch's samples."""
    return _a_step(load_model(start, CPU), dist.get_rank(), 2)


def _a_step(language_model: LanguageModel, rank: int, ranks: int) -> tuple[float, dict[str, Tensor], dict[str, Tensor]]:
    """The gradient's norm, the gradients, and the weights after it."""
    policy = make_policy(language_model, Case(), PLAIN)
    model, optimizer = policy.language_model.model, Optimizer(policy.language_model.model, OPTIMIZER)
    samples = ragged_samples(language_model)
    for batch in policy._micro_batches(samples[rank::ranks]):
        policy.model.states(batch).square().sum().backward()
    gradients = {name: full_tensor(parameter.grad).clone() for name, parameter in model.named_parameters()}
    norm = optimizer.step(1e-2).item()
    return norm, gradients, {name: value.clone() for name, value in named_weights(model)}


@pytest.mark.slow
def test_two_ranks_take_the_step_of_one(toy_model: LanguageModel, tmp_path: Path) -> None:
    save_model(tmp_path / "start", toy_model)
    norm, gradients, weights = _a_step(toy_model, 0, 1)
    for found_norm, found_gradients, found in on_ranks(2, _one_of_two_ranks, tmp_path, str(tmp_path / "start")):
        assert found_norm == pytest.approx(norm, rel=1e-6)
        for name, value in found_gradients.items():
            torch.testing.assert_close(value, gradients[name], rtol=0, atol=1e-6 * norm)
        for name, value in found.items():
            torch.testing.assert_close(value, weights[name], rtol=0, atol=1e-3)  # Adam's steps are of 1e-2
