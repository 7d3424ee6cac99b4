"""Running out of memory, of which a run of one process tells no more than a line, and which changes no result."""

import re
from collections.abc import Callable
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
import torch

from tests.faults import Faults
from tests.trainer.runs import Configure, lines, short_run
from tests.trainer.samples import make_sample
from tinyzero_sdk.settings import read_toml
from tinyzero_trainer.advisor.workload import workload_of
from tinyzero_trainer.algorithms.schedules import StepSettings
from tinyzero_trainer.config.resume import resume_config
from tinyzero_trainer.controller.loop import train
from tinyzero_trainer.executors import local
from tinyzero_trainer.executors.micro_batch_halving import MicroBatchHalving
from tinyzero_trainer.training.build import TrainedModels
from tinyzero_trainer.training.critic import ValueModel
from tinyzero_trainer.training.logprobs import PolicyModel
from tinyzero_trainer.types import Rollout
from tinyzero_trainer.utils.oom import OutOfMemoryError

pytestmark = pytest.mark.slow

TOKENS = 64
FITS = 32
LINE = "the GPU's memory ran out (Tried to allocate 4.64 GiB): optimizer.micro_batch_tokens is 32 from here on, not 64"


def run_out(*_: Any) -> NoReturn:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 4.64 GiB. GPU 0 has a total capacity of 23.65")


@pytest.fixture
def configure(warm_model: Path, toy_task: str, tmp_path: Path) -> Configure:
    settings = {
        "run": {"task": toy_task, "steps": 2},
        "task__limit": 5,
        "optimizer": {"num_mini_batches": 2, "micro_batch_tokens": TOKENS},
        "rollout__return_logprobs": "sample",
        "algorithm__advantage_estimator": "gae",
        "critic__learning_rate": 1e-3,
        "checkpoint__every": 1,
    }
    return lambda name, **changes: short_run(warm_model, tmp_path / name, **settings | changes)


@pytest.mark.fault(
    "F9",
    "The GPU's memory runs out",
    made=(
        "a forward pass of more than 32 tokens raises torch.OutOfMemoryError, in policy or critic, with "
        "gradients or without"
    ),
    seen=(
        "the GPU's memory ran out (Tried to allocate 4.64 GiB): optimizer.micro_batch_tokens is 32 from here on, not 64"
    ),
    kept="everything: the pass is repeated with half the tokens, and the metrics are those of a run with 32",
)
def test_a_run_goes_on_with_half_the_tokens_and_the_same_metrics(
    fault_row: Faults, configure: Configure, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    half = train(configure("half", optimizer__micro_batch_tokens=FITS)).output
    for model, training in product((PolicyModel, ValueModel), (False, True)):
        forward: Callable[..., Any] = model.forward

        def too_much(
            self: Any, batch: Any, *args: Any, training: bool = training, forward: Any = forward, **options: Any
        ) -> Any:
            if batch.tokens.numel() > FITS and torch.is_grad_enabled() == training:
                run_out()
            return forward(self, batch, *args, **options)

        capsys.readouterr()
        with monkeypatch.context() as patch:
            patch.setattr(model, "forward", too_much)
            halved = train(configure(f"{model.__name__} {training}")).output
        printed = capsys.readouterr()
        assert (printed.out + printed.err).count(LINE) == 1
        fault_row.check(printed.out + printed.err)
        for ours, theirs in zip(lines(halved), lines(half), strict=True):
            assert ours == pytest.approx(theirs, rel=1e-3, abs=1e-5)
        assert read_toml(halved / "config.toml")["optimizer"]["micro_batch_tokens"] == FITS
        assert resume_config(halved, {"run": {"steps": 3}}).optimizer.micro_batch_tokens == FITS


@pytest.fixture
def said() -> list[str]:
    return []


def halving(
    configure: Configure, said: list[str], restart: Callable[[int], None] = lambda _: None
) -> MicroBatchHalving:
    return MicroBatchHalving(configure("run"), restart, said.append)


def rollouts(*lengths: int) -> list[Rollout]:
    return [make_sample(1, length - 1) for length in lengths]


def test_it_ends_where_the_longest_sequence_alone_is_too_much(configure: Configure, said: list[str]) -> None:
    restarted = list[int]()
    tried = halving(configure, said, restarted.append)
    with pytest.raises(OutOfMemoryError) as raised:
        tried.repeating(run_out)(rollouts(*[10] * 20))
    assert restarted == [32, 16, 8]
    assert raised.value.micro_batch_tokens == 8
    assert len(said) == 3


def test_the_first_half_is_of_what_the_pass_has(configure: Configure, said: list[str]) -> None:
    tried = halving(configure, said)
    with pytest.raises(OutOfMemoryError):
        tried.repeating(run_out)(rollouts(5, 4, 4))  # 15 tokens with padding
    assert re.findall(r"is (\d+) from here on, not (\d+)", "".join(said)) == [("7", "64"), ("3", "7")]


def test_more_of_the_hosts_memory_is_not_found_so(configure: Configure, said: list[str]) -> None:
    with pytest.raises(OutOfMemoryError, match="host memory"):
        halving(configure, said).repeating(lambda _: bytearray(2**62))(rollouts(5))
    assert not said


def test_memory_that_runs_out_while_ranks_restart_counts_too(configure: Configure, said: list[str]) -> None:
    def restart(tokens: int) -> None:
        if tokens > 16:
            run_out()

    fits = iter((False, True))
    tried = halving(configure, said, restart)
    assert tried.repeating(lambda _: next(fits) or run_out())(rollouts(*[10] * 20))
    assert (tried.tokens, len(said)) == (16, 2)


def test_the_largest_micro_batch_is_tried_out_until_it_fits(configure: Configure, said: list[str]) -> None:
    config, tried = configure("run", optimizer__micro_batch_tokens=2048, data__max_prompt_tokens=24), list[int]()

    def warm_up(settings: StepSettings, most: int, *, accumulates: bool) -> None:
        tried.append(most)
        if len(tried) < 3:
            run_out()

    language_model: Any = None
    policy: Any = SimpleNamespace(warm_up=warm_up, continue_with=lambda tokens: None)
    models = TrainedModels(language_model, policy, None, None)
    local.repeating_learners(config, models, torch.device("cuda"), said.append)
    whole = workload_of(config, config.data.max_prompt_tokens).micro_batch
    assert tried == [whole, whole // 2, whole // 4]
