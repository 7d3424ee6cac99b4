"""A step of supervised fine-tuning, and the held-out loss: what controller/loop.py repeats.

The policy's own update does it: with an advantage of 1 for every token, REINFORCE's loss is the cross-entropy.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from time import perf_counter
from types import MappingProxyType

import torch

from tinyzero_sdk import Task
from tinyzero_sdk.console import percent
from tinyzero_trainer.algorithms.batch import TrainingBatch
from tinyzero_trainer.algorithms.schedules import StepSettings
from tinyzero_trainer.checkpoint.run_directory import RunDirectory
from tinyzero_trainer.checkpoint.store import damage_in_one_line
from tinyzero_trainer.config import SftConfig, TrainConfig
from tinyzero_trainer.controller.heldout_eval import HeldOutEvaluation
from tinyzero_trainer.controller.rollout_batch import rollouts_from_json, rollouts_to_json
from tinyzero_trainer.controller.skipped_updates import SkippedUpdates
from tinyzero_trainer.controller.state import TrainerState
from tinyzero_trainer.controller.step_metrics import trained_tokens
from tinyzero_trainer.executors.base import PolicyWorker, Workers
from tinyzero_trainer.executors.tasks import RunTask
from tinyzero_trainer.monitoring.metrics_log import HELD_OUT_LOSS, LOSS, held_out_key
from tinyzero_trainer.monitoring.performance import StepTimer, memory_metrics, peak_flops, utilization
from tinyzero_trainer.types import Rollout
from tinyzero_trainer.utils.oom import catch_out_of_memory
from tinyzero_trainer.utils.signals import StopFlag

CALIBRATION_STEPS = 20
"""With `run.seconds`: steps after which the time of the last half of them sets the number of steps."""

UNKNOWN_STEPS = 1000
"""Steps for which the learning rate is scheduled until then."""

TOO_LITTLE, FAR_BELOW = 0.02, 0.2
"""Accuracy below which few groups have a right completion, and the least fraction of that of the examples."""

OF_PRETRAINED = 2e-4
"""Learning rates below it suit pretrained models, and hardly move random weights."""

MANY_CUT_OFF = 0.5
"""Fraction of completions without an end, above which their length is what is wrong."""


class SftEvaluation(HeldOutEvaluation):
    """The loss on held-out examples, and accuracy on the tasks' held-out problems."""

    def __init__(
        self,
        config: TrainConfig,
        workers: Workers,
        tasks: Mapping[str, RunTask],
        stop: StopFlag,
        examples: Sequence[Rollout],
        right: Mapping[str, float] = MappingProxyType({}),
        *,
        is_new: bool = False,
    ) -> None:
        """
        Args:
            right: the accuracy of each task's examples.
            is_new: the weights are random, of which there is nothing to measure but the loss.
        """
        super().__init__(config, workers, tasks, stop)
        self.examples, self.right, self.is_new = examples, right, is_new

    def run(self, step: int, *, last: int) -> dict[str, float]:
        """Metrics of all tasks, and the held-out loss where there are such examples."""
        started, metrics = perf_counter(), dict[str, float]()
        if self.examples:
            assert self.workers.policy is not None
            self.workers.engine.sleep()
            with self.workers.display.activity("computing the held-out loss"):
                metrics[HELD_OUT_LOSS] = loss_of(self.workers.policy, self.examples)
            self.workers.display.held_out(step, {}, metrics[HELD_OUT_LOSS])
            metrics["timing_s/held_out_loss"] = perf_counter() - started
        if not self.prompts or (self.is_new and not step):  # completions of random weights never end
            return metrics
        if step or self.examples:  # it has slept, and the ranks that it was on may have been replaced
            with catch_out_of_memory("the rollout engine took over the weights"):
                self.workers.engine.load_weights()
        metrics |= super().run(step, last=last)
        for name, right in self.right.items() if step == last else ():
            if (accuracy := metrics[held_out_key(name, self.config.eval.samples)]) < max(TOO_LITTLE, FAR_BELOW * right):
                most, cut_off = self.config.rollout.max_completion_tokens, metrics[f"val-aux/{name}/truncated_frac"]
                advice = "give more run.steps, or examples with smaller steps (docs/reference/hooks.md)"
                if self.is_new and self.config.optimizer.learning_rate < OF_PRETRAINED:
                    advice = "tinyzero warmstart has the settings for a new decoder"
                elif cut_off > MANY_CUT_OFF:
                    advice = f"{percent(cut_off)} are cut off; give more than rollout.max_completion_tokens={most}"
                self.workers.display.warn(
                    f"{percent(accuracy)} of the problems of {name} are solved, and {percent(right)} by the examples; "
                    f"{advice}"
                )
        return metrics


def accuracy_of(examples: Sequence[Rollout], tasks: Mapping[str, Task]) -> dict[str, float]:
    """The fraction of each task's examples that are right, where its scorer may run here."""
    right: dict[str, list[bool]] = {}
    for example in examples:
        item, task = example.prompt.item, example.prompt.task
        if task not in tasks:  # it has a prompt of its own
            continue
        if tasks[task].info.unsafe_scorer or tasks[task].is_async:  # in worker processes only; one by one, and paid for
            continue
        score = tasks[task].score_completion(example.text, item.ground_truth)
        right.setdefault(task, []).append(score.correct)
    return {task: fmean(verdicts) for task, verdicts in right.items()}


