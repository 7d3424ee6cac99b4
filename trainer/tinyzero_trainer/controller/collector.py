"""The first half of a step: sample problems, generate completions and score them. The update comes after.

Nothing here depends on an update except through the engine's weights. With `rollout.max_async_level` the groups of a
batch come from in_flight.py; if the engine samples on by itself, the next batch is collected during the update.
"""

from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, nullcontext

from tinyzero_sdk.console import plural
from tinyzero_sdk.seeds import derive_seed
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.controller.checkpointer import SavedRun
from tinyzero_trainer.controller.in_flight import GroupsInFlight, InFlight
from tinyzero_trainer.controller.length_control import LengthStatistics, adapt, max_tokens_at
from tinyzero_trainer.controller.rollout_batch import RolloutBatch
from tinyzero_trainer.controller.state import TrainerState
from tinyzero_trainer.errors import EngineError, WorkerDiedError
from tinyzero_trainer.executors.base import Workers
from tinyzero_trainer.executors.tasks import training_stream
from tinyzero_trainer.monitoring.performance import StepTimer
from tinyzero_trainer.rewards.score import counted, score
from tinyzero_trainer.rollout import SamplingParams
from tinyzero_trainer.rollout.generation import generate
from tinyzero_trainer.types import Generation, Prompt, Rollout
from tinyzero_trainer.utils.background import run_in_background
from tinyzero_trainer.utils.oom import catch_out_of_memory
from tinyzero_trainer.utils.signals import AnyStop, Stop, StopRequested


