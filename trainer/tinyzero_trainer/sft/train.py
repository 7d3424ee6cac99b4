"""Warm start: teach a small decoder to attempt a task, from the task's own fallible demonstrations.

Reinforcement learning finds nothing in a model that never succeeds. A demonstration shows how an attempt is
written and searched for, not how to be right: what it gets wrong is left for reinforcement learning to mend.
"""

import shlex
import shutil
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, cast

import numpy as np
import tomli_w
import torch
import torch.nn.functional as F
from torch import Tensor

from tinyzero_sdk import Task
from tinyzero_sdk.errors import TinyZeroError
from tinyzero_sdk.evaluation.protocol import EvaluationResult
from tinyzero_sdk.seeds import derive_seed
from tinyzero_sdk.settings import merge, to_mapping
from tinyzero_sdk.workers.process import count_cores
from tinyzero_trainer.algorithms.schedules import decayed, warmed_up
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.config.compose import compose
from tinyzero_trainer.config.model_defaults import PRESET_FILE, recorded_content
from tinyzero_trainer.config.sft import SftConfig, SftTrainingConfig
from tinyzero_trainer.config.tasks import load_tasks
from tinyzero_trainer.controller.heldout_eval import evaluate
from tinyzero_trainer.executors.build import build_workers
from tinyzero_trainer.models.device import choose_device
from tinyzero_trainer.models.loading import LanguageModel, from_parts, save_model
from tinyzero_trainer.monitoring.progress import Progress
from tinyzero_trainer.rollout import SamplingParams
from tinyzero_trainer.sft.dataset import BatchSource, PackedBatch, batch_stream
from tinyzero_trainer.sft.tiny_model import build_model, build_tokenizer
from tinyzero_trainer.utils.oom import catch_out_of_memory
from tinyzero_trainer.utils.signals import StopFlag

FINAL_RATE_SHARE = 0.1
NOTE_EVERY = 200
_GRAIN = 1_000_000  # parts that a share of the time is counted in
_MOST_WORKERS = 12
_LINES_COMPILED = 16  # compiled layers meet few shapes, if the number of lines is a multiple of it

CARD_FILE = "README.md"
SETTINGS_FILE = "warmstart.toml"
"""`tinyzero warmstart --config` takes it to make the model again."""


@dataclass(frozen=True, slots=True)
class SftResult:
    """What a warm start made."""

    output: Path
    """Directory that transformers, vLLM and `--model` load."""

    evaluations: dict[str, EvaluationResult]
    """Held-out accuracy on each task, sampled at temperature 1."""

    summary: str
    """One line for the user."""


@dataclass(frozen=True, slots=True)
class Learnt:
    """What a model was trained on."""

    tokens: int
    """Of demonstrations."""

    demonstrations: int
    """How many were drawn."""


def warm_start(config: SftConfig, *, display: Progress, stop: StopFlag) -> SftResult:
    """Train a small decoder on demonstrations of a task, or several, and save it with its settings and a model card.

    Raises:
        TinyZeroError: a task gives no demonstrations, or the directory exists.
    """
    output, started = Path(config.run.output), perf_counter()
    if output.exists():
        raise TinyZeroError(f"{output} exists already; give a new directory with --output")
    compose({}, config.settings, needs_task=False)  # impossible settings stop here, not in the run that uses them
    tasks = load_tasks(config.task_specs)
    tokenizer = build_tokenizer()
    model = build_model(config.model, tokenizer, derive_seed("weights", config.run.seed))
    language_model = from_parts(" and ".join(tasks), model, tokenizer)
    with catch_out_of_memory("the model learnt from demonstrations", _smaller(config)):
        model.to(choose_device(config.run.device))  # type: ignore[arg-type]  # as in `load_model`
        learnt = _train(config, tasks, language_model, display, stop)
    seconds = perf_counter() - started
    output.mkdir(parents=True)
    try:
        return _finish(config, language_model, tasks, learnt, seconds, display=display, stop=stop)
    except (KeyboardInterrupt, SystemExit):
        shutil.rmtree(output, ignore_errors=True)
        raise


def _finish(
    config: SftConfig,
    language_model: LanguageModel,
    tasks: Mapping[str, Task],
    learnt: Learnt,
    seconds: float,
    *,
    display: Progress,
    stop: StopFlag,
) -> SftResult:
    """Save what was learnt, see what it can do, and say so on the card."""
    output = Path(config.run.output)
    save_model(output, language_model)
    preset = recorded_content({spec.task: spec.options for spec in config.task_specs}, _settings(config))
    (output / PRESET_FILE).write_text(tomli_w.dumps(preset), encoding="utf-8")
    (output / SETTINGS_FILE).write_text(tomli_w.dumps(_to_make_it_again(config)), encoding="utf-8")
    train_config = _train_config(config)
    advice = f"the model is made all the same: tinyzero train --model {shlex.quote(str(output))}"
    with catch_out_of_memory("held-out problems were tried", advice):
        results = _evaluate(train_config, display=display, stop=stop)
    card = _model_card(config, language_model, tasks, learnt, seconds, results)
    (output / CARD_FILE).write_text(card, encoding="utf-8")
    return SftResult(output, results, f"{output}: {_found(results)}, {seconds:.0f} s")


