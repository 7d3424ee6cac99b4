"""One training step: generate, score, compare, update. What happens between steps is the loop's business.

The order of things is here; everything that computes is a pure function elsewhere.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter

import torch

from tinyzero_sdk.seeds import derive_seed
from tinyzero_trainer.advantages import ESTIMATORS, AdvantageInputs, whiten
from tinyzero_trainer.batching import completion_lengths
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.divergences import SAMPLED, adapted_coefficient
from tinyzero_trainer.evaluation import write_samples
from tinyzero_trainer.experience import Experience
from tinyzero_trainer.interrupts import StopFlag
from tinyzero_trainer.memory_errors import explained
from tinyzero_trainer.mismatch import (
    KnownLogprobs,
    asks_engine,
    engine_logprobs,
    importance_weights,
)
from tinyzero_trainer.optimizing import UpdateError
from tinyzero_trainer.prompts import Progress
from tinyzero_trainer.records import Prompt, Rollout, Sample
from tinyzero_trainer.roles import Roles, generate, score
from tinyzero_trainer.rollout import SamplingParams
from tinyzero_trainer.schedules import StepSettings, settings_at
from tinyzero_trainer.step_metrics import batch_metrics, timing_metrics, trained_tokens
from tinyzero_trainer.tasks import training_stream
from tinyzero_trainer.utilization import peak_of, utilization
from tinyzero_trainer.window import WindowState, measure, observe, window_at


@dataclass(slots=True)
class Carried:
    """What one step hands to the next; part of a checkpoint."""

    progress: dict[str, Progress] = field(default_factory=dict)
    """How far the training stream of each task has come, by its name."""

    kl_coefficient: float | None = None
    """Weight of the KL where it adapts; None before it has."""

    window: WindowState = field(default_factory=WindowState)
    """Of the adaptive rollout window."""


class TrainingStep:
    """Takes steps; `carried` is brought up to date by each."""

    def __init__(self, config: TrainConfig, roles: Roles, carried: Carried, stop: StopFlag, rollouts: Path) -> None:
        """
        Args:
            config: of the run.
            roles: who does the work.
            carried: from the steps before.
            stop: polled while generating.
            rollouts: directory for the completions of a step that failed.
        """
        assert roles.policy is not None
        self.config, self.roles, self.policy, self.carried = config, roles, roles.policy, carried
        self.stop, self.rollouts = stop, rollouts
        self.stream = training_stream(config, roles.tasks, carried.progress)
        self._clock = _Clock()  # of the present step

    def take(self, step: int) -> tuple[list[Sample], dict[str, float], dict[str, float]]:
        """Take a step, counted from 1.

        Returns:
            all completions sampled; the step's metrics; wall-clock seconds of its parts, and of the whole as `step`.

        Raises:
            StopRequested: a signal asked for the end while generating; nothing has changed.
            UpdateError: too many updates in a row were not finite.
        """
        config, now = self.config, self.settings_at(step)
        self._clock = _Clock()
        window = window_at(
            self.carried.window, config.window, full=config.rollout.max_tokens, step=step, seed=config.run.seed
        )
        asked = asks_engine(config, step)
        params = SamplingParams(
            window,
            now.temperature,
            config.rollout.top_p,
            config.rollout.top_k,
            ignore_eos=config.rollout.ignore_eos,
            logprobs=asked,
        )
        samples, kept = self.collect(params, step)
        if config.algorithm.advantage != "remax":  # which has one more completion to generate
            self.roles.engine.sleep()
        with explained(config, "log-probabilities and values were computed"):
            known, corrected = self.known_logprobs(kept, now)
            outcome = self.outcome(kept, known, now)
        advantages = ESTIMATORS[config.algorithm.advantage](outcome)
        experience = as_experience(kept, outcome, advantages, known)
        self._clock.lap("adv")
        try:
            with explained(config, "the weights were updated"):
                updated = self.update(experience, now, step)
        except UpdateError:
            write_samples(self.rollouts / f"bad_step_{step:06d}.jsonl", samples)
            raise
        with explained(config, "the rollout engine took over the weights"):
            self.roles.engine.load_weights()
        self._clock.lap("update_weights")
        chosen = self.stream.close_step(samples)
        self.carried.progress = self.stream.progress()
        tasks = {name: role.task for name, role in self.roles.tasks.items()}
        metrics = {
            **batch_metrics(
                tasks,
                samples,
                config.rollout.samples_per_prompt,
                outcome,
                experience.advantages,
                self.policy.ranks,
            ),
            **chosen,
            **corrected,
            **updated,
            **self.close_kl(outcome, updated, now),
            **self.close_window(samples, window, step),
        }
        seconds = self._clock.stop()
        metrics |= timing_metrics(seconds, samples, kept) | self.utilization(seconds, kept)
        return samples, metrics, seconds

    def collect(self, params: SamplingParams, step: int) -> tuple[list[Sample], list[Sample]]:
        """All completions sampled, and those that are trained on.

        With dynamic sampling (arXiv 2503.14476, §3.2) groups whose answers are all equally right are left out, and
        more problems drawn in their place, for some rounds.
        """
        config, group_size = self.config, self.config.rollout.samples_per_prompt
        wanted, refills = config.data.prompts_per_step, config.data.dynamic_rounds
        samples: list[Sample] = []
        kept: list[Sample] = []
        for attempt in range(1 + refills):
            batch = [next(self.stream) for _ in range(wanted - len(kept) // group_size)]
            seed = derive_seed("rollout", config.run.seed, step, *([attempt] if attempt else []))
            rollouts = self.generate(batch, params, samples=group_size, seed=seed)
            self._clock.lap("gen")
            scored = score(self.roles, rollouts, max_failed_share=config.reward.max_failed_share)
            self._clock.lap("reward")
            samples += scored
            kept += _informative(scored, group_size) if refills else scored
            if len(kept) == wanted * group_size:
                break
        if not kept:
            # The step is made with what there is. That need not be nothing: rewards may be shaped, and not every
            # advantage is a comparison within a group.
            drawn = len(samples) // group_size
            self.roles.display.note(f"step {step}: in each of {drawn} groups all answers are equally right")
            kept = samples[: wanted * group_size]
        if all(sample.score.masked for sample in kept):
            self.roles.display.note(f"step {step}: all completions are masked, so nothing is learnt from it")
        return samples, kept

    def generate(
        self, prompts: list[Prompt], params: SamplingParams, *, samples: int, seed: int
    ) -> list[tuple[Prompt, Rollout]]:
        """Completions under the present weights; see `roles.generate`."""
        with explained(self.config, "completions were generated"):
            return generate(self.roles, prompts, params, samples=samples, seed=seed, stop=self.stop)

    def known_logprobs(self, samples: list[Sample], now: StepSettings) -> tuple[KnownLogprobs, dict[str, float]]:
        """What is known of the completions' probabilities before the update, and the metrics of a correction."""
        engine, source = engine_logprobs(samples), self.config.old_logprobs_source
        if source == "engine":
            return KnownLogprobs(engine, engine), {}
        if source == "update":
            return KnownLogprobs(None, engine), {}
        old = self.policy.logprobs(samples, now.temperature)
        self._clock.lap("old_log_prob")
        if not self.config.mismatch.corrects:
            return KnownLogprobs(old, engine), {}
        assert engine is not None
        weights, metrics = importance_weights(old, engine, completion_lengths(samples), self.config.mismatch)
        return KnownLogprobs(old, engine, weights), metrics

    def outcome(self, samples: list[Sample], known: KnownLogprobs, now: StepSettings) -> AdvantageInputs:
        """What the completions earned, with everything that their advantages are computed from."""
        config = self.config
        penalties = greedy_rewards = values = None
        lengths = completion_lengths(samples)
        if config.algorithm.kl_in_reward:
            assert known.old is not None
            reference = self.policy.reference_logprobs(samples, now.temperature)
            divergence = SAMPLED[config.algorithm.kl_estimator](known.old, reference)
            penalties = now.kl_coefficient * divergence
            self._clock.lap("ref")
        if config.algorithm.advantage == "remax":
            params = SamplingParams(config.rollout.max_tokens, temperature=0.0)
            rollouts = self.generate(_prompts(samples, config), params, samples=1, seed=0)
            greedy = score(self.roles, rollouts, max_failed_share=config.reward.max_failed_share)
            greedy_rewards = torch.tensor([sample.score.value for sample in greedy])
            self.roles.engine.sleep()
            self._clock.lap("gen_greedy")
        if self.roles.critic is not None:
            values = self.roles.critic.values(samples)
            self._clock.lap("values")
        return AdvantageInputs(
            rewards=torch.tensor([sample.score.value for sample in samples]),
            lengths=lengths,
            group_size=config.rollout.samples_per_prompt,
            penalties=penalties,
            values=values,
            greedy_rewards=greedy_rewards,
            discount=config.algorithm.discount,
            trace_decay=config.algorithm.trace_decay,
            counted=torch.tensor([not sample.score.masked for sample in samples]),
        )

    def update(self, experience: Experience, now: StepSettings, step: int) -> dict[str, float]:
        """Update the critic, if there is one, and the policy, unless the critic is still warming up."""
        group_size, critic = self.config.rollout.samples_per_prompt, self.roles.critic
        metrics = {}
        if critic is not None:
            metrics = critic.update(experience, group_size=group_size)
            self._clock.lap("update_critic")
        if critic is None or step > self.config.critic.warmup_steps:
            metrics |= self.policy.update(experience, group_size=group_size, now=now)
            self._clock.lap("update_actor")
        return metrics

    def utilization(self, seconds: dict[str, float], kept: list[Sample]) -> dict[str, float]:
        """Share of the card's peak that the updates reached; nothing on the CPU and on cards of unknown peak."""
        if self.config.run.device == "cpu" or not torch.cuda.is_available():
            return {}
        peak, language_model = peak_of(torch.device("cuda")), self.roles.language_model
        if peak is None:
            return {}
        # With an adapter the gradients of the other weights are not computed: 6 FLOPs a parameter would be too many.
        parameters = {} if language_model.adapter is not None else {"actor": language_model.parameters}
        if self.roles.critic is not None:
            parameters["critic"] = self.roles.critic.parameters
        tokens = self.config.optimizer.epochs * trained_tokens(kept)
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

    def close_window(self, samples: list[Sample], window: int, step: int) -> dict[str, float]:
        """Let the window adapt to the step."""
        full = self.config.rollout.max_tokens
        self.carried.window = observe(self.carried.window, measure(samples), self.config.window, full=full, step=step)
        if self.config.window.mode != "adaptive":
            return {}
        means = {
            "mean_success_length": self.carried.window.correct_length,
            "success_rate": self.carried.window.success_rate,
        }
        known = {f"adaptive_window/{name}": value for name, value in means.items() if value is not None}
        return {"adaptive_window/current_window": float(window), **known}


