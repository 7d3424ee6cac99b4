"""A GPU that is too small: what is said, and that the run goes on from there with what was proposed."""

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.configurations import call, changed
from tinyzero_sdk.settings import build, merge, parse_overrides, to_mapping
from tinyzero_trainer.cli.oom_advice import advice_for, advise_on_out_of_memory
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.config.resume import resume_config
from tinyzero_trainer.controller.loop import train
from tinyzero_trainer.distributed import fsdp as sharding
from tinyzero_trainer.estimate.fit import with_settings
from tinyzero_trainer.executors import local as roles
from tinyzero_trainer.models.loading import ModelError
from tinyzero_trainer.plan import advice as advice_of_plan
from tinyzero_trainer.rollout import TorchEngine
from tinyzero_trainer.rollout.cuda_graph.kv_capacity import KvCacheError
from tinyzero_trainer.sft import train as sft
from tinyzero_trainer.training import policy
from tinyzero_trainer.training.critic import Critic
from tinyzero_trainer.training.policy import Policy
from tinyzero_trainer.utils.oom import OutOfMemoryError, catch_out_of_memory

ALLOCATOR = "CUDA out of memory. Tried to allocate 4.64 GiB. GPU 0 has a total capacity of 23.65 GiB of which 2.39 GiB"


@contextmanager
def advice_added(config: TrainConfig, phase: str) -> Iterator[None]:
    with advise_on_out_of_memory(config), catch_out_of_memory(phase):
        yield


def run_config(warm_model: Path, toy_task: str, tmp_path: Path, **changes: Any) -> TrainConfig:
    values: dict[str, Any] = {
        "run": {"task": toy_task, "output": str(tmp_path / "run"), "steps": 3, "device": "cpu"},
        "task": {"limit": 5},
        "model": {"path": str(warm_model)},
        "data": {"prompt_template": "base", "test_fraction": 0.4, "prompts_per_step": 2},
        "rollout": {"group_size": 2, "max_completion_tokens": 8, "max_num_seqs": 8, "return_logprobs": "sample"},
        "optimizer": {"num_mini_batches": 2},
        "eval": {"num_problems": 4, "every": 0},
        "checkpoint": {"every": 1},
    }
    return changed(values, changes)


