"""A GPU that is too small: what is said, and that the run goes on from there with what was proposed."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.configurations import changed
from tinyzero_sdk.settings import parse_words
from tinyzero_trainer import policy, sharding
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.critic import Critic
from tinyzero_trainer.loop import train
from tinyzero_trainer.memory_errors import OutOfMemory, explained
from tinyzero_trainer.policy import Policy
from tinyzero_trainer.resuming import resume_config

ALLOCATOR = "CUDA out of memory. Tried to allocate 4.64 GiB. GPU 0 has a total capacity of 23.65 GiB of which 2.39 GiB"


def run_config(warm_model: Path, toy_task: str, tmp_path: Path, **changes: Any) -> TrainConfig:
    values: dict[str, Any] = {
        "run": {"task": toy_task, "output": str(tmp_path / "run"), "steps": 3, "device": "cpu"},
        "task": {"limit": 5},
        "model": {"path": str(warm_model)},
        "data": {"template": "base", "test_share": 0.4, "prompts_per_step": 2},
        "rollout": {"samples_per_prompt": 2, "max_tokens": 8, "max_sequences": 8, "logprobs": "sample"},
        "optimizer": {"mini_batches": 2},
        "eval": {"size": 4, "every": 0},
        "checkpoint": {"every": 1},
    }
    return changed(values, changes)


@pytest.mark.parametrize(
    ("owner", "name", "what"),
    [
        (Policy, "logprobs", "log-probabilities and values were computed"),
        (Critic, "values", "log-probabilities and values were computed"),
        (policy, "token_statistics", "the weights were updated"),
        (Critic, "update", "the weights were updated"),
    ],
)
def test_a_step_without_memory_says_what_to_change_and_the_run_goes_on_with_it(
    owner: Any,
    name: str,
    what: str,
    warm_model: Path,
    toy_task: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gae = {"algorithm__advantage": "gae"} if owner is Critic else {}
    config = run_config(warm_model, toy_task, tmp_path, **gae)
    function = getattr(owner, name)

    def short(*args: Any, **kwargs: Any) -> Any:
        if (tmp_path / "run" / "checkpoints" / "step_1").exists():
            raise torch.OutOfMemoryError(ALLOCATOR)
        return function(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, short)
        with pytest.raises(OutOfMemory) as error:
            train(config)
    message, _, advice = str(error.value).partition("; go on from the last checkpoint with --resume ")
    assert message == f"the GPU's memory ran out while {what} (Tried to allocate 4.64 GiB)"
    assert not torch.distributed.is_initialized()
    train(resume_config(tmp_path / "run", parse_words(advice.split())), resume=True)
    assert (tmp_path / "run" / "checkpoints" / "step_3").exists()


def test_a_model_that_does_not_fit_is_told_apart(
    warm_model: Path, toy_task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def short(*args: Any, **kwargs: Any) -> None:
        raise torch.OutOfMemoryError(ALLOCATOR)

    monkeypatch.setattr(sharding, "fully_shard", short)
    with pytest.raises(OutOfMemory, match="while the models were loaded"):
        train(run_config(warm_model, toy_task, tmp_path))


def test_other_errors_stay_what_they_are() -> None:
    config = changed({"run": {"task": "countdown", "output": "out"}}, {})
    with pytest.raises(ZeroDivisionError), explained(config, "nothing happened"):
        raise ZeroDivisionError
