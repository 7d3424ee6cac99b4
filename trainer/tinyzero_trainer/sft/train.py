"""Supervised fine-tuning: teach a small new decoder to attempt a task, from the task's own fallible demonstrations.

Reinforcement learning finds nothing in a model that never succeeds. A demonstration shows how an attempt is written
and searched for, not how to be right: reinforcement learning corrects what it gets wrong.
"""

import shlex
import shutil
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, cast

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
from tinyzero_trainer.training.micro_batches import array_to_device
from tinyzero_trainer.utils.oom import catch_out_of_memory
from tinyzero_trainer.utils.signals import StopFlag

FINAL_LEARNING_RATE = 0.1  # of the peak
LOG_EVERY = 200
_MAX_WORKERS = 12
_ROWS_COMPILED = 16  # compiled layers see few shapes if the number of rows is a multiple of it

CARD_FILE = "README.md"
SETTINGS_FILE = "warmstart.toml"
"""`tinyzero warmstart --config` takes it to make the model again."""


@dataclass(frozen=True, slots=True)
class SftResult:
    output: Path
    """Directory that transformers, vLLM and `--model` load."""

    evaluations: dict[str, EvaluationResult]
    summary: str


def fine_tune(config: SftConfig, *, progress: Progress, stop: StopFlag) -> SftResult:
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
    with catch_out_of_memory("the model was fine-tuned", _advice(config)):
        model.to(choose_device(config.run.device))  # type: ignore[arg-type]  # as in `load_model`
        trained_on = _train(config, tasks, language_model, progress, stop)
    seconds = perf_counter() - started
    output.mkdir(parents=True)
    try:
        save_model(output, language_model)
        defaults = _run_defaults(config)
        recorded = recorded_content({spec.task: spec.options for spec in config.task_specs}, defaults)
        (output / PRESET_FILE).write_text(tomli_w.dumps(recorded), encoding="utf-8")
        settings = to_mapping(config) | {"run": {"seed": config.run.seed}}
        (output / SETTINGS_FILE).write_text(tomli_w.dumps(settings), encoding="utf-8")
        run_config = compose({"tasks": config.tasks, "model": {"path": config.run.output}}, defaults).config
        advice = f"the model is saved all the same: tinyzero train --model {shlex.quote(str(output))}"
        with catch_out_of_memory("held-out problems were evaluated", advice):
            results = _evaluate(run_config, progress, stop)
        card = _model_card(config, language_model, tasks, trained_on, seconds, results)
        (output / CARD_FILE).write_text(card, encoding="utf-8")
    except (KeyboardInterrupt, SystemExit):
        shutil.rmtree(output, ignore_errors=True)
        raise
    accuracies = ", ".join(
        f"{result.accuracy:.1%} on {result.problems} problems{f' of {name}' if len(results) > 1 else ''}"
        for name, result in results.items()
    )
    return SftResult(output, results, f"{output}: held-out accuracy {accuracies}, {seconds:.0f} s")


def _evaluate(config: TrainConfig, progress: Progress, stop: StopFlag) -> dict[str, EvaluationResult]:
    params, results = SamplingParams(config.rollout.max_completion_tokens), dict[str, EvaluationResult]()
    with build_workers(config, display=progress, training=False) as workers:
        for name, task in workers.tasks.items():
            prompts = task.prompts.held_out(config.eval.num_problems)
            progress.phase(f"evaluating on {name}", len(prompts), "completions")
            results[name] = evaluate(workers, prompts, params, seed=config.run.seed, stop=stop)
        progress.end_phase()
    return results


def _advice(config: SftConfig) -> str:
    size, layers = config.training.batch_size, config.model.layers
    if size > 1:
        return f"give training.batch_size={size // 2}"
    return f"give model.layers={layers // 2}" if layers > 1 else "give a smaller model.hidden_size"


def _run_defaults(config: SftConfig) -> dict[str, object]:
    training = config.training
    defaults = {
        "data": {"prompt_template": training.template, "test_fraction": training.test_fraction},
        # In process they cost nothing, and save a pass over the batch.
        "rollout": {"max_completion_tokens": training.max_tokens, "return_logprobs": "always"},
        "eval": {"num_problems": training.eval_size, "num_problems_during": training.eval_size},
    }
    return merge(defaults, config.settings)


