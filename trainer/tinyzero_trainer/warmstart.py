"""Warm start: teach a small decoder to attempt a task, from the task's own fallible demonstrations.

Reinforcement learning finds nothing in a model that never succeeds. A demonstration shows how an attempt is
written and searched for, not how to be right: what it gets wrong is left for reinforcement learning to mend.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random
from time import perf_counter
from typing import Any, cast

import tomli_w
import torch
import torch.nn.functional as F
from torch import Tensor

from tinyzero_sdk import Task
from tinyzero_sdk.errors import TinyZeroError
from tinyzero_sdk.seeds import derive_seed
from tinyzero_sdk.settings import build, merge, to_mapping
from tinyzero_trainer.config import DataConfig, TrainConfig
from tinyzero_trainer.display import Display
from tinyzero_trainer.evaluation import EvaluationResult, evaluate_model
from tinyzero_trainer.interrupts import StopFlag
from tinyzero_trainer.layers import without_idle
from tinyzero_trainer.mixing import next_share
from tinyzero_trainer.models import LanguageModel, choose_device, from_parts, save_model
from tinyzero_trainer.presets import PRESET_FILE, preset_content
from tinyzero_trainer.prompts import PromptSource
from tinyzero_trainer.schedules import decayed, warmed_up
from tinyzero_trainer.task_shares import load_shares
from tinyzero_trainer.tiny import build_model, build_tokenizer
from tinyzero_trainer.warmstart_config import WarmStartConfig, WarmStartTraining

FINAL_RATE_SHARE = 0.1
MOST_PROBLEMS = 20_000
"""Different problems that demonstrations are made for; a demonstration is hardly ever seen twice anyway."""
IGNORED = -100
"""Label that cross-entropy leaves out."""

CARD_FILE = "README.md"
SETTINGS_FILE = "warmstart.toml"
"""`tinyzero warmstart --config` takes it to make the model again."""


@dataclass(frozen=True, slots=True)
class WarmStartResult:
    """What a warm start made."""

    output: Path
    """Directory that transformers, vLLM and `--model` load."""

    evaluations: dict[str, EvaluationResult]
    """Held-out accuracy on each task, sampled at temperature 1."""

    summary: str
    """One line for the user."""


@dataclass(frozen=True, slots=True)
class Example:
    """A prompt and a demonstration that follows it."""

    prompt: list[int]
    """Tokens that are given."""

    demonstration: list[int]
    """Tokens that are learnt, the end token included."""


def warm_start(config: WarmStartConfig, *, display: Display, stop: StopFlag) -> WarmStartResult:
    """Train a small decoder on demonstrations of a task, or several, and save it with its settings and a model card.

    Raises:
        TinyZeroError: a task gives no demonstrations, or the directory exists.
    """
    output, started = Path(config.run.output), perf_counter()
    if output.exists():
        raise TinyZeroError(f"{output} exists already; give a new directory with --output")
    build(
        TrainConfig, without_idle(config.settings, {})[0]
    )  # an impossible preset stops here, not in the run that uses it
    shares = config.task_shares()
    tasks = load_shares(shares)
    tokenizer = build_tokenizer()
    model = build_model(config.model, tokenizer, derive_seed("weights", config.run.seed))
    model.to(choose_device(config.run.device))  # type: ignore[arg-type]  # as in `load_model`
    language_model = from_parts(" and ".join(tasks), model, tokenizer)
    trained_tokens = _train(config, tasks, language_model, display, stop)
    seconds = perf_counter() - started
    output.mkdir(parents=True)
    save_model(output, language_model)
    preset = preset_content({share.task: share.options for share in shares}, _settings(config))
    (output / PRESET_FILE).write_text(tomli_w.dumps(preset), encoding="utf-8")
    (output / SETTINGS_FILE).write_text(tomli_w.dumps(_to_make_it_again(config)), encoding="utf-8")
    train_config = _train_config(config)
    results = evaluate_model(train_config, samples=1, temperature=1.0, display=display, stop=stop)
    card = _model_card(config, language_model, tasks, trained_tokens, seconds, results)
    (output / CARD_FILE).write_text(card, encoding="utf-8")
    return WarmStartResult(output, results, f"{output}: {_found(results)}, {seconds:.0f} s")


def _settings(config: WarmStartConfig) -> dict[str, object]:
    """What training on from this model should start with; the user's own settings go on top."""
    training = config.training
    suiting = {
        "data": {"template": training.template, "test_share": training.test_share},
        # In process they cost nothing, and save a pass over the batch.
        "rollout": {"max_tokens": training.max_tokens, "logprobs": "always"},
        "eval": {"size": training.eval_size, "during_size": training.eval_size},
    }
    return merge(suiting, config.settings)


def _train_config(config: WarmStartConfig) -> TrainConfig:
    """Of a run that trains on from this model."""
    named = {"run": {"task": config.run.task}, "task": config.task, "tasks": config.tasks}
    said = merge(named, {"model": {"path": config.run.output}})
    return build(TrainConfig, merge(without_idle(_settings(config), said)[0], said))


def _to_make_it_again(config: WarmStartConfig) -> dict[str, Any]:
    """All settings but the directory and the device."""
    unsaid = ("settings", "tasks" if config.run.task else "task")
    settings = {key: value for key, value in to_mapping(config).items() if key not in unsaid}
    settings["run"] = {key: value for key, value in settings["run"].items() if key in ("task", "seed") and value != ""}
    return {**settings, "settings": config.settings}


