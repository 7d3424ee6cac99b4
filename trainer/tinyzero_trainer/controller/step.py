"""One training step: collect a batch, compute its advantages, update. What happens between steps is in loop.py."""

import math
from array import array
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import torch

from tinyzero_sdk.errors import TinyZeroError
from tinyzero_trainer.algorithms.advantages import find_estimator, whiten
from tinyzero_trainer.algorithms.batch import TrainingBatch, mask_rejected
from tinyzero_trainer.algorithms.kl import SAMPLED, adapted_coefficient
from tinyzero_trainer.algorithms.rollout_correction import ENGINE_DIVERGENCE, importance_weights
from tinyzero_trainer.algorithms.schedules import StepSettings
from tinyzero_trainer.checkpoint.run_directory import RunDirectory
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.controller.checkpointer import SavedRun
from tinyzero_trainer.controller.collector import RolloutCollector
from tinyzero_trainer.controller.in_flight import save_in_flight
from tinyzero_trainer.controller.rollout_batch import BATCH_FILE, RolloutBatch, load_batch, to_json
from tinyzero_trainer.controller.signal_monitor import SignalMonitor
from tinyzero_trainer.controller.skipped_updates import SkippedUpdates
from tinyzero_trainer.controller.state import TrainerState
from tinyzero_trainer.controller.step_metrics import batch_metrics, staleness_metrics, timing_metrics, trained_tokens
from tinyzero_trainer.errors import EngineError, WorkerDiedError
from tinyzero_trainer.executors.base import Workers
from tinyzero_trainer.monitoring.performance import StepTimer, memory_metrics, peak_flops, utilization
from tinyzero_trainer.rewards.score import part_columns
from tinyzero_trainer.types import Rollout
from tinyzero_trainer.utils import jagged
from tinyzero_trainer.utils.oom import catch_out_of_memory
from tinyzero_trainer.utils.signals import StopFlag

WAITED = "wait_for_rollouts"  # key of the seconds of a step in which the trainer waited for completions


