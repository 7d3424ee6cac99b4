"""Accuracy on held-out problems: the share that is `correct`, which neither partial credit nor shaping touches."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from time import perf_counter
from typing import Any

import numpy as np

from tinyzero_sdk import Score
from tinyzero_sdk.evaluation.protocol import EvaluationResult
from tinyzero_sdk.scoring.statistics import standard_error
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.executors.base import Workers
from tinyzero_trainer.executors.local import build_workers, generate, score
from tinyzero_trainer.monitoring.progress import Progress
from tinyzero_trainer.rollout import SamplingParams
from tinyzero_trainer.types import Prompt, Rollout
from tinyzero_trainer.utils.signals import StopFlag


def evaluate(
    roles: Workers, prompts: Sequence[Prompt], params: SamplingParams, *, samples: int, seed: int, stop: StopFlag
) -> tuple[EvaluationResult, list[Rollout]]:
    """Sample and score completions of `prompts`.

    Raises:
        StopRequested: a signal asked for the end meanwhile.
    """
    started = perf_counter()
    rollouts = generate(roles, prompts, params, samples=samples, seed=seed, stop=stop)
    completed = score(roles, rollouts, max_failure_rate=1.0)
    return _summary(completed, samples, perf_counter() - started), completed


def _summary(completed: Sequence[Rollout], samples: int, seconds: float) -> EvaluationResult:
    correct = np.array([sample.score.correct for sample in completed]).reshape(-1, samples)
    lengths = [len(sample.generation.token_ids) for sample in completed]
    return EvaluationResult(
        problems=len(correct),
        samples=samples,
        accuracy=float(correct.mean()),
        standard_error=standard_error(correct.sum(axis=1), np.full(len(correct), samples)),
        mean_score=fmean(sample.score.unshaped for sample in completed),
        by_reason=Counter(sample.score.reason for sample in completed),
        mean_length=fmean(lengths),
        tokens_per_second=sum(lengths) / seconds,
    )


def evaluate_model(
    config: TrainConfig, *, samples: int, temperature: float, display: Progress, stop: StopFlag
) -> dict[str, EvaluationResult]:
    """Evaluate `config.model` on `config.eval.num_problems` held-out problems of each of its tasks, by the task's name.

    Args:
        config: as for training; what concerns training alone is not used.
        samples: completions of each problem.
        temperature: 0 = the likeliest token each time.
        display: is told of the phases.
        stop: polled while generating.
    """
    with build_workers(config, display=display, training=False) as roles:
        params, results = SamplingParams(config.rollout.max_completion_tokens, temperature), {}
        for name, role in roles.tasks.items():
            prompts = role.prompts.held_out(config.eval.num_problems)
            display.phase(f"evaluating on {name}", len(prompts) * samples, "completions")
            results[name], _ = evaluate(roles, prompts, params, samples=samples, seed=config.run.seed, stop=stop)
        display.end_phase()
    return results


def write_samples(path: Path, completed: Sequence[Rollout]) -> None:
    """Write completions as JSON Lines that `tinyzero score` reads."""
    lines = (json.dumps(sample_row(sample), ensure_ascii=True) for sample in completed)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")


def sample_row(sample: Rollout) -> dict[str, Any]:
    """One completion as an outputs row: what was asked, what was answered, and the verdict."""
    verdict: Score = sample.score
    return {
        "task": sample.prompt.task,
        "prompt": sample.prompt.text,
        "completion": sample.text,
        "ground_truth": sample.prompt.item.ground_truth,
        "score": verdict.value,
        "correct": verdict.correct,
        "reason": verdict.reason,
        "answer": verdict.answer,
        "tokens": len(sample.generation.token_ids),
        "finished": sample.generation.finished,
    }
