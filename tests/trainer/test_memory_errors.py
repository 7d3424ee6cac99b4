"""A GPU that is too small: what is said, and that the run goes on from there with what was proposed."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.configurations import changed
from tinyzero_sdk.settings import build, merge, parse_words, to_mapping
from tinyzero_trainer import policy, roles, sharding
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.critic import Critic
from tinyzero_trainer.loop import train
from tinyzero_trainer.memory_errors import OutOfMemory, explained, out_of_memory
from tinyzero_trainer.policy import Policy
from tinyzero_trainer.resuming import resume_config
from tinyzero_trainer.rollout import TorchEngine

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
        pytest.param(Policy, "logprobs", "log-probabilities and values were computed", marks=pytest.mark.slow),
        pytest.param(Critic, "values", "log-probabilities and values were computed", marks=pytest.mark.slow),
        (policy, "token_statistics", "the weights were updated"),
        pytest.param(Critic, "update", "the weights were updated", marks=pytest.mark.slow),
        pytest.param(TorchEngine, "generate", "completions were generated", marks=pytest.mark.slow),
        pytest.param(TorchEngine, "load_weights", "the rollout engine took over the weights", marks=pytest.mark.slow),
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

    config = run_config(warm_model, toy_task, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(sharding, "fully_shard", short)
        with pytest.raises(OutOfMemory, match="while the models were loaded") as error:
            train(config)
    assert "--resume" not in str(error.value)  # there is no checkpoint to go on from
    advice = str(error.value).partition("; start again with ")[2]
    assert train(build(TrainConfig, merge(to_mapping(config), parse_words(advice.split())))).accuracy


def test_a_micro_batch_that_is_tried_out_is_advised_on_as_an_update(
    warm_model: Path, toy_task: str, tmp_path: Path
) -> None:
    config = run_config(warm_model, toy_task, tmp_path, memory__checkpoint_activations=True)
    tried, updated = (
        out_of_memory(config, phase).partition("; ")[2]
        for phase in ("the largest micro-batch was tried out", "the weights were updated")
    )
    assert tried == updated == "start again with optimizer.micro_batch_tokens=8192"


def test_an_engine_without_memory_is_told_apart(
    warm_model: Path, toy_task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def short(*args: Any, **kwargs: Any) -> None:
        raise torch.OutOfMemoryError(ALLOCATOR)

    monkeypatch.setattr(roles, "build_engine", short)
    with pytest.raises(OutOfMemory, match="while the rollout engine took over the weights"):
        train(run_config(warm_model, toy_task, tmp_path))


@pytest.mark.parametrize(
    "words", ["CUDA error: out of memory\nCompile with", "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `c`"]
)
def test_memory_may_run_out_beside_the_allocator(words: str) -> None:
    config = changed({"run": {"task": "countdown", "output": "out"}}, {})
    with pytest.raises(OutOfMemory) as error, explained(config, "completions were generated", "sit down"):
        raise RuntimeError(words)
    told = words.partition("\n")[0]
    assert str(error.value) == f"the GPU's memory ran out while completions were generated ({told}); sit down"


@pytest.mark.parametrize("kind", [ZeroDivisionError, RuntimeError])
def test_other_errors_stay_what_they_are(kind: type[Exception]) -> None:
    config = changed({"run": {"task": "countdown", "output": "out"}}, {})
    with pytest.raises(kind, match="an illegal memory access"), explained(config, "nothing happened"):
        raise kind("CUDA error: an illegal memory access was encountered")
