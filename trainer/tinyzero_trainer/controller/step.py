"""One training step: collect, compare, update. What happens between steps is the loop's business.

The order of things is here, and what runs beside what; everything that computes is a pure function elsewhere. With
`rollout.max_async_level=1` the next step's batch is collected beside the update, by the weights from before it.
That begins and
ends within the step: between steps no thread is left, and the engine has the newest weights.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from tinyzero_trainer.algorithms.adaptive_length import WindowState
from tinyzero_trainer.algorithms.advantages import ESTIMATORS, AdvantageInputs, whiten
from tinyzero_trainer.algorithms.importance_sampling import (
    ENGINE_DIVERGENCE,
    OldLogprobs,
    engine_logprobs,
    importance_weights,
)
from tinyzero_trainer.algorithms.kl import SAMPLED, adapted_coefficient
from tinyzero_trainer.algorithms.schedules import StepSettings, settings_at
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.controller.collector import RolloutBatch, RolloutCollector
from tinyzero_trainer.controller.heldout_eval import write_samples
from tinyzero_trainer.controller.step_metrics import batch_metrics, timing_metrics, trained_tokens
from tinyzero_trainer.data.prompts import StreamState
from tinyzero_trainer.errors import WorkerDiedError
from tinyzero_trainer.executors.base import Workers
from tinyzero_trainer.monitoring.performance import GpuMemoryUsage, memory_metrics, peak_flops, utilization
from tinyzero_trainer.monitoring.timer import StepTimer
from tinyzero_trainer.rollout.vllm.client import VllmError
from tinyzero_trainer.training.batch import TrainingBatch
from tinyzero_trainer.training.micro_batches import completion_lengths
from tinyzero_trainer.training.optimizer import UpdateError
from tinyzero_trainer.types import Rollout
from tinyzero_trainer.utils.background import run_in_background
from tinyzero_trainer.utils.oom import catch_out_of_memory
from tinyzero_trainer.utils.signals import StopFlag

WAITED = "wait_for_rollouts"
"""Seconds of a step in which nothing was learnt, since the completions were still on their way."""

STOPPING = "stopping as soon as the next batch has been sampled, which is saved too; another signal leaves at once"


@dataclass(slots=True)
class TrainerState:
    """What one step hands to the next; part of a checkpoint."""

    progress: dict[str, StreamState] = field(default_factory=dict)
    """How far the training stream of each task has come, by its name."""

    kl_coefficient: float | None = None
    """Weight of the KL where it adapts; None before it has."""

    window: WindowState = field(default_factory=WindowState)
    """Of the adaptive rollout window."""


class TrainingStep:
    """Takes steps; `carried` is brought up to date by each."""

    def __init__(
        self,
        config: TrainConfig,
        roles: Workers,
        carried: TrainerState,
        stop: StopFlag,
        rollouts: Path,
        ready: RolloutBatch | None = None,
    ) -> None:
        """
        Args:
            config: of the run.
            roles: who does the work.
            carried: from the steps before.
            stop: polled while generating.
            rollouts: directory for the completions of a step that failed.
            ready: the batch of the next step, if it has been collected.
        """
        assert roles.policy is not None
        self.config, self.roles, self.policy, self.carried = config, roles, roles.policy, carried
        self.stop, self.rollouts = stop, rollouts
        # Where the collector stands; a batch ahead of what is carried.
        progress, window = (carried.progress, carried.window) if ready is None else (ready.progress, ready.window_after)
        self.collector = RolloutCollector(config, roles, progress, window)
        self._next: Future[RolloutBatch] | None = None
        if ready is not None:
            self._next = Future()
            self._next.set_result(ready)
        self._clock = StepTimer()  # of the present step
        self.policy_is_whole = True
        """Whether it is as the last step left it, and not amid the next one's update, or after it."""

    @property
    def ready(self) -> RolloutBatch | None:
        """The batch of the next step; None = it has yet to be collected."""
        return None if self._next is None or self._next.exception() else self._next.result()

    @property
    def _lost(self) -> WorkerDiedError | VllmError | None:
        """Whom the next step's batch lacked."""
        error = None if self._next is None else self._next.exception()
        return error if isinstance(error, WorkerDiedError | VllmError) else None

    def check_workers(self) -> None:
        """Between steps: whether everyone is there who is needed to go on.

        Raises:
            WorkerLost: someone was lost while the next step's batch was collected. The step that was taken meanwhile is
                whole, but the engines may lack its weights.
            VllmError: the same of a vLLM that has failed more often than it may.
        """
        if self._lost is not None:
            raise self._lost

    def take(self, step: int) -> tuple[list[Rollout], dict[str, float], dict[str, float]]:
        """Take a step, counted from 1; with `rollout.max_async_level=1` collect the next one's batch meanwhile.

        Returns:
            all completions sampled; the step's metrics; wall-clock seconds of its parts, and of the whole as `step`.

        Raises:
            StopRequested: a signal asked for the end while generating; nothing has changed.
            UpdateError: too many updates in a row were not finite.
            TinyZeroError: a worker or a task failed; if that was while its batch was collected, nothing has changed.
        """
        config, now = self.config, self.settings_at(step)
        self._clock = StepTimer()
        batch = self.next_batch(step)
        with self.collecting(step + 1) as following:
            outcome, experience, metrics = self.learn(batch, now)
            if following is not None and self.stop.requested and not following.done():
                self.roles.display.note(STOPPING)
        self._next = following
        if following is not None:
            self._clock.lap(WAITED)
        if self._lost is None:
            with catch_out_of_memory("the rollout engine took over the weights"):
                self.roles.engine.load_weights()
        self._clock.lap("update_weights")
        self.carried.progress, self.carried.window = batch.progress, batch.window_after
        tasks = {name: role.task for name, role in self.roles.tasks.items()}
        metrics = {
            **batch_metrics(
                tasks,
                batch.samples,
                config.rollout.group_size,
                outcome,
                experience.advantages,
                self.policy.ranks // config.parallel.sequence_parallel,
            ),
            **batch.chosen,
            **metrics,
            **self.staleness(batch, metrics),
            **self.close_kl(outcome, metrics, now),
            **self.window_metrics(batch),
        }
        seconds = {**batch.seconds, **self._clock.stop()}
        cards = self.policy.cards()
        metrics |= timing_metrics(seconds, batch.samples, batch.kept) | memory_metrics(cards)
        metrics |= self.utilization(seconds, batch.kept, cards)
        self.policy_is_whole = True
        return batch.samples, metrics, seconds

    def next_batch(self, step: int) -> RolloutBatch:
        """The batch of this step: the one that was collected during the last, or one that is collected now."""
        batch = self._next.result() if self._next is not None else self.collector.collect(step, step - 1, self.stop)
        if self.config.rollout.max_async_level:
            self._clock.lap(WAITED)
        else:
            self.roles.engine.sleep()
            self._clock.skip()
        assert batch.step == step
        return batch

    @contextmanager
    def collecting(self, step: int) -> Iterator["Future[RolloutBatch] | None"]:
        """While the step before is taken, collect the batch of `step`, if that is wanted and there is such a step.

        A signal does not end it: what it has sampled cannot be had again from the weights that a checkpoint holds.
        """
        if not self.config.rollout.max_async_level or step > self.config.run.steps:
            yield None
            return
        version = step - 2  # the update of the step before is under way, and the engine has not seen it
        with run_in_background(lambda unwanted: self.collector.collect(step, version, unwanted)) as following:
            yield following

    def learn(self, batch: RolloutBatch, now: StepSettings) -> tuple[AdvantageInputs, TrainingBatch, dict[str, float]]:
        """Compare the completions of a batch and update; what they earned, what the update took, and its metrics."""
        config = self.config
        with catch_out_of_memory("log-probabilities and values were computed"):
            known, corrected = self.known_logprobs(batch.kept, now)
            outcome = self.outcome(batch.kept, known, now, batch.greedy_rewards)
        advantages = ESTIMATORS[config.algorithm.advantage_estimator](outcome)
        experience = as_experience(batch.kept, outcome, advantages, known)
        self._clock.lap("adv")
        try:
            with catch_out_of_memory("the weights were updated"):
                updated = self.update(experience, now, batch.step)
        except UpdateError:
            write_samples(self.rollouts / f"bad_step_{batch.step:06d}.jsonl", batch.samples)
            raise
        return outcome, experience, corrected | updated

    def known_logprobs(self, samples: list[Rollout], now: StepSettings) -> tuple[OldLogprobs, dict[str, float]]:
        """What is known of the completions' probabilities before the update, and the metrics of a correction."""
        engine, source = engine_logprobs(samples), self.config.old_logprobs_source
        if source == "engine":
            return OldLogprobs(engine, engine), {}
        if source == "update":
            return OldLogprobs(None, engine), {}
        old = self.policy.logprobs(samples, now.temperature)
        self._clock.lap("old_log_prob")
        if not self.config.rollout_correction.corrects:
            return OldLogprobs(old, engine), {}
        assert engine is not None
        weights, metrics = importance_weights(old, engine, completion_lengths(samples), self.config.rollout_correction)
        return OldLogprobs(old, engine, weights), metrics

    def outcome(
        self,
        samples: list[Rollout],
        known: OldLogprobs,
        now: StepSettings,
        greedy_rewards: list[float] | None = None,
    ) -> AdvantageInputs:
        """What the completions earned, with everything that their advantages are computed from."""
        config = self.config
        penalties = values = None
        lengths = completion_lengths(samples)
        if config.algorithm.kl_in_reward:
            assert known.old is not None
            reference = self.policy.reference_logprobs(samples, now.temperature)
            divergence = SAMPLED[config.algorithm.kl_estimator](known.old, reference)
            penalties = now.kl_coefficient * divergence
            self._clock.lap("ref")
        if self.roles.critic is not None:
            values = self.roles.critic.values(samples)
            self._clock.lap("values")
        return AdvantageInputs(
            rewards=torch.tensor([sample.score.value for sample in samples]),
            lengths=lengths,
            group_size=config.rollout.group_size,
            penalties=penalties,
            values=values,
            greedy_rewards=None if greedy_rewards is None else torch.tensor(greedy_rewards),
            gamma=config.algorithm.gamma,
            gae_lambda=config.algorithm.gae_lambda,
            counted=torch.tensor([not sample.score.masked for sample in samples]),
        )

    def update(self, experience: TrainingBatch, now: StepSettings, step: int) -> dict[str, float]:
        """Update the critic, if there is one, and the policy, unless the critic is still warming up."""
        group_size, critic = self.config.rollout.group_size, self.roles.critic
        self.policy_is_whole = False
        metrics = {}
        if critic is not None:
            metrics = critic.update(experience, group_size=group_size)
            self._clock.lap("update_critic")
        if critic is None or step > self.config.critic.warmup_steps:
            metrics |= self.policy.update(experience, group_size=group_size, now=now)
            self._clock.lap("update_actor")
        return metrics

    def utilization(
        self, seconds: dict[str, float], kept: list[Rollout], cards: Sequence[GpuMemoryUsage]
    ) -> dict[str, float]:
        """Share of the cards' peak that the updates reached; nothing on the CPU and on cards of unknown peak."""
        peak, language_model = peak_flops(cards), self.roles.language_model
        if peak is None:
            return {}
        # With an adapter the gradients of the other weights are not computed: 6 FLOPs a parameter would be too many.
        parameters = {} if language_model.adapter is not None else {"actor": language_model.parameters}
        if self.roles.critic is not None:
            parameters["critic"] = self.roles.critic.parameters
        tokens = self.config.optimizer.update_epochs * trained_tokens(kept)
        return utilization(seconds, tokens, parameters=parameters, peak=peak)

    def settings_at(self, step: int) -> StepSettings:
        """What holds in a step: the schedules, and the coefficient that has adapted."""
        now = settings_at(self.config, step)
        return now if self.carried.kl_coefficient is None else replace(now, kl_coefficient=self.carried.kl_coefficient)

    def close_kl(self, outcome: AdvantageInputs, updated: dict[str, float], now: StepSettings) -> dict[str, float]:
        """The KL of the step and its coefficient, which then adapts if it shall."""
        algorithm, coefficient = self.config.algorithm, now.kl_coefficient
        if not coefficient:
            return {"actor/kl_coef": 0.0}
        if outcome.penalties is None:
            measured, metrics = updated.get("actor/kl_loss"), {}
        else:
            counted = outcome.counted_tokens()
            counting = outcome.penalties if counted is None else outcome.penalties[counted]
            measured = counting.mean().item() / coefficient if len(counting) else None
            metrics = {} if measured is None else {"actor/reward_kl_penalty": measured}
        if algorithm.kl_target is not None and measured is not None:
            self.carried.kl_coefficient = adapted_coefficient(
                coefficient,
                measured,
                target=algorithm.kl_target,
                horizon=algorithm.kl_horizon,
                count=len(outcome.lengths),
            )
        return {"actor/kl_coef": coefficient, **metrics}

    def window_metrics(self, batch: RolloutBatch) -> dict[str, float]:
        """The window of the step, and the averages by which it has adapted to it."""
        if self.config.length_control.mode != "adaptive":
            return {}
        means = {
            "mean_success_length": batch.window_after.correct_length,
            "success_rate": batch.window_after.success_rate,
        }
        known = {f"length_control/{name}": value for name, value in means.items() if value is not None}
        return {"length_control/max_tokens": float(batch.window), **known}

    def staleness(self, batch: RolloutBatch, updated: dict[str, float]) -> dict[str, float]:
        """How old the weights are that sampled the batch, in steps, and how far from them the policy was before it."""
        if not self.config.rollout.max_async_level:
            return {}
        steps = {"staleness/steps": float(batch.step - 1 - batch.version)}
        divergence = updated.get(ENGINE_DIVERGENCE)
        return steps if divergence is None else {**steps, "staleness/kl": divergence}


def as_experience(
    samples: list[Rollout], outcome: AdvantageInputs, advantages: torch.Tensor, known: OldLogprobs
) -> TrainingBatch:
    """What the update takes; with a critic the advantages are whitened, and the returns are what it shall learn."""
    values, returns = outcome.values, None
    if values is not None:
        # Not in `gae`, as the other estimators do: the returns are made of the advantages before they are whitened.
        advantages, returns = whiten(advantages, outcome.counted_tokens()), advantages + values
    return TrainingBatch(
        samples,
        outcome.lengths,
        known.old,
        advantages,
        values=values,
        returns=returns,
        importance=known.importance,
        engine_logprobs=known.engine,
    )
