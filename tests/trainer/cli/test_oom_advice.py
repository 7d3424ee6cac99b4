"""A GPU that is too small: the advice in the error, and that the run resumes with it."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.configurations import call, changed
from tests.trainer.runs import Configure, short_run
from tinyzero_sdk.settings import build, merge, parse_overrides, to_mapping
from tinyzero_trainer.advisor import advice as plan_advice
from tinyzero_trainer.cli.oom_advice import advice_for, advise_on_out_of_memory
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.config.resume import resume_config
from tinyzero_trainer.config.settings import with_settings
from tinyzero_trainer.controller.loop import train
from tinyzero_trainer.distributed import fsdp
from tinyzero_trainer.distributed.workload import workload_of
from tinyzero_trainer.rollout import TorchEngine
from tinyzero_trainer.rollout.torch.cuda_graph.kv_capacity import KvCacheError
from tinyzero_trainer.training import policy
from tinyzero_trainer.training.critic import Critic
from tinyzero_trainer.training.policy import Policy
from tinyzero_trainer.utils.oom import OutOfMemoryError

MICRO_BATCHES = ("log-probabilities and values were computed", "the weights were updated")
RESUME = "; resume from the last checkpoint with --resume "


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_advice, "present_gpu", lambda device: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def run_out(*_: Any, **__: Any) -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 4.64 GiB. GPU 0 has a total capacity of 23.65")


@pytest.fixture
def configure(warm_model: Path, toy_task: str, tmp_path: Path) -> Configure:
    settings = {
        "run": {"task": toy_task, "steps": 3},
        "task__limit": 5,
        "data__prompts_per_step": 2,
        "rollout": {"group_size": 2, "return_logprobs": "sample"},
        "optimizer__num_mini_batches": 2,
        "eval__num_problems": 4,
        "checkpoint__every": 1,
    }
    return lambda **changes: short_run(warm_model, tmp_path / "run", **settings | changes)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("owner", "name", "phase"),
    [
        (Policy, "logprobs", "log-probabilities and values were computed"),
        (Critic, "values", "log-probabilities and values were computed"),
        (policy, "policy_objective", "the weights were updated"),
        (Critic, "update", "the weights were updated"),
        (TorchEngine, "generate", "completions were generated"),
        (TorchEngine, "load_weights", "the rollout engine took over the weights"),
        (policy, "save_model", "a checkpoint was saved"),
        (Policy, "load", "the checkpoint was loaded"),
    ],
)
@pytest.mark.fault(
    "F9",
    "The GPU's memory runs out in a step",
    made="torch.OutOfMemoryError in each phase",
    seen=(
        "the GPU's memory ran out while … (Tried to allocate 4.64 GiB); resume from the last checkpoint with "
        "--resume …=…"
    ),
    kept="the newest checkpoint, from which the run goes on with the settings named",
    code=2,
)
def test_the_run_resumes_with_what_is_advised(fault_row, owner, name, phase, configure, tmp_path, monkeypatch):
    gae = {"algorithm__advantage_estimator": "gae"} if owner is Critic else {}
    config = configure(run__device="auto", **gae)
    resume = name == "load"
    if resume:
        train(changed(to_mapping(config), {"run__steps": 1}))
        config = resume_config(tmp_path / "run", {"run": {"steps": 3}})
    function = getattr(owner, name)

    def after_a_step(*args: Any, **kwargs: Any) -> Any:
        return (run_out if (tmp_path / "run/checkpoints/step_1").exists() else function)(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, after_a_step)
        with pytest.raises(OutOfMemoryError) as error, advise_on_out_of_memory(config):
            train(config, resume=resume)
    message, _, advice = str(error.value).partition(RESUME)
    assert message == f"the GPU's memory ran out while {phase} (Tried to allocate 4.64 GiB)"
    assert not torch.distributed.is_initialized()
    fault_row.check(error.value)
    assert ("optimizer.micro_batch_tokens=" in advice) == (phase in MICRO_BATCHES)
    train(resume_config(tmp_path / "run", parse_overrides(advice.split())), resume=True)
    assert (tmp_path / "run/checkpoints/step_3").exists()


@pytest.mark.slow
def test_a_run_without_a_checkpoint_starts_again_with_what_is_advised(configure, monkeypatch):
    config = configure()
    with monkeypatch.context() as patch:
        patch.setattr(fsdp, "fully_shard", run_out)
        with (
            pytest.raises(OutOfMemoryError, match="while the models were loaded") as error,
            advise_on_out_of_memory(config),
        ):
            train(config)
    advice = str(error.value).partition("; start again with ")[2]
    assert train(build(TrainConfig, merge(to_mapping(config), parse_overrides(advice.split())))).accuracy


def test_half_the_micro_batch_is_of_what_a_step_has_and_no_sequence_is_cut(configure):
    config = configure()
    whole, completion = workload_of(config, config.data.max_prompt_tokens).micro_batch, 8
    assert config.rollout.max_completion_tokens == completion < whole
    for phase in MICRO_BATCHES:
        error = OutOfMemoryError(phase)
        for error.micro_batch_tokens, half in ((2**20, whole // 2), (completion + 2, completion // 2 + 1)):
            assert advice_for(error, config) == f"start again with optimizer.micro_batch_tokens={half}"
        error.micro_batch_tokens = completion
        assert "micro_batch_tokens" not in advice_for(error, config)


@pytest.mark.parametrize(
    ("offload", "advice"),
    [
        ("idle", "start again with memory.cpu_offload=none, or end other programs"),
        (None, "end other programs, or take a smaller model or a machine with more memory"),
    ],
)
def test_advice_for_host_memory(offload: str | None, advice: str) -> None:
    config = changed({"run": {"task": "countdown", "output": "out"}}, {"memory__cpu_offload": offload})
    assert advice_for(OutOfMemoryError("it was loaded", on_host=True), config).startswith(advice)


@pytest.mark.parametrize(
    ("values", "fitting", "advice"),
    [
        ({}, 3, "start again with memory.cpu_offload=idle"),
        ({"lora.rank": 8, "memory.cpu_offload": "idle"}, 3, "start again with rollout.max_num_seqs=3, which is slow"),
        (
            {"lora.rank": 8, "memory.cpu_offload": "idle"},
            0,
            "start again with a lower rollout.max_comp",
        ),
    ],
)
def test_advice_for_too_few_sequences(values: dict[str, Any], fitting: int, advice: str) -> None:
    known = {"run.output": "nowhere", "model.path": "Qwen/Qwen2.5-0.5B", "rollout.max_completion_tokens": 256}
    config = with_settings(TrainConfig(), {**known, **values})
    error = KvCacheError(size=2**30, available=int(8 * 2**30 / 0.9 * 0.4), fitting=fitting, required=8)
    error.phase = "completions were generated"
    assert advice_for(error, config).startswith(advice)
    assert "a sequence needs 1 GiB while it is generated, and there are 3.6 GiB left, expected room for 8" in str(error)


@pytest.mark.slow
def test_fine_tuning_names_settings_that_it_has(toy_task, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(policy, "policy_objective", run_out)
    words = ("--task", toy_task, "--output", str(tmp_path / "made"), "task.limit=5", "new_model.hidden_size=32")
    words += ("run.device=cpu", "run.steps=2", "data.batch_size=8", "data.prompt_template=base", "eval.num_problems=2")
    code, _, error = call(capsys, "sft", *words, "data.test_fraction=0.4", "rollout.max_completion_tokens=4")
    assert code == 2
    assert error.splitlines()[-1].startswith(
        "error: the GPU's memory ran out while the weights were updated (Tried to allocate 4.64 GiB); start again "
        "with optimizer.micro_batch_tokens="
    )