def _evaluate(config: TrainConfig, *, display: Progress, stop: StopFlag) -> dict[str, EvaluationResult]:
    """Accuracy on the held-out problems of each task, sampled at temperature 1."""
    params, results = SamplingParams(config.rollout.max_completion_tokens), dict[str, EvaluationResult]()
    with build_workers(config, display=display, training=False) as workers:
        for name, task in workers.tasks.items():
            prompts = task.prompts.held_out(config.eval.num_problems)
            display.phase(f"evaluating on {name}", len(prompts), "completions")
            results[name] = evaluate(workers, prompts, params, seed=config.run.seed, stop=stop)
        display.end_phase()
    return results


def _smaller(config: SftConfig) -> str:
    """What to type where memory is too small to learn in."""
    size, layers = config.training.batch_size, config.model.layers
    if size > 1:
        return f"give training.batch_size={size // 2}"
    return f"give model.layers={layers // 2}" if layers > 1 else "give a smaller model.hidden_size"


def _settings(config: SftConfig) -> dict[str, object]:
    """What training on from this model should start with; the user's own settings go on top."""
    training = config.training
    suiting = {
        "data": {"prompt_template": training.template, "test_fraction": training.test_fraction},
        # In process they cost nothing, and save a pass over the batch.
        "rollout": {"max_completion_tokens": training.max_tokens, "return_logprobs": "always"},
        "eval": {"num_problems": training.eval_size, "num_problems_during": training.eval_size},
    }
    return merge(suiting, config.settings)


def _train_config(config: SftConfig) -> TrainConfig:
    """Of a run that trains on from this model."""
    return compose({"tasks": config.tasks, "model": {"path": config.run.output}}, _settings(config)).config


def _to_make_it_again(config: SftConfig) -> dict[str, Any]:
    """All settings but the directory and the device."""
    return to_mapping(config) | {"run": {"seed": config.run.seed}}


def _found(results: Mapping[str, EvaluationResult]) -> str:
    return "held-out accuracy " + ", ".join(
        f"{result.accuracy:.1%} on {result.problems} problems{f' of {name}' if len(results) > 1 else ''}"
        for name, result in results.items()
    )


def _train(
    config: SftConfig, tasks: Mapping[str, Task], language_model: LanguageModel, display: Progress, stop: StopFlag
) -> Learnt:
    """Take all optimiser steps."""
    training, model = config.training, language_model.model
    on_gpu = model.device.type == "cuda"
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=training.learning_rate, betas=(0.9, 0.98), weight_decay=0.0, fused=on_gpu
    )
    network: Callable[..., Any] = torch.compile(model.base_model) if training.compile else model.base_model
    source = BatchSource(config, tuple(tasks.values()), multiple=_LINES_COMPILED if training.compile else 1)
    course = _Course(training, display, f"warm start on demonstrations of {' and '.join(tasks)}")
    model.train()
    trained_tokens = 0
    with closing(batch_stream(source, _workers(training, on_gpu=on_gpu))) as batches:
        while course.goes_on():
            if stop.requested:
                raise KeyboardInterrupt
            batch = next(batches)
            for group in optimizer.param_groups:
                group["lr"] = learning_rate(training, course.step, course.share)
            loss = _loss(network, cast(Callable[[Tensor], Tensor], model.get_output_embeddings()), batch, model.device)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            trained_tokens += len(batch.predicts)
            course.end_step(loss)
    display.end_phase()
    return Learnt(tokens=trained_tokens, demonstrations=course.step_count * training.batch_size)


def _loss(
    network: Callable[..., Any], head: Callable[[Tensor], Tensor], batch: PackedBatch, device: torch.device
) -> Tensor:
    """Mean cross-entropy of the tokens to learn. Nothing is fetched from the device, so that it never waits."""
    tokens, owners, positions, predicts = (
        _to_device(array, device) for array in (batch.tokens, batch.owners, batch.positions, batch.predicts)
    )
    targets = _to_device(batch.tokens.ravel()[batch.predicts + 1], device)  # [learnt]
    length = tokens.shape[1]
    causal = torch.ones(length, length, dtype=torch.bool, device=device).tril()
    mask = (owners[:, None, :, None] == owners[:, None, None, :]) & causal  # [lines, 1, length, length]
    with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        states = network(
            input_ids=tokens.long(), attention_mask=mask, position_ids=positions.long(), use_cache=False
        ).last_hidden_state
        logits = head(states.flatten(0, 1)[predicts])  # [learnt, vocabulary]
    return F.cross_entropy(logits.float(), targets.long())


