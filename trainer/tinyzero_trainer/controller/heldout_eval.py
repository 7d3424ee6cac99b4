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
from tinyzero_sdk.seeds import derive_seed
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.executors.base import Workers
from tinyzero_trainer.monitoring.metrics_log import greedy_key, held_out_key, size_key
from tinyzero_trainer.rewards.score import score
from tinyzero_trainer.rollout import SamplingParams
from tinyzero_trainer.rollout.generate import check_context, generate
from tinyzero_trainer.types import Prompt, Rollout
from tinyzero_trainer.utils.oom import catch_out_of_memory
from tinyzero_trainer.utils.signals import StopFlag


class HeldOutEvaluation:
    """Accuracy of the present policy on the same held-out problems each time."""

    def __init__(self, config: TrainConfig, workers: Workers, stop: StopFlag) -> None:
        """
        Args:
            config: of the run; see `eval`.
            workers: engine, tasks and reward pools.
            stop: polled while generating.
        """
        self.config, self.workers, self.stop = config, workers, stop
        display, wanted = workers.display, config.eval.num_problems
        display.phase("sampling held-out problems")
        self.prompts = {name: task.prompts.held_out(wanted) for name, task in workers.tasks.items()}
        for name, prompts in self.prompts.items():
            if len(prompts) < wanted:
                display.log(f"{name} has {len(prompts):,} held-out problems only; all of them are taken")

    def is_due(self, step: int) -> bool:
        """Whether `step` is the first, the last or an `eval.every`-th one."""
        every = self.config.eval.every
        return step in (0, self.config.run.steps) or bool(every and step % every == 0)

    def run(self, step: int) -> dict[str, float]:
        """Metrics of all tasks; before the first step and after the last on all problems, and greedily too.

        Raises:
            StopRequested: a signal asked for the end meanwhile.
        """
        started, metrics = perf_counter(), dict[str, float]()
        for name in self.prompts:
            metrics |= self._evaluate_task(name, thorough=step in (0, self.config.run.steps))
        self.workers.display.end_phase()
        self.workers.display.held_out(step, {name: metrics[held_out_key(name)] for name in self.prompts})
        return {**metrics, "timing_s/testing": perf_counter() - started}

    def _evaluate_task(self, name: str, *, thorough: bool) -> dict[str, float]:
        config = self.config.eval
        prompts = self.prompts[name] if thorough else self.prompts[name][: config.num_problems_during]
        which = "held-out problems" if len(self.prompts) == 1 else f"held-out problems of {name}"
        modes = {held_out_key(name): config.temperature}
        if thorough and config.greedy:
            modes[greedy_key(name)] = 0.0
        metrics = {size_key(name): float(len(prompts))}
        for key, temperature in modes.items():
            how = "greedily" if temperature == 0 else f"sampled at temperature {temperature:g}"
            self.workers.display.phase(f"evaluating on {which}, {how}", len(prompts), "problems")
            params = SamplingParams(self.config.rollout.max_completion_tokens, temperature)
            # The same seed each time: two evaluations differ by the policy, and not by the sampling.
            seed = derive_seed("evaluation", self.config.run.seed)
            with catch_out_of_memory("completions were generated"):
                result, _ = evaluate(self.workers, prompts, params, samples=1, seed=seed, stop=self.stop)
            metrics[key] = result.accuracy
        return metrics


def evaluate(
    workers: Workers, prompts: Sequence[Prompt], params: SamplingParams, *, samples: int, seed: int, stop: StopFlag
) -> tuple[EvaluationResult, list[Rollout]]:
    """Sample and score `samples` completions of each prompt.

    Raises:
        StopRequested: a signal asked for the end meanwhile.
    """
    started = perf_counter()
    check_context(workers.language_model, prompts, params.max_tokens)
    advance = workers.display.advance
    generated = generate(workers.engine, prompts, samples, params, seed=seed, on_progress=advance, stop=stop)
    rollouts = score(generated, workers.language_model.tokenizer, workers.pools)
    return _summary(rollouts, samples, perf_counter() - started), rollouts


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
