"""Metrics of one training step, under verl's names so that dashboards port. Pure functions."""

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import compress
from statistics import fmean

import torch

from tinyzero_sdk import ItemColumns, Task
from tinyzero_sdk.records import Reason
from tinyzero_trainer.algorithms.batch import TrainingBatch
from tinyzero_trainer.controller.rollout_batch import RolloutBatch
from tinyzero_trainer.controller.signal_monitor import learning_signal
from tinyzero_trainer.monitoring.metrics_log import ACCURACY, TRUNCATED, ZERO_STD, task_key
from tinyzero_trainer.rewards.score import counted, counts
from tinyzero_trainer.training.seqlen_balancing import seqlen_metrics
from tinyzero_trainer.types import Rollout

FAILURES: tuple[Reason, ...] = ("error", "timeout", "no_answer", "malformed")


def batch_metrics(
    tasks: Mapping[str, Task], samples: Sequence[Rollout], batch: TrainingBatch, ranks: int = 1
) -> dict[str, float]:
    """Metrics of a step's completions: `samples` are all, group after group, and `batch` has those trained on."""
    group_size, reasons = batch.group_size, [sample.score.reason for sample in samples]
    known = counted(samples, tasks)
    rewards = batch.group_rewards().flatten().tolist()
    known_rewards = list(compress(rewards, [counts(rollout, tasks) for rollout in batch.rollouts]))
    assert batch.advantages is not None
    mask = batch.token_mask()
    advantages = (batch.advantages if mask is None else batch.advantages[mask]).double()  # those in the loss
    metrics = {
        **_mean_max_min("critic/score", [sample.score.value for sample in known]),
        **_mean_max_min("critic/rewards", known_rewards or rewards),
        **_mean_max_min("response_length", [len(sample.generation.token_ids) for sample in samples]),
        **_mean_max_min("prompt_length", [len(sample.prompt.token_ids) for sample in samples]),
        **seqlen_metrics([_length(sample) for sample in samples], ranks),
        "response_length/clip_ratio": fmean(not sample.generation.finished for sample in samples),
        "group/sampled": len(samples) / group_size,
        "group/kept": len(batch.lengths) / group_size,
        **{f"reward/{reason}_frac": reasons.count(reason) / len(reasons) for reason in FAILURES},
        **{f"reward/part/{name}": mean for name, mean in part_means(known).items()},
        **_completions(samples, known),
        **_by_task(tasks, samples, group_size),
    }
    if len(advantages):
        metrics |= {f"critic/advantages/{name}": getattr(advantages, name)().item() for name in ("mean", "max", "min")}
        if batch.teacher_logprobs is not None:
            metrics["teacher/reverse_kl"] = -advantages.mean().item()
    if group_size > 1:
        scores = torch.tensor([sample.score.value for sample in samples]).view(-1, group_size)
        metrics[ZERO_STD] = (scores.amax(dim=1) == scores.amin(dim=1)).float().mean().item()
    return metrics


def staleness_metrics(samples: Sequence[Rollout], batch: RolloutBatch) -> dict[str, float]:
    """How old the tokens of a batch are, in training steps: by the weights that sampled each, since its update."""
    ages = Counter[int]()
    for sample in samples:
        for version, count in sample.generation.versions or [(batch.version, len(sample.generation.token_ids))]:
            ages[batch.step - 1 - version] += count
    tokens = ages.total()
    return {
        "staleness/steps": sum(age * count for age, count in ages.items()) / tokens,
        "staleness/steps_max": float(max(ages)),
        "staleness/stale_frac": 1 - ages[0] / tokens,
        "staleness/groups_in_flight": float(batch.in_flight),
    }


def timing_metrics(
    seconds: Mapping[str, float], samples: Sequence[Rollout], kept: Sequence[Rollout]
) -> dict[str, float]:
    """Times of a step, in seconds of each phase (`step` is the whole) and in milliseconds per token."""
    response_tokens, tokens = sum(len(sample.generation.token_ids) for sample in samples), sum(map(_length, samples))
    divisors = {"gen": response_tokens, "update_actor": trained_tokens(kept), "reward": response_tokens}
    metrics = {f"timing_s/{name}": value for name, value in seconds.items()}
    for name, divisor in divisors.items():
        if name in seconds and divisor:
            metrics[f"timing_per_token_ms/{name}"] = 1000 * seconds[name] / divisor
    metrics["perf/total_num_tokens"] = float(tokens)
    metrics["perf/throughput"] = tokens / seconds["step"]
    return metrics


