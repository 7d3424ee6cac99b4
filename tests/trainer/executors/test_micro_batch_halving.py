"""The largest micro-batch is tried out at the start, and halved while a GPU's memory is too small for it."""

from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch

from tests.faults import Faults
from tests.trainer.runs import Configure, short_run
from tinyzero_trainer.distributed.fsdp import FsdpOptions, process_group
from tinyzero_trainer.distributed.workload import workload_of
from tinyzero_trainer.executors.micro_batch_halving import halve_until_it_fits
from tinyzero_trainer.training.build import build_trained_models
from tinyzero_trainer.training.logprobs import PolicyModel
from tinyzero_trainer.utils.oom import OutOfMemoryError


def run_out(*_: Any) -> NoReturn:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 4.64 GiB. GPU 0 has a total capacity of 23.65")


@pytest.fixture
def configure(warm_model: Path, toy_task: str, tmp_path: Path) -> Configure:
    settings = {
        "run": {"task": toy_task, "steps": 2},
        "task__limit": 5,
        "data__max_prompt_tokens": 24,
        "algorithm__advantage_estimator": "gae",
        "critic__learning_rate": 1e-3,
    }
    return lambda **changes: short_run(warm_model, tmp_path / "run", **settings | changes)


@pytest.mark.slow
@pytest.mark.fault(
    "F9",
    "The GPU's memory runs out at the start",
    made="in the trial of the largest micro-batch a pass of more than 64 tokens raises torch.OutOfMemoryError",
    seen="the GPU's memory ran out (Tried to allocate 4.64 GiB): optimizer.micro_batch_tokens is 64 from here on…",
    kept="everything: the run learns the same with smaller micro-batches",
)
def test_all_models_get_the_largest_micro_batch_that_fits(
    fault_row: Faults, configure: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, said, forward = configure(optimizer__micro_batch_tokens=128), list[str](), PolicyModel.forward

    def too_much(self: PolicyModel, batch: Any, **options: Any) -> Any:
        return run_out() if batch.tokens.numel() > 64 else forward(self, batch, **options)

    monkeypatch.setattr(PolicyModel, "forward", too_much)
    device = torch.device("cpu")
    with process_group(device):
        models = build_trained_models(config, FsdpOptions.of(config, device), checkpoint=None)
        assert halve_until_it_fits(config, partial(models.try_largest, config), said.append) == 64
    assert models.critic is not None
    assert models.policy.micro_batch_tokens == models.critic.micro_batch_tokens == 64
    fault_row.check(*said)


def test_the_first_half_is_of_what_a_step_has(configure: Configure) -> None:
    config, tried = configure(optimizer__micro_batch_tokens=2048), list[int]()
    whole = workload_of(config, config.data.max_prompt_tokens).micro_batch

    def try_out(tokens: int) -> None:
        tried.append(tokens)
        if len(tried) < 3:
            run_out()

    assert halve_until_it_fits(config, try_out, lambda _: None) == whole // 4
    assert tried == [2048, whole // 2, whole // 4]


def test_it_ends_where_the_longest_sequence_alone_is_too_much(configure: Configure) -> None:
    config, said = configure(optimizer__micro_batch_tokens=64), list[str]()
    with pytest.raises(OutOfMemoryError, match="the largest micro-batch was tried out") as raised:
        halve_until_it_fits(config, run_out, said.append)
    longest = workload_of(config, config.data.max_prompt_tokens).sequence
    assert raised.value.micro_batch_tokens is not None
    assert longest / 2 < raised.value.micro_batch_tokens <= longest
    assert len(said) == 1


def test_half_the_tokens_take_no_less_of_the_hosts_memory(configure: Configure) -> None:
    said = list[str]()
    with pytest.raises(OutOfMemoryError, match="host memory"):
        halve_until_it_fits(configure(), lambda _: bytearray(2**62), said.append)
    assert not said