def _to_device(array: np.ndarray, device: torch.device) -> Tensor:
    tensor = torch.from_numpy(np.ascontiguousarray(array))
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor


def _workers(training: SftTrainingConfig, *, on_gpu: bool) -> int:
    if training.workers is not None:
        return training.workers
    return min(_MOST_WORKERS, max(1, count_cores() - 1)) if on_gpu else 0


class _Course:
    """How far the training has come, in steps or in seconds; shows it."""

    def __init__(self, training: SftTrainingConfig, display: Progress, title: str) -> None:
        self._training, self._display = training, display
        total, unit = (training.steps, "steps") if training.seconds is None else (round(training.seconds), "seconds")
        display.phase(title, total, unit)
        self.step_count = 0  # steps done
        self._began: float | None = None
        self._shown = 0

    @property
    def step(self) -> int:
        """The present step, counted from 1."""
        return self.step_count + 1

    @property
    def seconds(self) -> float:
        """Since the first step was done, with its waiting and compiling."""
        return 0.0 if self._began is None else perf_counter() - self._began

    @property
    def share(self) -> float | None:
        """Of the time; None where steps are counted."""
        return None if self._training.seconds is None else min(1.0, self.seconds / self._training.seconds)

    def goes_on(self) -> bool:
        """Whether another step is due."""
        return self.step_count < self._training.steps if self.share is None else self.share < 1

    def end_step(self, loss: Tensor) -> None:
        """Count a step."""
        self.step_count += 1
        if self._began is None:
            loss.item()
            self._began = perf_counter()
        if self.step_count % NOTE_EVERY == 0:
            self._display.log(f"step {self.step_count}: loss {loss.item():.4f}")
        done = self.step_count if self.share is None else int(min(self.seconds, self._training.seconds or 0))
        self._display.advance(done - self._shown)
        self._shown = done


def learning_rate(training: SftTrainingConfig, step: int, share: float | None = None) -> float:
    """Linear warm-up, then a cosine from the peak, at its end, down to a tenth.

    Args:
        training: the settings.
        step: counted from 1.
        share: of the time that has gone by, where that is given instead of steps; the cosine is over all of it.
    """
    peak, past = training.learning_rate, training.warmup_steps - 1
    at, of = (step - past, training.steps - past) if share is None else (1 + round(share * _GRAIN), 1 + _GRAIN)
    rate = decayed(peak, FINAL_RATE_SHARE * peak, at, of, "cosine")
    return min(rate, warmed_up(peak, step, training.warmup_steps))


def _model_card(
    config: SftConfig,
    language_model: LanguageModel,
    tasks: Mapping[str, Task],
    learnt: Learnt,
    seconds: float,
    results: Mapping[str, EvaluationResult],
) -> str:
    parameters = sum(parameter.numel() for parameter in language_model.model.parameters())
    device = language_model.model.device
    threads = f"{torch.get_num_threads()} CPU threads"
    machine = torch.cuda.get_device_name(device) if device.type == "cuda" else threads
    demonstrations = f"{learnt.demonstrations:,} demonstrations"
    weights = {name: spec.weight for name, spec in zip(tasks, config.task_specs, strict=True)}
    if len(tasks) > 1:
        demonstrations += f", {' : '.join(f'{weight:g}' for weight in weights.values())}"
    measured = []
    for name, result in results.items():
        of = f", {name}" if len(results) > 1 else ""
        accuracy = f"{result.accuracy:.1%} ± {result.standard_error:.1%}, {result.problems:,} problems, temperature 1"
        measured.append(f"| held-out accuracy{of} | {accuracy} |")
        measured.append(f"| mean completion{of} | {result.mean_length:.0f} tokens |")
    return f"""# A tiny decoder, warm-started on {" and ".join(tasks)}

Qwen2 architecture, {parameters:,} parameters, {len(language_model.tokenizer):,} tokens (numbers up to 999 and
answer tags whole, everything else bytes). It knows nothing but the form of the demonstrations: it attempts
a problem, often wrongly, and is meant as the start of reinforcement learning.

| | |
|---|---|
| made by | `tinyzero warmstart --config {SETTINGS_FILE}` |
| task | {", ".join(f"{name} {task.version}" for name, task in tasks.items())} |
| learnt from | {learnt.tokens:,} tokens of {demonstrations} |
| time | {seconds:.0f} s on {machine}, torch {torch.__version__} |
{chr(10).join(measured)}
"""
