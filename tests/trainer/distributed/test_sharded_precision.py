"""Sharded models in mixed precision: what is whole and what is half."""

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.trainer.distributed.sharded import NOW, OPTIMIZER, PLAIN, Case, made_up, make_policy
from tests.trainer.distributed.sharded import group as group
from tests.trainer.samples import ragged_samples
from tinyzero_trainer.config import CriticConfig
from tinyzero_trainer.config.compose import make_config
from tinyzero_trainer.distributed.dtensor import local_shard
from tinyzero_trainer.distributed.fsdp import cast_copy, cast_weights, layers_of
from tinyzero_trainer.models.loading import LanguageModel, save_model
from tinyzero_trainer.rollout.weight_sync import named_weights
from tinyzero_trainer.training.build import _build_policy
from tinyzero_trainer.training.critic import Critic


@pytest.mark.slow
def test_in_half_precision_the_weights_that_are_stepped_stay_whole(toy_model: LanguageModel) -> None:
    experience = made_up(toy_model)
    exact, half = (
        make_policy(toy_model, Case(kl="exact"), replace(PLAIN, dtype=dtype))
        for dtype in (torch.float32, torch.bfloat16)
    )
    seen: set[torch.dtype] = set()
    layer = layers_of(half.language_model.model)[0]
    layer.register_forward_pre_hook(lambda module, args: seen.update(p.dtype for p in module.parameters()))
    metrics = [policy.update(experience, NOW) for policy in (exact, half)]
    assert seen == {torch.bfloat16}
    assert metrics[1]["actor/grad_norm"] == pytest.approx(metrics[0]["actor/grad_norm"], rel=0.05)
    assert metrics[1]["actor/pg_loss"] == pytest.approx(metrics[0]["actor/pg_loss"], abs=0.02)
    for (name, weight), (_, other) in zip(
        named_weights(half.language_model.model), named_weights(exact.language_model.model), strict=True
    ):
        assert weight.dtype == torch.float32, name
        assert (weight - other).abs().max() < 0.1, name
        assert weight.to(torch.bfloat16).float().ne(weight).any() or weight.numel() < 8, name  # more than half's digits


@pytest.mark.parametrize("resumed", [False, True])
def test_in_half_precision_the_policy_starts_at_no_distance_from_its_reference(
    resumed: bool, toy_model: LanguageModel, tmp_path: Path
) -> None:
    save_model(tmp_path / "start", toy_model)
    config = make_config(
        {
            "run": {"task": "countdown", "output": "out", "device": "cpu"},
            "model": {"path": str(tmp_path / "start"), "dtype": "bfloat16"},
            "algorithm": {"kl_coefficient": 0.1, "kl_estimator": "exact"},
        }
    )
    options = replace(PLAIN, dtype=torch.bfloat16)
    start = replace(toy_model, model=copy.deepcopy(toy_model.model))
    policy, experience = _build_policy(config, start, options, resumed=resumed), made_up(toy_model)
    samples = experience.rollouts
    assert torch.equal(policy.logprobs(samples, 0.8), policy.reference_logprobs(samples, 0.8))
    assert policy.update(experience, NOW)["actor/kl_loss"] == 0.0
    assert policy._reference is not None
    assert {parameter.dtype for parameter in policy._reference.body.parameters()} == {torch.bfloat16}
    for buffer, exact in zip(policy._reference.body.buffers(), toy_model.model.buffers(), strict=True):
        assert torch.equal(buffer, exact)


def test_a_cast_copy_is_a_copy_that_was_cast(toy_model: LanguageModel) -> None:
    model: torch.nn.Module = toy_model.model  # type: ignore[assignment]
    expected = copy.deepcopy(model)
    cast_weights(expected, torch.bfloat16)
    found = cast_copy(model, torch.bfloat16)
    kept = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for parameter in found.parameters():
        assert not parameter.requires_grad
        parameter.data.zero_()
    assert all(torch.equal(tensor, kept[name]) for name, tensor in model.state_dict().items()), "nothing is shared"
    found = cast_copy(model, torch.bfloat16)
    assert {name: tensor.dtype for name, tensor in found.named_buffers()} == {
        name: tensor.dtype for name, tensor in model.named_buffers()
    }
    for (name, ours), (_, theirs) in zip(found.state_dict().items(), expected.state_dict().items(), strict=True):
        assert ours.dtype == theirs.dtype, name
        assert torch.equal(ours, theirs), name
    assert found.get_input_embeddings().weight is found.get_output_embeddings().weight, "what is tied stays so"
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_gradients_of_micro_batches_in_half_precision_are_added_in_float32(toy_model: LanguageModel) -> None:
    policy = make_policy(toy_model, Case(), replace(PLAIN, dtype=torch.bfloat16))
    model = policy.language_model.model
    for batch in policy._micro_batches(ragged_samples(toy_model)):
        policy.model(batch, temperature=1.0).logprobs.sum().backward()
    gradients = [local_shard(parameter.grad) for parameter in model.parameters() if parameter.grad is not None]
    assert {gradient.dtype for gradient in gradients} == {torch.float32}
    assert any(gradient.to(torch.bfloat16).float().ne(gradient).any() for gradient in gradients)


def test_the_values_head_computes_in_float32_whatever_the_body_does(toy_model: LanguageModel) -> None:
    options = replace(PLAIN, dtype=torch.bfloat16)
    critic = Critic(toy_model, settings=CriticConfig(learning_rate=1e-2), optimizer=OPTIMIZER, options=options)
    seen = []
    critic.model.head.register_forward_hook(lambda module, args, out: seen.append((module.weight.dtype, out.dtype)))
    critic.update(made_up(toy_model))
    assert set(seen) == {(torch.float32, torch.float32)}
    assert critic.values(ragged_samples(toy_model)).dtype == torch.float32
