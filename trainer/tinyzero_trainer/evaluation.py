"""Accuracy on held-out problems: the share that is `correct`, which neither partial credit nor shaping touches."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from time import perf_counter
from typing import Any

from tinyzero_sdk import Score
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.display import Display
from tinyzero_trainer.interrupts import StopFlag
from tinyzero_trainer.records import Prompt, Sample
from tinyzero_trainer.roles import Roles, build_roles, generate, score
from tinyzero_trainer.rollout import SamplingParams


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """What a model did on held-out problems."""

    problems: int
    """Number of problems."""

    samples: int
    """Completions of each."""

    accuracy: float
    """Share of completions that are correct."""

    standard_error: float
    """Of the accuracy, over problems."""

    mean_score: float
    """Mean reward."""

    by_reason: Mapping[str, int]
    """Number of completions by reason of their score."""

    mean_length: float
    """Mean length of a completion, in tokens."""

    tokens_per_second: float
    """Generated tokens over the wall-clock time of generation and scoring."""


def evaluate(
    roles: Roles, prompts: Sequence[Prompt], params: SamplingParams, *, samples: int, seed: int, stop: StopFlag
) -> tuple[EvaluationResult, list[Sample]]:
    """Sample and score completions of `prompts`.

    Raises:
        StopRequested: a signal asked for the end meanwhile.
    """
    started = perf_counter()
    rollouts = generate(roles, prompts, params, samples=samples, seed=seed, stop=stop)
    completed = score(roles, rollouts, max_failed_share=1.0)
    return _summary(completed, samples, perf_counter() - started), completed


def _summary(completed: Sequence[Sample], samples: int, seconds: float) -> EvaluationResult:
    correct = [sample.score.correct for sample in completed]
    lengths = [len(sample.rollout.token_ids) for sample in completed]
    # Completions of one problem are not independent: the standard error is that of the problems' means.
    by_problem = [fmean(correct[start : start + samples]) for start in range(0, len(correct), samples)]
    accuracy, count = fmean(by_problem), len(by_problem)
    variance = sum((value - accuracy) ** 2 for value in by_problem) / max(1, count - 1)
    return EvaluationResult(
        problems=count,
        samples=samples,
        accuracy=accuracy,
        standard_error=(variance / count) ** 0.5,
        mean_score=fmean(sample.score.value for sample in completed),
        by_reason=Counter(sample.score.reason for sample in completed),
        mean_length=fmean(lengths),
        tokens_per_second=sum(lengths) / seconds,
    )


def evaluate_model(
    config: TrainConfig, *, samples: int, temperature: float, display: Display, stop: StopFlag
) -> EvaluationResult:
    """Evaluate `config.model` on `config.eval.size` held-out problems of `config.run.task`.

    Args:
        config: as for training; what concerns training alone is not used.
        samples: completions of each problem.
        temperature: 0 = the likeliest token each time.
        display: is told of the phases.
        stop: polled while generating.
    """
    with build_roles(config, display=display, training=False) as roles:
        prompts = roles.prompts.held_out(config.eval.size)
        params = SamplingParams(config.rollout.max_tokens, temperature)
        display.phase("evaluating", len(prompts) * samples, "completions")
        result, _ = evaluate(roles, prompts, params, samples=samples, seed=config.run.seed, stop=stop)
        display.end_phase()
    return result


def write_samples(path: Path, completed: Sequence[Sample]) -> None:
    """Write completions as JSON Lines that `tinyzero score` reads."""
    lines = (json.dumps(sample_row(sample), ensure_ascii=True) for sample in completed)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")


def sample_row(sample: Sample) -> dict[str, Any]:
    """One completion as an outputs row: what was asked, what was answered, and the verdict."""
    verdict: Score = sample.score
    return {
        "prompt": sample.prompt.text,
        "completion": sample.text,
        "ground_truth": sample.prompt.item.ground_truth,
        "score": verdict.value,
        "correct": verdict.correct,
        "reason": verdict.reason,
        "answer": verdict.answer,
        "tokens": len(sample.rollout.token_ids),
        "finished": sample.rollout.finished,
    }