class TrainingStep:
    """Takes the steps that loop.py asks for, and keeps `state` up to date."""

    def __init__(
        self,
        config: TrainConfig,
        workers: Workers,
        state: TrainerState,
        stop: StopFlag,
        saved: SavedRun | None = None,
        signal: SignalMonitor | None = None,
    ) -> None:
        """`saved` is what the run is resumed from."""
        assert workers.policy is not None
        self.config, self.workers, self.policy, self.state = config, workers, workers.policy, state
        self.stop, self.signal = stop, signal
        self.tasks = {name: task.task for name, task in workers.tasks.items()}
        self.skipped = SkippedUpdates(RunDirectory(Path(config.run.output)), workers.display.warn)
        self.collector = RolloutCollector(config, workers, state, stop, saved)
        self._timer = StepTimer()  # of the current step
        self._estimate_advantages = find_estimator(config.algorithm.advantage_estimator)
        self.last = config.run.steps
        self.policy_intact = True

    @property
    def failure(self) -> TinyZeroError | None:
        return self.collector.failure

    def save(self, directory: Path) -> None:
        """Write to a checkpoint what was collected for later steps."""
        collector = self.collector
        if collector.prefetched is not None:
            (directory / BATCH_FILE).write_bytes(to_json(collector.prefetched))
        if (in_flight := collector.in_flight) is not None:
            save_in_flight(in_flight, directory)

    def repeat(self, file: Path) -> None:
        """Let the next step train on the batch in a file, and collect none after it."""
        self.collector.prefetched, self.collector.groups = load_batch(file), None

    def take(self, step: int) -> tuple[list[Rollout], dict[str, float]]:
        """Take a step (1-based); returns all completions that were sampled, and the step's metrics.

        An engine that samples by itself goes on meanwhile. Between steps no thread calls the workers, and the engine
        has the newest weights. Where collecting the batch fails or is stopped, nothing has changed.
        """
        settings, self._timer = self.settings_at(step), StepTimer()
        collected = self.collector.next_batch(step)
        if self.config.rollout.max_async_level:
            self._timer.record(WAITED)
        else:
            self.workers.engine.sleep()
            self._timer.skip()  # the collector has measured it
        with self.collector.prefetching(step + 1) as prefetch:
            batch, metrics = self.learn(collected, settings)
            self.sync_weights(step, prefetch)
        if prefetch is not None:
            self._timer.record(WAITED)
        self.state.progress, self.state.length_control = collected.progress, collected.length_control
        metrics |= self.adapt_kl(batch, metrics, settings) | self.step_metrics(collected, batch, metrics)
        self.policy_intact = True
        if self.signal is not None:
            self.signal.step(step, collected.rollouts)
        return with_training_values(collected, batch), metrics

    def sync_weights(self, version: int, prefetch: "Future[RolloutBatch] | None") -> None:
        """Let the engine take over the new weights, unless prefetching has shown that it failed."""
        failed = None if prefetch is None or not prefetch.done() else prefetch.exception()
        if not isinstance(failed, WorkerDiedError | EngineError):
            moving = self.workers.display.activity("passing the weights to the rollout engine")
            with moving, catch_out_of_memory("the rollout engine took over the weights"):
                self.collector.load_weights(version)
        self._timer.record("update_weights")

    def learn(self, collected: RolloutBatch, settings: StepSettings) -> tuple[TrainingBatch, dict[str, float]]:
        """Train on scored completions; returns the batch with all its columns, and metrics of the update."""
        display, batch = self.workers.display, self.batch_of(collected)
        with (
            display.activity("computing log-probabilities"),
            catch_out_of_memory("log-probabilities and values were computed"),
        ):
            metrics = self.add_logprobs(batch, settings)
            self.add_penalties_and_values(batch, settings)
        self.add_advantages(batch)
        self._timer.record("adv")
        with display.activity("updating the weights"), catch_out_of_memory("the weights were updated"):
            updated = self.skipped.watch(
                collected.step, lambda: self.update(batch, settings, collected.step), lambda: to_json(collected)
            )
        return batch, metrics | updated

    def batch_of(self, collected: RolloutBatch) -> TrainingBatch:
        """The completions that are trained on, with what the estimator needs from their scores."""
        algorithm, rollouts, greedy = self.config.algorithm, collected.kept, collected.greedy_rewards
        group_size, reason = self.config.rollout.group_size, "all completions are masked"
        if algorithm.estimator.only_correct:
            rollouts = mask_rejected(rollouts, group_size, algorithm.max_accepted)
            reason = "no completion is correct"
        if all(rollout.score.masked for rollout in rollouts):
            self.workers.display.log(f"step {collected.step:,}: {reason}, so it trains nothing")
        return TrainingBatch.of(
            rollouts,
            group_size,
            greedy_rewards=None if greedy is None else torch.tensor(greedy),
            gamma=algorithm.gamma,
            gae_lambda=algorithm.gae_lambda,
            **(part_columns(rollouts, self.tasks) if algorithm.needs("parts") else {}),
        )

    def add_logprobs(self, batch: TrainingBatch, settings: StepSettings) -> dict[str, float]:
        """Add old log-probabilities unless the update computes them, and importance weights if they are corrected."""
        source, correction = self.config.old_logprobs_source, self.config.rollout_correction
        if source == "engine":
            batch.old_logprobs = batch.engine_logprobs
        if source != "policy":
            return {}
        batch.old_logprobs = self.policy.logprobs(batch.rollouts, settings.temperature)
        self._timer.record("old_log_prob")
        if not correction.corrects:
            return {}
        assert batch.engine_logprobs is not None
        level, threshold, bounds = correction.is_level, correction.is_threshold, correction.rejection_bounds
        batch.is_weights, metrics = importance_weights(
            batch.old_logprobs, batch.engine_logprobs, batch.lengths, level=level, threshold=threshold, bounds=bounds
        )
        return metrics

    def add_penalties_and_values(self, batch: TrainingBatch, settings: StepSettings) -> None:
        """Add KL penalties for the rewards, the teacher's log-probabilities, and the critic's values."""
        if self.config.algorithm.kl_in_reward:
            assert batch.old_logprobs is not None
            reference = self.policy.reference_logprobs(batch.rollouts, settings.temperature)
            kl = SAMPLED[self.config.algorithm.kl_estimator](batch.old_logprobs, reference)
            batch.kl_penalties = settings.kl_coefficient * kl
            self._timer.record("ref")
        if self.workers.teacher is not None:
            batch.teacher_logprobs = self.workers.teacher.logprobs(batch.rollouts, settings.temperature)
            self._timer.record("teacher")
        if self.workers.critic is not None:
            batch.values = self.workers.critic.values(batch.rollouts)
            self._timer.record("values")

    def add_advantages(self, batch: TrainingBatch) -> None:
        """Add the advantages; with a critic add the returns too, and whiten the advantages after that."""
        batch.advantages = self._estimate_advantages(batch)
        if batch.values is not None:
            batch.returns = batch.advantages + batch.values
            batch.advantages = whiten(batch.advantages, batch.token_mask())

    def update(self, batch: TrainingBatch, settings: StepSettings, step: int) -> dict[str, float]:
        """Update the critic, if there is one, and the policy, unless the critic is still warming up."""
        critic, metrics = self.workers.critic, dict[str, float]()
        self.policy_intact = False
        if critic is not None:
            metrics = critic.update(batch)
            self._timer.record("update_critic")
        if critic is None or step > self.config.critic.warmup_steps:
            metrics |= self.policy.update(batch, settings)
            batch.entropies = self.policy.entropies()
            self._timer.record("update_actor")
        return metrics

    def settings_at(self, step: int) -> StepSettings:
        """The schedules' values in a step, with the KL coefficient as adapted so far."""
        settings, adapted = self.config.settings_at(step), self.state.kl_coefficient
        return settings if adapted is None else replace(settings, kl_coefficient=adapted)

    def adapt_kl(self, batch: TrainingBatch, updated: dict[str, float], settings: StepSettings) -> dict[str, float]:
        """Adapt the KL coefficient to the KL of the step, if there is an `algorithm.kl_target`; returns its metrics.

        `updated` are the update's metrics, which have the KL if it is in the loss.
        """
        algorithm, coefficient = self.config.algorithm, settings.kl_coefficient
        metrics = {"actor/kl_coef": coefficient}
        measured = updated.get("actor/kl_loss")
        if coefficient and batch.kl_penalties is not None:
            mask = batch.token_mask()
            penalties = batch.kl_penalties if mask is None else batch.kl_penalties[mask]
            measured = penalties.mean().item() / coefficient if len(penalties) else None
            if measured is not None:
                metrics["actor/reward_kl_penalty"] = measured
        if coefficient and algorithm.kl_target is not None and measured is not None and math.isfinite(measured):
            target, horizon, count = algorithm.kl_target, algorithm.kl_horizon, len(batch.lengths)
            self.state.kl_coefficient = adapted_coefficient(
                coefficient, measured, target=target, horizon=horizon, count=count
            )
        return metrics

    def step_metrics(
        self, collected: RolloutBatch, batch: TrainingBatch, updated: dict[str, float]
    ) -> dict[str, float]:
        """The step's metrics besides those of the update, which are `updated`, and of the KL coefficient."""
        config, gpus = self.config, self.policy.gpu_memory()
        ranks = self.policy.world_size // config.parallel.sequence_parallel
        metrics = batch_metrics(self.tasks, collected.rollouts, batch, ranks) | collected.curriculum_metrics
        if config.rollout.max_async_level:
            metrics |= staleness_metrics(batch.rollouts, collected)
            if ENGINE_DIVERGENCE in updated:
                metrics["staleness/kl"] = updated[ENGINE_DIVERGENCE]
        if config.length_control.mode == "adaptive":
            control, limit = collected.length_control, float(collected.max_tokens)
            values = {"mean_success_length": control.correct_length, "success_rate": control.success_rate}
            metrics |= {f"length_control/{name}": value for name, value in values.items() if value is not None}
            metrics["length_control/max_tokens"] = limit
        seconds = {**collected.seconds, **self._timer.stop()}
        metrics |= timing_metrics(seconds, collected.rollouts, batch.rollouts) | memory_metrics(gpus)
        if peak := peak_flops(gpus):
            policy, critic = self.workers.language_model, self.workers.critic
            # A policy with an adapter takes fewer than 6 FLOPs a parameter.
            parameters = {"actor": policy.parameters} if policy.adapter is None else {}
            parameters |= {} if critic is None else {"critic": critic.parameters}
            tokens = config.optimizer.update_epochs * trained_tokens(batch.rollouts)
            metrics |= utilization(seconds, tokens, parameters=parameters, peak=peak)
        return metrics


def with_training_values(collected: RolloutBatch, batch: TrainingBatch) -> list[Rollout]:
    """All completions of a step; those that counted in its loss have their mean advantage and their entropies."""
    assert batch.advantages is not None
    lengths = batch.lengths.tolist()
    advantages = (jagged.sums(batch.advantages, batch.lengths) / batch.lengths).tolist()
    entropies = [None] * len(lengths) if batch.entropies is None else batch.entropies.split(lengths)
    trained = {
        id(rollout): replace(
            rollout, advantage=advantage, entropies=None if entropy is None else array("f", entropy.numpy().tobytes())
        )
        # The batch has copies of completions that it masks.
        for rollout, used, advantage, entropy in zip(collected.kept, batch.rollouts, advantages, entropies, strict=True)
        if not used.score.masked
    }
    return [trained.get(id(rollout), rollout) for rollout in collected.rollouts]