def trained_tokens(kept: Sequence[Rollout]) -> int:
    """Prompt and completion tokens in one pass of the update, which skips masked completions."""
    return sum(_length(sample) for sample in kept if not sample.score.masked)


def _length(sample: Rollout) -> int:
    return len(sample.prompt.token_ids) + len(sample.generation.token_ids)


def _completions(samples: Sequence[Rollout], known: Sequence[Rollout]) -> dict[str, float]:
    metrics = {
        ACCURACY: fmean(sample.score.correct for sample in known),
        "completion/finished_frac": fmean(sample.generation.finished for sample in samples),
        TRUNCATED: fmean(not sample.generation.finished for sample in samples),
    }
    means: dict[str, Sequence[float]] = {
        "acc_finished": [sample.score.correct for sample in known if sample.generation.finished],
        "acc_truncated": [sample.score.correct for sample in known if not sample.generation.finished],
        "correct_length_mean": [len(sample.generation.token_ids) for sample in samples if sample.score.correct],
    }
    return metrics | {f"completion/{name}": fmean(values) for name, values in means.items() if values}


def part_means(samples: Sequence[Rollout]) -> dict[str, float]:
    """Mean of each part of the scores; a completion without it counts as 0."""
    sums: dict[str, float] = defaultdict(float)
    for sample in samples:
        for name, value in sample.score.parts.items():
            sums[name] += value
    return {name: total / len(samples) for name, total in sums.items()}


def _by_task(tasks: Mapping[str, Task], samples: Sequence[Rollout], group_size: int) -> dict[str, float]:
    """Accuracy by difficulty, and with several tasks the size, accuracy, score and learning signal of each."""
    if len(tasks) == 1:
        (task,) = tasks.values()
        return _by_difficulty(task, counted(samples, tasks), "train/acc_by_difficulty")
    metrics = {}
    for name, task in tasks.items():
        of_task = [sample for sample in samples if sample.prompt.task == name]
        metrics[task_key(name, "prompts")] = float(len(of_task) // group_size)
        if of_task:
            known = counted(of_task, tasks)
            metrics[task_key(name, "acc")] = fmean(sample.score.correct for sample in known)
            metrics[task_key(name, "score")] = fmean(sample.score.value for sample in known)
            metrics |= {task_key(name, f"part/{part}"): mean for part, mean in part_means(known).items()}
            signal = learning_signal(of_task, group_size)
            fractions = {part: getattr(signal, part) for part in ("no_answer_frac", "truncated_frac", "zero_std_frac")}
            metrics |= {task_key(name, part): value for part, value in fractions.items() if value is not None}
            metrics |= _by_difficulty(task, known, f"train/acc_by_difficulty/{name}")
    return metrics


def _by_difficulty(task: Task, samples: Sequence[Rollout], prefix: str) -> dict[str, float]:
    """Accuracy at each level, the problem's difficulty rounded down."""
    prompts = {id(sample.prompt): sample.prompt for sample in samples}
    items = [prompt.item for prompt in prompts.values()]
    difficulties = dict(zip(prompts, task.difficulties(ItemColumns.of(items) or items), strict=True))
    levels: dict[int, list[bool]] = defaultdict(list)
    for sample in samples:
        if math.isfinite(difficulty := difficulties[id(sample.prompt)]):  # of a file's problem it may be unknown
            levels[int(difficulty)].append(sample.score.correct)
    return {f"{prefix}/{level}": fmean(levels[level]) for level in sorted(levels)}


def _mean_max_min(name: str, values: Sequence[float]) -> dict[str, float]:
    return {f"{name}/mean": fmean(values), f"{name}/max": max(values), f"{name}/min": min(values)}