def loss_of(policy: PolicyWorker, examples: Sequence[Rollout]) -> float:
    """Mean cross-entropy of the completions' tokens, in nats."""
    return -policy.logprobs(examples, 1.0).double().mean().item()


class SftStep:
    """Takes steps of supervised fine-tuning."""

    failure: None = None

    def __init__(
        self, config: SftConfig, workers: Workers, batches: Iterator[list[Rollout]], state: TrainerState
    ) -> None:
        assert workers.policy is not None
        self.config, self.workers, self.policy, self._batches = config, workers, workers.policy, batches
        self.policy_intact, seconds = True, config.run.seconds
        self.skipped = SkippedUpdates(RunDirectory(Path(config.run.output)), workers.display.warn)
        self._left_out = self._sampled = 0  # examples, since the start or since the run was resumed
        self._times: list[float] | None = None  # until the number of steps is known: when each was over
        if seconds is None:
            assert config.run.steps is not None
            self.last = config.run.steps
        elif state.step:
            self.last = max(state.step, round(state.step * seconds / state.elapsed_s))
        else:
            self.last, self._times = CALIBRATION_STEPS, []

    def save(self, directory: Path) -> None:
        """Nothing: a batch depends on its number alone."""

    def repeat(self, file: Path) -> None:
        """Let the next step learn from the examples in a file."""
        with damage_in_one_line(file):
            self._batches = iter([rollouts_from_json(file.read_bytes())])

    def take(self, step: int) -> tuple[list[Rollout], dict[str, float]]:
        """Learn from the next batch of examples; returns them, and the step's metrics."""
        timer = StepTimer()
        with self.workers.display.activity("making examples"):
            examples = next(self._batches)
        self._report_left_out(step, len(examples))
        timer.record("data")
        self.workers.engine.sleep()
        timer.skip()
        self.policy_intact = False
        batch = TrainingBatch.of(examples)
        batch.advantages = torch.ones(int(batch.lengths.sum()))
        steps = self.last if self._times is None else UNKNOWN_STEPS
        optimizer = self.config.optimizer
        if self.config.run.seconds is not None:  # a slow machine takes few steps
            optimizer = replace(optimizer, warmup_steps=min(optimizer.warmup_steps, steps // 10))
        rate = optimizer.learning_rate_at(step, steps)
        updating = self.workers.display.activity("updating the weights")
        with updating, catch_out_of_memory("the weights were updated"):
            updated = self.skipped.watch(
                step, lambda: self.policy.update(batch, StepSettings(rate)), lambda: rollouts_to_json(examples)
            )
        self.policy_intact = True
        timer.record("update_actor")
        seconds = timer.stop()
        self._calibrate()
        return examples, self._metrics(examples, updated, seconds)

    def _report_left_out(self, step: int, learned: int) -> None:
        """Warn when examples are too long for the first time, and at the end of how many have been."""
        batch_size, most = self.config.data.batch_size, self.config.data.max_length
        is_first = not self._left_out and learned < batch_size
        self._left_out, self._sampled = self._left_out + batch_size - learned, self._sampled + batch_size
        if is_first or (self._left_out and step == self.last):
            context = self.workers.language_model.context
            advice = "raise data.max_length" if most < context else "the model's context has no room for them"
            self.workers.display.warn(
                f"{percent(self._left_out / self._sampled)} of the examples {'so far ' * (step < self.last)}have more "
                f"than {min(most, context):,} tokens and are left out; {advice}"
            )

    def _calibrate(self) -> None:
        """Set the number of steps once their time is known; the first ones also compile."""
        if self._times is None or self.config.run.seconds is None:
            return
        self._times.append(perf_counter())
        if len(self._times) == CALIBRATION_STEPS:
            first, middle, last = (self._times[index] for index in (0, CALIBRATION_STEPS // 2 - 1, -1))
            seconds_left = self.config.run.seconds - (last - first)
            self.last += max(0, round(seconds_left / (last - middle) * CALIBRATION_STEPS / 2))
            self.workers.display.extend(self.last)
            self._times = None

    def _metrics(
        self, examples: list[Rollout], updated: dict[str, float], seconds: dict[str, float]
    ) -> dict[str, float]:
        renamed = {"actor/pg_loss": LOSS} | {
            f"actor/{name}": f"train/{name}" for name in ("lr", "grad_norm", "entropy", "skipped_updates")
        }
        metrics = {new: updated[name] for name, new in renamed.items() if name in updated}
        gpus, model, tokens = self.policy.gpu_memory(), self.workers.language_model, trained_tokens(examples)
        metrics |= {f"timing_s/{name}": value for name, value in seconds.items()} | memory_metrics(gpus)
        metrics["perf/total_num_tokens"] = float(tokens)
        metrics["perf/throughput"] = tokens / seconds["step"]
        if (peak := peak_flops(gpus)) is not None and model.adapter is None:
            metrics |= utilization(seconds, tokens, parameters={"actor": model.parameters}, peak=peak)
        return metrics
