"""What a sharded model holds of the device's memory, when it is idle and when it warms up."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.distributed.sharded import (
    CASES,
    EXPECTED,
    NOW,
    PLAIN,
    SAVING,
    Case,
    each,
    learn,
    made_up,
    make_policy,
)
from tests.trainer.distributed.sharded import group as group
from tinyzero_trainer.distributed.dtensor import local_shard
from tinyzero_trainer.distributed.fsdp import on_device
from tinyzero_trainer.distributed.offload import CpuOffload
from tinyzero_trainer.models.loading import LanguageModel
from tinyzero_trainer.rollout.weight_sync import named_weights


def held(tensors: Any) -> int:
    return sum(local_shard(tensor).untyped_storage().size() for tensor in tensors)


def test_what_is_idle_holds_no_memory_of_the_device(toy_model: LanguageModel) -> None:
    policy, experience = make_policy(toy_model, Case(kl="k3"), SAVING["offloaded while idle"]), made_up(toy_model)
    model, optimizer = policy.language_model.model, policy._optimizer
    assert policy._reference is not None
    policy.update(experience, NOW)
    policy.logprobs(experience.rollouts, 1.0)
    assert held(model.parameters()) == held(optimizer._moments()) == held(policy._reference.body.parameters()) == 0
    assert all(parameter.grad is None for parameter in model.parameters())
    with on_device(model):
        assert held(model.parameters()) == 4 * sum(parameter.numel() for parameter in model.parameters())
        assert held(optimizer._moments()) == 0


def test_the_optimisers_moments_are_there_from_the_start(toy_model: LanguageModel) -> None:
    """Else an engine that keeps what is free while it is idle would have their room."""
    policy = make_policy(toy_model, Case(), PLAIN)
    assert held(policy._optimizer._moments()) == 2 * held(policy.language_model.model.parameters())


def test_a_tensor_comes_back_with_all_of_its_storage() -> None:
    """FSDP2's shards are views of padded ones."""
    padded = torch.arange(6.0)
    shown = padded[:4]
    waiting = CpuOffload(lambda: [shown])
    assert padded.untyped_storage().size() == 0
    with waiting.on_device(changed=False):
        assert padded.untyped_storage().size() == 24
        assert shown.tolist() == [0.0, 1.0, 2.0, 3.0]


def test_an_error_leaves_idle_weights_where_they_wait(toy_model: LanguageModel) -> None:
    policy = make_policy(toy_model, Case(), SAVING["offloaded while idle"])
    model = policy.language_model.model
    before = {name: value.clone() for name, value in named_weights(model)}
    with pytest.raises(ZeroDivisionError), on_device(model, changed=True), on_device(model):
        raise ZeroDivisionError
    assert held(model.parameters()) == 0
    assert all(torch.equal(before[name], value) for name, value in named_weights(model))


@pytest.mark.slow
@pytest.mark.parametrize("saving", each(["as it is", "offloaded while idle"], "as it is"))
def test_warming_up_leaves_no_trace(saving: str, toy_model: LanguageModel, tmp_path: Path) -> None:
    policy = make_policy(toy_model, CASES["KL"], SAVING[saving])
    policy.warm_up(NOW)
    assert all(parameter.grad is None for parameter in policy.language_model.model.parameters())
    if "KL" not in EXPECTED:
        EXPECTED["KL"] = learn(make_policy(toy_model, CASES["KL"], None), made_up(toy_model), tmp_path)
    assert learn(policy, made_up(toy_model), tmp_path) == EXPECTED["KL"]


def test_warming_up_fills_a_micro_batch_and_makes_a_small_one(
    toy_model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tinyzero_trainer.training.policy.SMALL", 11)
    policy, sizes = make_policy(toy_model, Case(), PLAIN), []
    losses = policy._token_losses
    monkeypatch.setattr(
        policy, "_token_losses", lambda batch, *rest: sizes.append(batch.tokens.numel()) or losses(batch, *rest)
    )
    policy._layout = "packed"
    policy.warm_up(NOW)
    assert sizes == [80, 11]
