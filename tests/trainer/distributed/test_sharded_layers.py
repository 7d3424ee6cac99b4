"""How a sharded model is put together: layers gathered one by one, let go, and found."""

import copy
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from tests.trainer.distributed.sharded import CPU, NOW, PLAIN, SAVING, Case, made_up, make_policy
from tests.trainer.distributed.sharded import group as group
from tests.trainer.samples import ragged_samples, with_dropout
from tinyzero_trainer.config import OptimizerConfig
from tinyzero_trainer.distributed.fsdp import layers_of, on_device, process_group, reshard, shard
from tinyzero_trainer.models.loading import LanguageModel
from tinyzero_trainer.rollout.weight_sync import named_weights
from tinyzero_trainer.training.optimizer import Optimizer


@pytest.mark.parametrize(
    ("saving", "second"), [("as it is", [True, True]), ("checkpointed activations", [False, True])]
)
def test_a_layer_is_gathered_by_itself_and_kept_where_nothing_is_to_be_saved(
    saving: str, second: list[bool], toy_model: LanguageModel
) -> None:
    policy = make_policy(toy_model, Case(), SAVING[saving])
    model: Any = policy.language_model.model
    batch = next(iter(policy._micro_batches(ragged_samples(toy_model))))
    gathered = []

    def note(module: nn.Module, args: Any) -> None:
        gathered.append([not isinstance(layer.mlp.up_proj.weight, DTensor) for layer in model.model.layers])

    for layer in model.model.layers:
        layer.mlp.register_forward_pre_hook(note)
    with on_device(model), torch.no_grad():
        policy.model(batch, temperature=1.0)
    assert gathered == [[True, False], second]
    assert all(isinstance(parameter, DTensor) for parameter in model.parameters())  # given back: no backward pass comes


def test_nothing_stays_gathered_after_an_update(toy_model: LanguageModel) -> None:
    policy, experience = make_policy(toy_model, Case(kl="exact"), PLAIN), made_up(toy_model)
    assert policy._reference is not None
    for use in (
        lambda: policy.update(experience, NOW),
        lambda: policy.reference_logprobs(experience.rollouts, 1.0),
    ):
        use()
        for model in (policy.language_model.model, policy._reference.body):
            assert all(isinstance(parameter, DTensor) for parameter in model.parameters())


def test_layers_are_found_by_name_or_as_the_largest_list(toy_model: LanguageModel) -> None:
    assert layers_of(toy_model.model) == list(toy_model.model.model.layers)
    assert len(layers_of(with_dropout(toy_model).model)) == 2
    unnamed = nn.Sequential(
        nn.ModuleList([nn.Linear(2, 2)]), nn.ModuleList([nn.Linear(9, 9), nn.Linear(9, 9)]), nn.Linear(99, 99)
    )
    assert layers_of(unnamed) == list(unnamed[1])
    assert layers_of(nn.Linear(3, 3)) == []


def test_a_process_group_that_is_there_is_used_and_left() -> None:
    assert dist.is_initialized()
    with process_group(CPU):
        assert dist.get_world_size() == 1
    assert dist.is_initialized()


def test_the_norm_and_the_bound_are_those_of_the_plain_gradients(toy_model: LanguageModel) -> None:
    norms, weights = [], []
    for options in (None, PLAIN):
        model: Any = copy.deepcopy(toy_model.model)
        if options is not None:
            shard(model, options)
        optimizer = Optimizer(model, OptimizerConfig(max_grad_norm=0.01))
        model(torch.arange(9)[None]).logits.sum().backward()
        norms.append(optimizer.step(1e-2).item())
        weights.append({name: value.clone() for name, value in named_weights(model)})
        reshard(model)
    assert norms[0] == norms[1] > 0.01
    assert all(torch.equal(weights[0][name], value) for name, value in weights[1].items())
