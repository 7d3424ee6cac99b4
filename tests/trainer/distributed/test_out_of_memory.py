"""A pass that failed midway leaves nothing behind: repeated, with smaller micro-batches too, it learns the same."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.distributed.fsdp import FSDPModule

from tests.trainer.distributed.sharded import CASES, NOW, OPTIMIZER, SAVING, bits, make_policy, shared_batch
from tests.trainer.distributed.sharded import group as group
from tinyzero_trainer.config import CriticConfig
from tinyzero_trainer.distributed.fsdp import layers_of
from tinyzero_trainer.models.loading import LanguageModel
from tinyzero_trainer.training.critic import Critic
from tinyzero_trainer.training.learner import Learner

HALF = OPTIMIZER.micro_batch_tokens // 2


def fail(at: int) -> Callable[..., None]:
    """A hook that fails at its call number `at`."""
    left = at

    def hook(*_: Any) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise torch.OutOfMemoryError("CUDA out of memory")

    return hook


def fail_once(learner: Learner, where: str, work: Callable[[], Any]) -> None:
    """Run out of memory midway through `work`."""
    layer = layers_of(learner._computes)[0]
    register = layer.register_forward_hook if where == "forward" else layer.register_full_backward_pre_hook
    hook = register(fail(4))
    with pytest.raises(torch.OutOfMemoryError):
        work()
    hook.remove()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("saving", "torch_resets"),
    [*((saving, True) for saving in SAVING), ("as it is", False), ("all of it", False)],
)
def test_a_repeated_update_learns_the_same_bits(
    saving: str, torch_resets: bool, toy_model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not torch_resets:
        monkeypatch.delattr(FSDPModule, "reset_iter_state", raising=False)
    experience, seen = shared_batch(toy_model), []
    for where in (None, "forward", "backward"):
        policy = make_policy(toy_model, CASES["KL"], SAVING[saving])
        if where is not None:
            fail_once(policy, where, lambda policy=policy: policy.update(experience, NOW))
            if not SAVING[saving].activation_checkpointing:  # with it, a backward pass calls the layer too
                assert policy._metrics.mini_batches == 1  # which is not repeated
            policy.continue_with(OPTIMIZER.micro_batch_tokens)
        metrics = [policy.update(experience, NOW) for _ in range(2)]
        with policy.local_state(changed=False) as tensors:
            seen.append((metrics, [bits(tensor.clone()) for tensor in tensors]))
    assert seen[0] == seen[1] == seen[2]


@pytest.mark.slow
def test_a_repeated_update_with_half_the_tokens_learns_the_same(toy_model: LanguageModel) -> None:
    experience, seen = shared_batch(toy_model), []
    for fails in (False, True):
        critic = Critic(toy_model, settings=CriticConfig(), optimizer=OPTIMIZER, options=SAVING["as it is"])
        if fails:
            fail_once(critic, "backward", lambda critic=critic: critic.update(experience))
            critic.continue_with(HALF)
            assert critic.micro_batch_tokens == HALF
        seen.append((critic.update(experience), critic.values(experience.rollouts)))
    (metrics, values), (repeated, same) = seen
    assert repeated == pytest.approx(metrics, rel=1e-4, abs=1e-6)
    torch.testing.assert_close(same, values, rtol=1e-3, atol=1e-5)
