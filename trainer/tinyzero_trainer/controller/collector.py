"""The first half of a step: problems are drawn, completions generated and scored. What is learnt of them comes after.

Nothing here depends on an update but through the weights that the engine has, so it may run beside the update of the
batch before (`rollout.max_async_level=1`): curriculum and window go by what was sampled, which is known when a
batch is collected.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from tinyzero_sdk.seeds import derive_seed
from tinyzero_trainer.algorithms.adaptive_length import WindowState, measure, observe, window_at
from tinyzero_trainer.algorithms.importance_sampling import asks_engine
from tinyzero_trainer.algorithms.schedules import settings_at
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.data.prompts import StreamState
from tinyzero_trainer.executors.base import Workers
from tinyzero_trainer.executors.local import generate, score
from tinyzero_trainer.executors.tasks import training_stream
from tinyzero_trainer.monitoring.timer import StepTimer
from tinyzero_trainer.rollout import SamplingParams
from tinyzero_trainer.types import Generation, Prompt, Rollout
from tinyzero_trainer.utils.oom import catch_out_of_memory
from tinyzero_trainer.utils.signals import Stop


@dataclass(frozen=True, slots=True)
class RolloutBatch:
    """A batch to train on, and how things stand after it."""

    step: int
    """That it is for, counted from 1."""

    version: int
    """Steps that the weights which sampled it had behind them."""

    samples: list[Rollout]
    """All completions."""

    kept: list[Rollout]
    """Those that are trained on: whole groups."""

    greedy_rewards: list[float] | None
    """Of the likeliest completion of each prompt that is trained on; None but for
    `algorithm.advantage_estimator=remax`."""

    window: int
    """Tokens that a completion could have."""

    window_after: WindowState
    """Of the adaptive window."""

    progress: dict[str, StreamState]
    """How far the training stream of each task has come."""

    chosen: dict[str, float]
    """Metrics of how the problems were chosen."""

    seconds: dict[str, float]
    """Of the parts of the work."""


class RolloutCollector:
    """Collects batches, in the order of the steps."""

    def __init__(
        self, config: TrainConfig, roles: Workers, progress: Mapping[str, StreamState], window: WindowState
    ) -> None:
        """
        Args:
            config: of the run.
            roles: whose engine and reward pools do the work.
            progress: of the training streams, after the last batch that was collected.
            window: after that batch.
        """
        self.config, self.roles = config, roles
        self.stream = training_stream(config, roles.tasks, progress)
        self._window = window
        self._clock = StepTimer()  # of the present batch

    def collect(self, step: int, version: int, stop: Stop) -> RolloutBatch:
        """The batch of a step.

        Args:
            step: counted from 1.
            version: steps that the engine's weights have behind them.
            stop: polled while generating.

        Raises:
            StopRequested: `stop` was requested; the policy has not been touched.
        """
        config, rollout = self.config, self.config.rollout
        self._clock = StepTimer()
        window = window_at(
            self._window, config.length_control, full=rollout.max_completion_tokens, step=step, seed=config.run.seed
        )
        params = SamplingParams(
            window,
            settings_at(config, step).temperature,
            rollout.top_p,
            rollout.top_k,
            ignore_eos=rollout.ignore_eos,
            logprobs=asks_engine(config, step),
        )
        samples, kept = self.sample(params, step, stop)
        greedy_rewards = self.greedy_rewards(kept, stop) if config.algorithm.advantage_estimator == "remax" else None
        self._window = observe(
            self._window, measure(samples), config.length_control, full=rollout.max_completion_tokens, step=step
        )
        return RolloutBatch(
            step=step,
            version=version,
            samples=samples,
            kept=kept,
            greedy_rewards=greedy_rewards,
            window=window,
            window_after=self._window,
            chosen=self.stream.close_step(samples),
            progress=self.stream.progress(),
            seconds=self._clock.seconds,
        )

    def sample(self, params: SamplingParams, step: int, stop: Stop) -> tuple[list[Rollout], list[Rollout]]:
        """All completions sampled, and those that are trained on.

        With dynamic sampling (arXiv 2503.14476, §3.2) groups whose answers are all equally right are left out, and
        more problems drawn in their place, for some rounds.
        """
        config, group_size = self.config, self.config.rollout.group_size
        wanted, refills = config.data.prompts_per_step, config.data.max_refill_rounds
        samples: list[Rollout] = []
        kept: list[Rollout] = []
        for attempt in range(1 + refills):
            batch = [next(self.stream) for _ in range(wanted - len(kept) // group_size)]
            seed = derive_seed("rollout", config.run.seed, step, *([attempt] if attempt else []))
            rollouts = self._generate(batch, params, samples=group_size, seed=seed, stop=stop)
            self._clock.lap("gen")
            scored = score(self.roles, rollouts, max_failure_rate=config.reward.max_failure_rate)
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

    def greedy_rewards(self, kept: list[Rollout], stop: Stop) -> list[float]:
        """What the likeliest completion of each prompt earns, at full length, under the weights that sampled."""
        config = self.config
        params = SamplingParams(config.rollout.max_completion_tokens, temperature=0.0)
        prompts = [sample.prompt for sample in kept[:: config.rollout.group_size]]
        rollouts = self._generate(prompts, params, samples=1, seed=0, stop=stop)
        greedy = score(self.roles, rollouts, max_failure_rate=config.reward.max_failure_rate)
        self._clock.lap("gen_greedy")
        return [sample.score.value for sample in greedy]

    def _generate(
        self, prompts: list[Prompt], params: SamplingParams, *, samples: int, seed: int, stop: Stop
    ) -> list[tuple[Prompt, Generation]]:
        with catch_out_of_memory("completions were generated"):
            return generate(self.roles, prompts, params, samples=samples, seed=seed, stop=stop)


def _informative(samples: list[Rollout], group_size: int) -> list[Rollout]:
    """The groups in which what counts in the loss was not all scored alike by the task, however it was shaped."""
    groups = [samples[start : start + group_size] for start in range(0, len(samples), group_size)]
    scores = [{sample.score.unshaped for sample in group if not sample.score.masked} for group in groups]
    return [sample for group, found in zip(groups, scores, strict=True) if len(found) > 1 for sample in group]