def _train(
    config: SftConfig, tasks: Mapping[str, Task], language_model: LanguageModel, progress: Progress, stop: StopFlag
) -> tuple[int, int]:
    """Take all optimizer steps, for a number of them or for some seconds; the tokens and examples trained on."""
    training, model = config.training, language_model.model
    on_gpu = model.device.type == "cuda"
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=training.learning_rate, betas=(0.9, 0.98), weight_decay=0.0, fused=on_gpu
    )
    network: Callable[..., Any] = torch.compile(model.base_model) if training.compile else model.base_model
    head = cast(Callable[[Tensor], Tensor], model.get_output_embeddings())
    source = BatchSource(config, tuple(tasks.values()), multiple=_ROWS_COMPILED if training.compile else 1)
    workers = training.workers
    if workers is None:
        workers = min(_MAX_WORKERS, max(1, count_cores() - 1)) if on_gpu else 0
    total, unit = (training.steps, "steps") if training.seconds is None else (round(training.seconds), "seconds")
    progress.phase(f"fine-tuning on demonstrations of {' and '.join(tasks)}", total, unit)
    model.train()
    step = tokens = shown = 0
    started: float | None = None  # the end of the first step, which compiles and waits for workers
    with closing(batch_stream(source, workers)) as batches:
        while True:
            seconds = 0.0 if started is None else perf_counter() - started
            done = step if training.seconds is None else min(seconds, training.seconds)
            progress.advance(int(done) - shown)
            shown = int(done)
            if done >= (training.seconds or training.steps):
                break
            if stop.requested:
                raise KeyboardInterrupt
            batch = next(batches)
            for group in optimizer.param_groups:
                elapsed = None if training.seconds is None else done / training.seconds
                group["lr"] = learning_rate(training, step + 1, elapsed)
            loss = _loss(network, head, batch, model.device)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            step, tokens = step + 1, tokens + len(batch.predicts)
            if started is None:
                loss.item()
                started = perf_counter()
            if step % LOG_EVERY == 0:
                progress.log(f"step {step}: loss {loss.item():.4f}")
    progress.end_phase()
    return tokens, step * training.batch_size


def _loss(
    network: Callable[..., Any], head: Callable[[Tensor], Tensor], batch: PackedBatch, device: torch.device
) -> Tensor:
    """Mean cross-entropy of the target tokens. Nothing is fetched from the device, so that it never waits."""
    tokens, owners, positions, predicts = (
        array_to_device(array, device) for array in (batch.tokens, batch.owners, batch.positions, batch.predicts)
    )
    targets = array_to_device(batch.tokens.ravel()[batch.predicts + 1], device)  # [trained]
    length = tokens.shape[1]
    causal = torch.ones(length, length, dtype=torch.bool, device=device).tril()
    mask = (owners[:, None, :, None] == owners[:, None, None, :]) & causal  # [rows, 1, length, length]
    with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        states = network(
            input_ids=tokens.long(), attention_mask=mask, position_ids=positions.long(), use_cache=False
        ).last_hidden_state
        logits = head(states.flatten(0, 1)[predicts])  # [trained, vocabulary]
    return F.cross_entropy(logits.float(), targets.long())


def learning_rate(training: SftTrainingConfig, step: int, elapsed: float | None = None) -> float:
    """Linear warm-up, then a cosine down to a tenth, over all steps (1-based) or the `elapsed` fraction of the time."""
    peak, past, parts = training.learning_rate, training.warmup_steps - 1, 1_000_000
    at, of = (step - past, training.steps - past) if elapsed is None else (1 + round(elapsed * parts), 1 + parts)
    rate = decayed(peak, FINAL_LEARNING_RATE * peak, at, of, "cosine")
    return min(rate, warmed_up(peak, step, training.warmup_steps))


def _model_card(
    config: SftConfig,
    language_model: LanguageModel,
    tasks: Mapping[str, Task],
    trained_on: tuple[int, int],
    seconds: float,
    results: Mapping[str, EvaluationResult],
) -> str:
    device, several = language_model.model.device, len(tasks) > 1
    on_gpu = device.type == "cuda"
    machine = torch.cuda.get_device_name(device) if on_gpu else f"{torch.get_num_threads()} CPU threads"
    tokens, examples = trained_on
    weights = f", {' : '.join(f'{spec.weight:g}' for spec in config.task_specs)}" if several else ""
    measured = []
    for name, result in results.items():
        of = f", {name}" if several else ""
        accuracy = f"{result.accuracy:.1%} ± {result.standard_error:.1%}, {result.problems:,} problems, temperature 1"
        measured.append(f"| held-out accuracy{of} | {accuracy} |")
        measured.append(f"| mean completion{of} | {result.mean_length:.0f} tokens |")
    return f"""# A tiny decoder, fine-tuned on demonstrations of {" and ".join(tasks)}

Qwen2 architecture, {language_model.parameters:,} parameters, {len(language_model.tokenizer):,} tokens (numbers up to
999 and answer tags whole, everything else bytes). It knows nothing but the form of the demonstrations: it attempts
a problem, often wrongly, and is intended as the start of reinforcement learning.

| | |
|---|---|
| made by | `tinyzero warmstart --config {SETTINGS_FILE}` |
| task | {", ".join(f"{name} {task.version}" for name, task in tasks.items())} |
| trained on | {tokens:,} tokens of {examples:,} demonstrations{weights} |
| time | {seconds:.0f} s on {machine}, torch {torch.__version__} |
{chr(10).join(measured)}
"""
