"""Accuracy on held-out problems: the fraction that is `correct`, without partial credit or shaping."""

from collections.abc import Mapping, Sequence
from time import perf_counter

import numpy as np

from tinyzero_sdk.console import plural
from tinyzero_sdk.scoring.learning_signal import LearningSignal
from tinyzero_sdk.scoring.statistics import pass_at_k
from tinyzero_sdk.seeds import derive_seed
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.controller.signal_monitor import SignalMonitor, learning_signal
from tinyzero_trainer.controller.step_metrics import part_means
from tinyzero_trainer.executors.base import Workers
from tinyzero_trainer.executors.tasks import RunTask
from tinyzero_trainer.monitoring.metrics_log import greedy_key, held_out_key, pass_at_key, size_key
from tinyzero_trainer.rewards.reward_pool import RewardPool
from tinyzero_trainer.rewards.score import counted, counts, score
from tinyzero_trainer.rollout import SamplingParams
from tinyzero_trainer.rollout.generation import generate
from tinyzero_trainer.types import Prompt, Rollout
from tinyzero_trainer.utils.signals import StopFlag


class HeldOutEvaluation:
    """Accuracy of the present policy on the same held-out problems each time."""

    def __init__(
        self,
        config: TrainConfig,
        workers: Workers,
        tasks: Mapping[str, RunTask],
        stop: StopFlag,
        signal: SignalMonitor | None = None,
    ) -> None:
        """`tasks` are those of the workers, and others to evaluate on."""
        self.config, self.workers, self.stop, self.signal = config, workers, stop, signal
        self.rollouts = list[tuple[str, list[Rollout]]]()
        """The completions of the last evaluation, by decoding: `sampled` or `greedy`."""
        progress, count = workers.display, config.eval.num_problems
        if tasks:
            progress.phase("sampling held-out problems")
        self.prompts = {name: task.prompts.held_out(count) for name, task in tasks.items()}
        self._pools = {name: task.pool for name, task in tasks.items()}
        self._tasks = {name: task.task for name, task in tasks.items()}
        for name, prompts in self.prompts.items():
            if len(prompts) < count:
                progress.log(f"{name} has only {plural(len(prompts), 'held-out problem')}; all of them are used")

    def is_due(self, step: int, *, last: int) -> bool:
        """Whether `step` is 0, the last or an `eval.every`-th one."""
        every = self.config.eval.every
        return step in (0, last) or bool(every and step % every == 0)

    def run(self, step: int, *, last: int) -> dict[str, float]:
        """Metrics of all tasks; before the first step and after the last on all problems, and greedily too."""
        started, metrics, signals = perf_counter(), dict[str, float](), dict[str, LearningSignal]()
        self.rollouts = []
        for name in self.prompts:
            metrics |= self._evaluate_task(name, signals, thorough=step in (0, last))
        display, samples = self.workers.display, self.config.eval.samples
        display.end_phase()
        display.held_out(step, {name: metrics[held_out_key(name, samples)] for name in self.prompts})
        if greedy := {name: metrics[key] for name in self.prompts if (key := greedy_key(name)) in metrics}:
            display.held_out(step, greedy, of="accuracy, greedily,")
        for k in self.config.eval.pass_at:
            estimates = {name: metrics[pass_at_key(name, k, samples)] for name in self.prompts}
            display.held_out(step, estimates, of=f"pass@{k}")
        if self.signal is not None and not step:
            for name in self.workers.tasks:
                self.signal.judge(name, signals[name])
        return {**metrics, "timing_s/testing": perf_counter() - started}

    def _evaluate_task(self, name: str, signals: dict[str, LearningSignal], *, thorough: bool) -> dict[str, float]:
        config = self.config.eval
        prompts = self.prompts[name] if thorough else self.prompts[name][: config.num_problems_during]
        suffix = "" if len(self.prompts) == 1 else f" of {name}"
        modes = {held_out_key(name, config.samples): config.temperature}
        if thorough and config.greedy:
            modes[greedy_key(name)] = 0.0
        metrics = {size_key(name): float(len(prompts))}
        for key, temperature in modes.items():
            how = "greedily" if temperature == 0 else f"sampled at temperature {temperature:g}"
            count = config.samples if temperature else 1
            unit = "problems" if count == 1 else "completions"
            self.workers.display.phase(f"evaluating on held-out problems{suffix}, {how}", count * len(prompts), unit)
            params = SamplingParams(self.config.rollout.max_completion_tokens, temperature)
            # The same seed each time: two evaluations differ by the policy, not by the sampling.
            seed = derive_seed("evaluation", self.config.run.seed)
            rollouts = evaluate(self.workers, self._pools, prompts, count, params, seed=seed, stop=self.stop)
            self.rollouts.append(("greedy" if temperature == 0 else "sampled", rollouts))
            known = np.array([counts(rollout, self._tasks) for rollout in rollouts])
            if self._tasks[name].is_async:
                metrics[f"val-aux/{name}/error_frac"] = 1 - float(known.mean())
            correct = np.array([rollout.score.correct for rollout in rollouts])
            metrics[key] = float(correct[known if known.any() else ~known].mean())
            if temperature:
                metrics |= pass_at_metrics(name, correct, known, config.pass_at)
                parts = part_means(counted(rollouts, self._tasks))
                metrics |= {f"val-aux/{name}/part/{part}": mean for part, mean in parts.items()}
                signal = signals[name] = learning_signal(rollouts, count)
                metrics[f"val-aux/{name}/no_answer_frac"] = signal.no_answer_frac
                metrics[f"val-aux/{name}/truncated_frac"] = signal.truncated_frac or 0.0
        return metrics


def pass_at_metrics(task: str, correct: np.ndarray, counted: np.ndarray, pass_at: Sequence[int]) -> dict[str, float]:
    """pass@k as `tinyzero eval` estimates it: of the problems with k counted completions or more, if there are any.

    `correct` and `counted` are [completions], those of a problem adjacent, as many as the largest k.
    """
    samples, metrics = max(pass_at, default=1), dict[str, float]()
    sizes = counted.reshape(-1, samples).sum(axis=1)
    solved = correct.reshape(-1, samples).sum(axis=1)
    for k in pass_at:
        drawn_from = sizes if (sizes >= k).any() else np.full_like(sizes, samples)
        enough = drawn_from >= k
        metrics[pass_at_key(task, k, samples)] = float(pass_at_k(solved[enough], drawn_from[enough], k).mean())
    return metrics


def evaluate(
    workers: Workers,
    pools: Mapping[str, RewardPool],
    prompts: Sequence[Prompt],
    samples: int,
    params: SamplingParams,
    *,
    seed: int,
    stop: StopFlag,
) -> list[Rollout]:
    """Sample and score completions of each prompt; raises `StopRequested` if a signal comes meanwhile."""
    model, advance = workers.language_model, workers.display.advance
    generated = generate(model, workers.engine, prompts, samples, params, seed=seed, on_progress=advance, stop=stop)
    return score(generated, model.tokenizer, pools, group_size=samples)
