"""An update on examples is one of cross-entropy: transformers' own loss, and a step of AdamW written by hand."""

import copy
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.trainer.samples import mixed_lengths
from tinyzero_trainer.config import OptimizerConfig
from tinyzero_trainer.config.algorithm import Layout
from tinyzero_trainer.config.sft import SftConfig, compose_sft
from tinyzero_trainer.controller.heldout_eval import HeldOutEvaluation
from tinyzero_trainer.controller.state import TrainerState
from tinyzero_trainer.models.loading import LanguageModel
from tinyzero_trainer.monitoring.metrics_log import LOSS
from tinyzero_trainer.sft.step import CALIBRATION_STEPS, SftEvaluation, SftStep, loss_of
from tinyzero_trainer.training.policy import Policy
from tinyzero_trainer.types import Rollout
from tinyzero_trainer.utils.signals import StopFlag


def configure(**groups: Any) -> SftConfig:
    return compose_sft({"tasks": {"countdown": {}}, "run": {"steps": 4, "device": "cpu"}, **groups})


def policy_of(model: LanguageModel, config: SftConfig) -> Policy:
    made = config.workers_config
    return Policy(model, algorithm=made.algorithm, optimizer=made.optimizer, max_tokens=8, reference=None)


def step_of(policy: Policy, config: SftConfig, batches: Sequence[list[Rollout]], state: TrainerState) -> SftStep:
    idle = SimpleNamespace(sleep=lambda: None)
    display = SimpleNamespace(extend=lambda steps: None, warn=print, activity=nullcontext)
    workers: Any = SimpleNamespace(policy=policy, engine=idle, language_model=policy.language_model, display=display)
    return SftStep(config, workers, iter(batches), state)


def transformers_loss(model: torch.nn.Module, examples: Sequence[Rollout]) -> torch.Tensor:
    """What transformers computes itself of the examples as one padded batch, whose prompts are labelled -100."""
    sequences = [example.prompt.token_ids + example.generation.token_ids for example in examples]
    longest = max(map(len, sequences))
    tokens, mask = torch.zeros(2, len(examples), longest, dtype=torch.long)
    labels = torch.full_like(tokens, -100)
    for row, (example, sequence) in enumerate(zip(examples, sequences, strict=True)):
        tokens[row, : len(sequence)], mask[row, : len(sequence)] = torch.tensor(sequence), 1
        labels[row, len(example.prompt.token_ids) : len(sequence)] = torch.tensor(example.generation.token_ids)
    return model(input_ids=tokens, attention_mask=mask, labels=labels).loss


@pytest.mark.parametrize("packing", ["packed", "padded"])
def test_a_step_is_one_of_adamw_on_transformers_own_loss(toy_model: LanguageModel, packing: Layout) -> None:
    examples, theirs = mixed_lengths(), copy.deepcopy(toy_model.model)
    settings = {"packing": packing, "micro_batch_tokens": 40, "learning_rate": 1e-3, "warmup_steps": 0}
    config = configure(optimizer={**settings, "weight_decay": 0.1, "max_grad_norm": 0.5})
    policy = policy_of(toy_model, config)
    loss = transformers_loss(theirs, examples)
    assert loss_of(policy, examples) == pytest.approx(loss.item(), abs=1e-5)

    _, metrics = step_of(policy, config, [examples], TrainerState()).take(1)
    assert metrics[LOSS] == pytest.approx(loss.item(), abs=1e-5)
    optimizer: OptimizerConfig = config.optimizer
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(theirs.parameters(), 0.5)
    assert metrics["train/grad_norm"] == pytest.approx(norm.item(), rel=1e-4)
    for ours, parameter in zip(toy_model.model.parameters(), theirs.parameters(), strict=True):
        gradient, rate = parameter.grad, metrics["train/lr"]
        first = gradient  # both moments, corrected for their start at 0
        second = gradient.square()
        decay = rate * 0.1 * parameter if parameter.ndim > 1 else 0.0
        expected = parameter - decay - rate * first / (second.sqrt() + 1e-8)
        assert torch.allclose(ours, expected, atol=rate * 0.02), optimizer.beta2


@pytest.mark.slow
def test_seconds_set_the_number_of_steps(toy_model: LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step takes two seconds, the first ones ten: a minute counts from the end of the first."""
    from tinyzero_trainer.sft import step as module

    times = iter([10.0 * step for step in range(1, 10)] + [90 + 2.0 * step for step in range(1, 100)])
    monkeypatch.setattr(module, "perf_counter", lambda: next(times))
    config = configure(run={"seconds": 200, "device": "cpu"}, optimizer={"warmup_steps": 0})
    step = step_of(policy_of(toy_model, config), config, [mixed_lengths()] * 30, TrainerState())
    for number in range(1, CALIBRATION_STEPS + 2):
        step.take(number)
    assert step.last == CALIBRATION_STEPS + (200 - (112 - 10)) / 2
    resumed = step_of(step.policy, config, [], TrainerState(step=30, elapsed_s=100))
    assert resumed.last == 60


def test_the_warm_up_is_at_most_a_tenth_of_a_run_of_so_many_seconds(toy_model: LanguageModel) -> None:
    rates = {}
    for run in ({"seconds": 9, "device": "cpu"}, {"steps": 40, "device": "cpu"}):
        config = configure(run=run, optimizer={"warmup_steps": 20, "learning_rate": 1e-3, "lr_schedule": "constant"})
        step = step_of(policy_of(toy_model, config), config, [mixed_lengths()], TrainerState())
        step.last, step._times = 40, None  # as once the time of a step is known
        rates[next(iter(run))] = step.take(3)[1]["train/lr"]
    assert rates == {"seconds": pytest.approx(3 / 4 * 1e-3), "steps": pytest.approx(3 / 20 * 1e-3)}


@pytest.mark.parametrize("step", [0, 3])
def test_an_engine_that_slept_during_the_loss_has_the_weights_before_it_generates(
    step: int, toy_model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls, config = list[str](), configure()
    monkeypatch.setattr(HeldOutEvaluation, "run", lambda *_, **__: calls.append("generate") or {})
    ignored = SimpleNamespace(phase=lambda *_: None, held_out=lambda *_: None, activity=nullcontext)
    engine = SimpleNamespace(**{name: partial(calls.append, name) for name in ("sleep", "load_weights")})
    tasks: Any = {
        "countdown": SimpleNamespace(
            task=SimpleNamespace(is_async=False),
            prompts=SimpleNamespace(held_out=lambda count: [None] * count),
            pool=None,
        )
    }
    workers: Any = SimpleNamespace(policy=policy_of(toy_model, config), engine=engine, display=ignored)
    SftEvaluation(config.workers_config, workers, tasks, StopFlag(), mixed_lengths()).run(step, last=4)
    assert calls == ["sleep", "load_weights", "generate"]