@pytest.mark.parametrize(
    ("owner", "name", "what"),
    [
        pytest.param(Policy, "logprobs", "log-probabilities and values were computed", marks=pytest.mark.slow),
        pytest.param(Critic, "values", "log-probabilities and values were computed", marks=pytest.mark.slow),
        pytest.param(policy, "policy_objective", "the weights were updated", marks=pytest.mark.slow),
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
    monkeypatch.setattr(advice_of_plan, "present_gpu", lambda device: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    gae = {"algorithm__advantage_estimator": "gae"} if owner is Critic else {}
    config = run_config(warm_model, toy_task, tmp_path, run__device="auto", **gae)
    function = getattr(owner, name)

    def short(*args: Any, **kwargs: Any) -> Any:
        if (tmp_path / "run" / "checkpoints" / "step_1").exists():
            raise torch.OutOfMemoryError(ALLOCATOR)
        return function(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, short)
        with pytest.raises(OutOfMemoryError) as error, advise_on_out_of_memory(config):
            train(config)
    message, _, advice = str(error.value).partition("; go on from the last checkpoint with --resume ")
    assert message == f"the GPU's memory ran out while {what} (Tried to allocate 4.64 GiB)"
    assert not torch.distributed.is_initialized()
    train(resume_config(tmp_path / "run", parse_overrides(advice.split())), resume=True)
    assert (tmp_path / "run" / "checkpoints" / "step_3").exists()


@pytest.mark.slow
def test_a_model_that_does_not_fit_is_told_apart(
    warm_model: Path, toy_task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def short(*args: Any, **kwargs: Any) -> None:
        raise torch.OutOfMemoryError(ALLOCATOR)

    config = run_config(warm_model, toy_task, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(sharding, "fully_shard", short)
        with (
            pytest.raises(OutOfMemoryError, match="while the models were loaded") as error,
            advise_on_out_of_memory(config),
        ):
            train(config)
    assert "--resume" not in str(error.value)  # there is no checkpoint to go on from
    advice = str(error.value).partition("; start again with ")[2]
    assert train(build(TrainConfig, merge(to_mapping(config), parse_overrides(advice.split())))).accuracy


def test_a_batch_that_is_smaller_than_a_micro_batch_is_not_cured_by_smaller_ones(
    warm_model: Path, toy_task: str, tmp_path: Path
) -> None:
    config = run_config(warm_model, toy_task, tmp_path, memory__activation_checkpointing=True)
    for phase in ("the largest micro-batch was tried out", "the weights were updated"):
        assert "micro_batch_tokens" not in advice_for(OutOfMemoryError(phase), config)


def test_an_engine_without_memory_is_told_apart(
    warm_model: Path, toy_task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def short(*args: Any, **kwargs: Any) -> None:
        raise torch.OutOfMemoryError(ALLOCATOR)

    monkeypatch.setattr(roles, "build_engine", short)
    with pytest.raises(OutOfMemoryError, match="while the rollout engine took over the weights"):
        train(run_config(warm_model, toy_task, tmp_path))


@pytest.mark.parametrize(
    "words",
    [
        "CUDA error: out of memory\nSearch for `cudaErrorMemoryAllocation' in the manual",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `c`",
        "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
        "CUDA driver error: out of memory",
        "Triton Error [CUDA]: out of memory",
        "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
    ],
)
def test_memory_may_run_out_beside_the_allocator(words: str) -> None:
    with pytest.raises(OutOfMemoryError) as error, catch_out_of_memory("completions were generated", "sit down"):
        raise RuntimeError(words)
    told = words.partition("\n")[0]
    assert str(error.value) == f"the GPU's memory ran out while completions were generated ({told}); sit down"


@pytest.mark.parametrize("kind", [ZeroDivisionError, RuntimeError])
def test_other_errors_stay_what_they_are(kind: type[Exception]) -> None:
    with pytest.raises(kind, match="an illegal memory access"), catch_out_of_memory("nothing happened"):
        raise kind("CUDA error: an illegal memory access was encountered")


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("[enforce fail at alloc_cpu.cpp:125] . DefaultCPUAllocator: can't allocate memory: you tried 99"),
        RuntimeError("cudaHostAlloc(&ptr, size) failed: out of memory"),
        RuntimeError("cudaErrorMemoryAllocation"),
        MemoryError(),
        OSError(12, "Cannot allocate memory"),
    ],
)
def test_the_machines_own_memory_is_told_apart(error: Exception) -> None:
    config = changed({"run": {"task": "countdown", "output": "out"}, "memory": {"cpu_offload": "idle"}}, {})
    with pytest.raises(OutOfMemoryError) as raised, advice_added(config, "the weights were updated"):
        raise error
    told = str(raised.value)
    assert told.startswith("the machine's memory (RAM) ran out while the weights were updated")
    assert "start again with memory.cpu_offload=none, which keeps all on the GPU, or end other programs" in told
    with pytest.raises(OutOfMemoryError) as raised, advice_added(TrainConfig(), "it was loaded"):
        raise error
    assert str(raised.value).endswith("; end other programs, or take a smaller model or a machine with more memory")


def test_a_model_for_which_there_is_no_memory_is_not_a_broken_one() -> None:
    with (
        pytest.raises(OutOfMemoryError, match="the machine's memory"),
        catch_out_of_memory("it was loaded", "wait"),
    ):
        raise ModelError("cannot load the model") from RuntimeError("DefaultCPUAllocator: can't allocate memory")
    with pytest.raises(ModelError), catch_out_of_memory("it was loaded", "wait"):
        raise ModelError("cannot load the model") from RuntimeError("invalid header")


def test_what_the_failed_pass_held_is_given_back_before_advice_is_sought(monkeypatch: pytest.MonkeyPatch) -> None:
    class Activations:
        pass

    def fail() -> None:
        held = Activations()
        alive.append(weakref.ref(held))
        raise torch.OutOfMemoryError(ALLOCATOR)

    alive: list[weakref.ref[Activations]] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: seen.append(alive[0]()))
    seen: list[Activations | None] = []
    with pytest.raises(OutOfMemoryError), catch_out_of_memory("it was loaded", "wait"):
        fail()
    assert seen == [None]


def test_pinned_memory_is_the_machines_own_whatever_cuda_says() -> None:
    with (
        pytest.raises(OutOfMemoryError, match="the machine's memory"),
        catch_out_of_memory("it was loaded", "wait"),
    ):
        raise RuntimeError("CUDA error: out of memory")  # from pin_memory(), by the line that failed
    with pytest.raises(OutOfMemoryError, match="the GPU's memory"), catch_out_of_memory("it was loaded", "wait"):
        raise RuntimeError("CUDA error: out of memory")


@pytest.mark.parametrize(
    ("values", "found", "advised"),
    [
        ({}, 3, "start again with memory.cpu_offload=idle"),
        ({"lora.rank": 8, "memory.cpu_offload": "idle"}, 3, "start again with rollout.max_num_seqs=3, which is slow"),
        (
            {"lora.rank": 8, "memory.cpu_offload": "idle"},
            0,
            "start again with rollout.max_completion_tokens=64, or take",
        ),
    ],
)
def test_no_room_for_a_few_sequences_names_what_is_left(
    values: dict[str, Any], found: int, advised: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(advice_of_plan, "present_gpu", lambda device: None)
    known = {"run.output": "nowhere", "model.path": "Qwen/Qwen2.5-0.5B"}
    config = with_settings(TrainConfig(), {**known, "rollout.max_completion_tokens": 256, **values})
    with pytest.raises(OutOfMemoryError) as error, advice_added(config, "completions were generated"):
        raise KvCacheError(size=2**30, available=int(8 * 2**30 / 0.9 * 0.4), fitting=found, required=8)
    assert advised in str(error.value)
    assert "a sequence needs 1 GiB while it is generated, and there are 3.6 GiB left, expected room for 8" in str(
        error.value
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("owner", "name", "what"),
    [
        (Policy, "load", "the checkpoint was loaded"),
        (policy, "save_model", "a checkpoint was saved"),
    ],
)
def test_loading_and_saving_a_checkpoint_without_memory_say_what_to_change(
    owner: Any, name: str, what: str, warm_model: Path, toy_task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def short(*args: Any, **kwargs: Any) -> None:
        raise torch.OutOfMemoryError(ALLOCATOR)

    monkeypatch.setattr(advice_of_plan, "present_gpu", lambda device: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    train(run_config(warm_model, toy_task, tmp_path, run__steps=1))
    config = resume_config(tmp_path / "run", {"run": {"steps": 2, "device": "auto"}})
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, short)
        with pytest.raises(OutOfMemoryError) as error, advise_on_out_of_memory(config):
            train(config, resume=True)
    assert str(error.value) == (
        f"the GPU's memory ran out while {what} (Tried to allocate 4.64 GiB); "
        "go on from the last checkpoint with --resume memory.cpu_offload=idle"
    )
    train(resume_config(tmp_path / "run", {"memory": {"cpu_offload": "idle"}}), resume=True)


def test_a_warm_start_without_memory_names_its_own_settings(
    toy_task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def short(*args: Any, **kwargs: Any) -> None:
        raise torch.OutOfMemoryError(ALLOCATOR)

    monkeypatch.setattr(sft, "_loss", short)
    words = ("--task", toy_task, "--output", str(tmp_path / "made"), "task.limit=5", "training.batch_size=8")
    code, _, told = call(capsys, "warmstart", *words, "run.device=cpu", "training.test_fraction=0.4")
    assert code == 2
    assert told.splitlines()[-1] == (
        "error: the GPU's memory ran out while the model was fine-tuned (Tried to allocate 4.64 GiB); give "
        "training.batch_size=4"
    )
    assert not (tmp_path / "made").exists()