def _found(results: Mapping[str, EvaluationResult]) -> str:
    return "held-out accuracy " + ", ".join(
        f"{result.accuracy:.1%} on {result.problems} problems{f' of {name}' if len(results) > 1 else ''}"
        for name, result in results.items()
    )


def _train(
    config: WarmStartConfig, tasks: Mapping[str, Task], language_model: LanguageModel, display: Display, stop: StopFlag
) -> int:
    """Run all optimiser steps; returns the number of tokens learnt from."""
    training, model = config.training, language_model.model
    batches = _batches(config, tasks.values(), language_model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=training.learning_rate, betas=(0.9, 0.98), weight_decay=0.0)
    display.phase(f"warm start on demonstrations of {' and '.join(tasks)}", training.steps, "steps")
    model.train()
    trained_tokens = 0
    for step in range(1, training.steps + 1):
        if stop.requested:
            raise KeyboardInterrupt
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(training, step)
        tokens, labels = _pad(next(batches), language_model.pad_id, model.device)
        with torch.autocast(model.device.type, torch.bfloat16, enabled=model.device.type == "cuda"):
            logits = model(input_ids=tokens, use_cache=False).logits
        # Padding is on the right and has no labels, so no attention mask is needed.
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), labels[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        trained_tokens += int((labels != IGNORED).sum())
        display.advance()
        if step % 200 == 0:
            display.note(f"step {step}: loss {loss.item():.4f}")
    display.end_phase()
    return trained_tokens


def learning_rate(training: WarmStartTraining, step: int) -> float:
    """Linear warm-up, then a cosine from the peak, at its end, down to a tenth; `step` counts from 1."""
    peak, past = training.learning_rate, training.warmup_steps - 1
    rate = decayed(peak, FINAL_RATE_SHARE * peak, step - past, training.steps - past, "cosine")
    return min(rate, warmed_up(peak, step, training.warmup_steps))


class Demonstrations:
    """Training problems of one task in random order, each time with a new demonstration."""

    def __init__(self, config: WarmStartConfig, task: Task, language_model: LanguageModel) -> None:
        self._config, self._task, self._tokenizer = config, task, language_model.tokenizer
        training, seed = config.training, config.run.seed
        data = DataConfig(template=training.template, test_share=training.test_share)
        self._prompts = PromptSource(task, self._tokenizer, data).some(MOST_PROBLEMS, seed)
        self._random = Random(derive_seed("order", seed))
        self._drawn = 0

    def draw(self, count: int) -> list[Example]:
        """So many more, without those that are too long.

        Raises:
            TinyZeroError: the task has none.
        """
        chosen = self._random.choices(self._prompts, k=count)
        texts = [
            self._task.demonstrate(prompt.item, derive_seed("demonstration", self._config.run.seed, number))
            for number, prompt in enumerate(chosen, start=self._drawn)
        ]
        self._drawn += count
        if None in texts:
            raise TinyZeroError(
                f"task {self._task.name!r} gives no demonstrations to learn from; add a `demonstrate` hook, "
                "or train a model of your own with --model"
            )
        # One call for the whole batch: the tokenizer's cost is a call's, not a text's.
        encoded = self._tokenizer(cast(list[str], texts), add_special_tokens=False)["input_ids"]
        return [
            Example(prompt.token_ids, [*tokens, self._tokenizer.eos_token_id])
            for prompt, tokens in zip(chosen, encoded, strict=True)
            if len(tokens) < self._config.training.max_tokens
        ]


def _batches(config: WarmStartConfig, tasks: Iterable[Task], language_model: LanguageModel) -> Iterator[list[Example]]:
    """Batches for ever, in which each task has its share."""
    weights = [share.weight for share in config.task_shares()]
    sources = [Demonstrations(config, task, language_model) for task in tasks]
    drawn = [0] * len(sources)
    while True:
        before = list(drawn)
        for _ in range(config.training.batch_size):
            drawn[next_share(weights, drawn)] += 1
        counts = [after - earlier for after, earlier in zip(drawn, before, strict=True)]
        yield [
            example for source, count in zip(sources, counts, strict=True) if count for example in source.draw(count)
        ]


def _pad(examples: list[Example], pad_id: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Tokens and labels, both [examples, longest]; the prompt and padding have no labels."""
    longest = max(len(example.prompt) + len(example.demonstration) for example in examples)
    tokens, labels = [], []
    for example in examples:
        filling = longest - len(example.prompt) - len(example.demonstration)
        tokens.append([*example.prompt, *example.demonstration, *[pad_id] * filling])
        labels.append([*[IGNORED] * len(example.prompt), *example.demonstration, *[IGNORED] * filling])
    return torch.tensor(tokens, device=device), torch.tensor(labels, device=device)


def _model_card(
    config: WarmStartConfig,
    language_model: LanguageModel,
    tasks: Mapping[str, Task],
    trained_tokens: int,
    seconds: float,
    results: Mapping[str, EvaluationResult],
) -> str:
    parameters = sum(parameter.numel() for parameter in language_model.model.parameters())
    device = language_model.model.device
    threads = f"{torch.get_num_threads()} CPU threads"
    machine = torch.cuda.get_device_name(device) if device.type == "cuda" else threads
    demonstrations = f"{config.training.steps * config.training.batch_size:,} demonstrations"
    weights = {name: share.weight for name, share in zip(tasks, config.task_shares(), strict=True)}
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
| learnt from | {trained_tokens:,} tokens of {demonstrations} |
| time | {seconds:.0f} s on {machine}, torch {torch.__version__} |
{chr(10).join(measured)}
"""