def as_experience(
    samples: list[Sample], outcome: AdvantageInputs, advantages: torch.Tensor, known: KnownLogprobs
) -> Experience:
    """What the update takes; with a critic the advantages are whitened, and the returns are what it shall learn."""
    values, returns = outcome.values, None
    if values is not None:
        # Not in `gae`, as the other estimators do: the returns are made of the advantages before they are whitened.
        advantages, returns = whiten(advantages, outcome.counted_tokens()), advantages + values
    return Experience(
        samples,
        outcome.lengths,
        known.old,
        advantages,
        values=values,
        returns=returns,
        importance=known.importance,
        engine_logprobs=known.engine,
    )


def _informative(samples: list[Sample], group_size: int) -> list[Sample]:
    """The groups in which what counts in the loss was not all scored alike by the task, however it was shaped."""
    groups = [samples[start : start + group_size] for start in range(0, len(samples), group_size)]
    scores = [{sample.score.unshaped for sample in group if not sample.score.masked} for group in groups]
    return [sample for group, found in zip(groups, scores, strict=True) if len(found) > 1 for sample in group]


def _prompts(samples: list[Sample], config: TrainConfig) -> list[Prompt]:
    return [sample.prompt for sample in samples[:: config.rollout.samples_per_prompt]]


class _Clock:
    """Wall-clock seconds of the parts of a step."""

    def __init__(self) -> None:
        self._started = self._last = perf_counter()
        self._seconds: dict[str, float] = {}

    def lap(self, name: str) -> None:
        """Charge the time since the last lap to `name`."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        now = perf_counter()
        self._seconds[name] = self._seconds.get(name, 0.0) + now - self._last
        self._last = now

    def stop(self) -> dict[str, float]:
        """All parts, and the whole as `step`."""
        return {**self._seconds, "step": perf_counter() - self._started}