class RolloutCollector:
    """Collects batches in the order of the steps."""

    def __init__(
        self, config: TrainConfig, workers: Workers, state: TrainerState, stop: Stop, saved: SavedRun | None = None
    ) -> None:
        """Continue from `state`, or from what a checkpoint has for later steps: the next batch, groups in flight."""
        self.config, self.workers, self.stop = config, workers, stop
        prefetched, in_flight = (None, None) if saved is None else (saved.prefetched, saved.in_flight)
        latest = in_flight or prefetched or state
        self.stream = training_stream(config, workers.tasks, latest.progress)
        self._length_control = latest.length_control
        self.groups: GroupsInFlight | None = None  # if all completions of a batch are sampled by the same weights
        if config.rollout.max_async_level:
            self.groups = GroupsInFlight(config, workers, self.stream, state.step, in_flight)
        self._timer = StepTimer()  # of the present batch
        self.prefetched = prefetched  # the next step's batch
        self._error: BaseException | None = None  # which ended prefetching
        self._failed = set[str]()  # tasks whose scorer has failed on a completion

    @property
    def in_flight(self) -> InFlight | None:
        """What a checkpoint keeps of the groups in flight; None if there are none."""
        return None if self.groups is None else self.groups.snapshot(self._length_control)

    @property
    def failure(self) -> WorkerDiedError | EngineError | None:
        """The worker failure that interrupted prefetching, if any."""
        return self._error if isinstance(self._error, WorkerDiedError | EngineError) else None

    def next_batch(self, step: int) -> RolloutBatch:
        """The batch of a step (1-based): prefetched during the step before, or collected now."""
        if self._error is not None:
            raise self._error
        batch = self.prefetched or self.collect(step, self.stop)
        assert batch.step == step
        return batch

    @contextmanager
    def prefetching(self, step: int) -> Iterator["Future[RolloutBatch] | None"]:
        """Collect the batch of `step` during the block, if there is one and the engine samples by itself."""
        if self.groups is None or not self.groups.engine.concurrent or step > self.config.run.steps:
            yield None
            self.prefetched = None
            return
        with run_in_background(lambda stop: self.collect(step, AnyStop(self.stop, stop))) as prefetch:
            yield prefetch
        self._error = prefetch.exception()
        self.prefetched = None if self._error else prefetch.result()

    def load_weights(self, version: int) -> None:
        """Let the engine take over the policy's weights, which have completed `version` steps."""
        if self.groups is None:
            self.workers.engine.load_weights()
        else:
            self.groups.load_weights(version)

    def collect(self, step: int, stop: Stop) -> RolloutBatch:
        """Sample and score the batch of a step (1-based); raises `StopRequested` if `stop` is requested meanwhile."""
        config, rollout = self.config, self.config.rollout
        self._timer = StepTimer()
        control, full = config.length_control, rollout.max_completion_tokens
        max_tokens = max_tokens_at(self._length_control, control, full=full, step=step, seed=config.run.seed)
        temperature, logprobs = config.settings_at(step).temperature, rollout.returns_logprobs(step)
        params = SamplingParams(
            max_tokens, temperature, rollout.top_p, rollout.top_k, ignore_eos=rollout.ignore_eos, logprobs=logprobs
        )
        with nullcontext() if self.groups is None else self.groups.collecting():
            rollouts, kept = self.sample(params, step, stop)
            greedy_rewards = self.greedy_rewards(kept, stop) if config.algorithm.needs("greedy") else None
        known = counted(rollouts, {name: task.task for name, task in self.workers.tasks.items()})
        self._length_control = adapt(self._length_control, LengthStatistics.of(known), control, full=full, step=step)
        versions = [version for rollout in rollouts for version, _ in rollout.generation.versions]
        return RolloutBatch(
            step=step,
            version=min(versions, default=step - 1),
            rollouts=rollouts,
            kept=kept,
            greedy_rewards=greedy_rewards,
            max_tokens=max_tokens,
            length_control=self._length_control,
            curriculum_metrics=self.stream.close_step(known),
            progress=self.stream.progress(),
            seconds=self._timer.seconds,
            in_flight=0 if self.groups is None else len(self.groups),
        )

    def sample(self, params: SamplingParams, step: int, stop: Stop) -> tuple[list[Rollout], list[Rollout]]:
        """All completions sampled, and those that are trained on.

        With dynamic sampling (arXiv 2503.14476, §3.2) groups whose answers are all equally right are dropped, and more
        problems sampled in their place, for up to `data.max_refill_rounds` rounds.
        """
        config, group_size = self.config, self.config.rollout.group_size
        count, refills = config.data.prompts_per_step, config.data.max_refill_rounds
        rollouts: list[Rollout] = []
        kept: list[Rollout] = []
        for attempt in range(1 + refills):
            wanted = count - len(kept) // group_size
            if self.groups is None:
                prompts = [next(self.stream) for _ in range(wanted)]
                seed = derive_seed("rollout", config.run.seed, step, *([attempt] if attempt else []))
                generated = self._generate(prompts, params, samples=group_size, seed=seed, stop=stop)
            else:
                generated = self._take(self.groups, wanted, step, params, stop)
            self._timer.record("gen")
            scored = self._score(generated, group_size)
            self._timer.record("reward")
            rollouts += scored
            kept += self._informative(scored) if refills else scored
            if len(kept) == count * group_size:
                break
        if not kept:
            # Train on these: rewards may be shaped, and not every advantage is a comparison within a group.
            groups = plural(len(rollouts) // group_size, "group")
            self.workers.display.log(f"step {step:,}: the answers within each of {groups} are equally right")
            kept = rollouts[: count * group_size]
        return rollouts, kept

    def _informative(self, rollouts: list[Rollout]) -> list[Rollout]:
        """The groups whose unmasked completions differ in the task's own score, or in a part that is compared."""
        by_part, group_size = self.config.algorithm.needs("parts"), self.config.rollout.group_size

        def own(rollout: Rollout) -> tuple[float, ...]:
            parts = self.workers.tasks[rollout.prompt.task].task.info.parts if by_part else ()
            return rollout.score.unshaped, *(rollout.score.parts.get(name, 0.0) for name in parts)

        groups = [rollouts[start : start + group_size] for start in range(0, len(rollouts), group_size)]
        differing = (group for group in groups if len({own(sample) for sample in group if not sample.score.masked}) > 1)
        return [rollout for group in differing for rollout in group]

    def greedy_rewards(self, kept: list[Rollout], stop: Stop) -> list[float]:
        """The score of each prompt's greedy completion, at full length, under the weights that sampled."""
        config = self.config
        params = SamplingParams(config.rollout.max_completion_tokens, temperature=0.0)
        prompts = [rollout.prompt for rollout in kept[:: config.rollout.group_size]]
        greedy = self._score(self._generate(prompts, params, samples=1, seed=0, stop=stop), group_size=1)
        self._timer.record("gen_greedy")
        return [rollout.score.value for rollout in greedy]

    def _generate(
        self, prompts: list[Prompt], params: SamplingParams, *, samples: int, seed: int, stop: Stop
    ) -> list[tuple[Prompt, Generation]]:
        workers = self.workers
        model, engine, total = workers.language_model, workers.engine, len(prompts) * samples
        with workers.display.activity("sampling completions", total) as advance:
            return generate(model, engine, prompts, samples, params, seed=seed, on_progress=advance, stop=stop)

    def _take(
        self, groups: GroupsInFlight, count: int, step: int, params: SamplingParams, stop: Stop
    ) -> list[tuple[Prompt, Generation]]:
        def report(finished: int) -> None:
            advance(finished)
            if stop.requested:
                raise StopRequested

        sampling = self.workers.display.activity("sampling completions", count * self.config.rollout.group_size)
        with sampling as advance, catch_out_of_memory("completions were generated"):
            return groups.take(count, step, params, report)

    def _score(self, generated: list[tuple[Prompt, Generation]], group_size: int) -> list[Rollout]:
        workers, limit = self.workers, self.config.reward.max_failure_rate
        tokenizer, report = workers.language_model.tokenizer, self._report_failure
        with workers.display.activity("scoring completions"):
            return score(
                generated, tokenizer, workers.pools, group_size=group_size, max_failure_rate=limit, on_failure=report
            )

    def _report_failure(self, task: str, message: str) -> None:
        if task not in self._failed:  # the metrics count the others
            self._failed.add(task)
            self.workers.display.warn(message)
