"""A pass that failed midway leaves nothing behind: an update after it learns the same."""

from typing import Any

import pytest
import torch
from torch.distributed.fsdp import FSDPModule

from tests.trainer.distributed.sharded import CASES, NOW, SAVING, bits, make_policy, shared_batch
from tests.trainer.distributed.sharded import group as group
from tinyzero_trainer.distributed.fsdp import layers_of
from tinyzero_trainer.models.loading import LanguageModel
from tinyzero_trainer.rollout.weight_source import named_weights
from tinyzero_trainer.training.policy import Policy


def fail_in_the_trial(policy: Policy, where: str) -> None:
    """Run out of memory in the forward or the backward pass of the largest micro-batch."""

    def run_out(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    layer = layers_of(policy.model)[0]
    register = layer.register_forward_hook if where == "forward" else layer.register_full_backward_pre_hook
    hook = register(run_out)
    with pytest.raises(torch.OutOfMemoryError):
        policy.warm_up(NOW)
    hook.remove()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("saving", "torch_resets"),
    [*((saving, True) for saving in SAVING), ("as it is", False), ("all of it", False)],
)
def test_an_update_after_a_failed_trial_learns_the_same_bits(
    saving: str, torch_resets: bool, toy_model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not torch_resets:
        monkeypatch.delattr(FSDPModule, "reset_iter_state", raising=False)
    experience, seen = shared_batch(toy_model), []
    for where in (None, "forward", "backward"):
        policy = make_policy(toy_model, CASES["KL"], SAVING[saving])
        if where is not None:
            fail_in_the_trial(policy, where)
        metrics = [policy.update(experience, NOW) for _ in range(2)]
        weights = {name: bits(weight.clone()) for name, weight in named_weights(policy.language_model.model)}
        seen.append((metrics, weights))
    assert seen[0] == seen[1] == seen[2]
