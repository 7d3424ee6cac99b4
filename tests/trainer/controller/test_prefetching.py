"""Rollouts ahead of the update (`rollout.max_async_level`): what runs concurrently, what is trained on, how it ends."""

import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch

from tests.trainer.controller.fakes import FakeStream, fake_workers
from tinyzero_sdk import Score
from tinyzero_sdk.errors import BrokenTaskError, TinyZeroError
from tinyzero_trainer.algorithms.batch import TrainingBatch
from tinyzero_trainer.algorithms.rollout_correction import ENGINE_DIVERGENCE
from tinyzero_trainer.algorithms.schedules import StepSettings
from tinyzero_trainer.config.compose import make_config
from tinyzero_trainer.controller import collector as collecting
from tinyzero_trainer.controller.state import TrainerState
from tinyzero_trainer.controller.step import TrainingStep
from tinyzero_trainer.errors import VllmError, WorkerDiedError
from tinyzero_trainer.rollout import SamplingParams
from tinyzero_trainer.rollout.engine import Group
from tinyzero_trainer.types import Generation, Prompt, Rollout
from tinyzero_trainer.utils.signals import StopFlag

TICK = 0.002
"""Seconds between two polls of the engine for a stop."""


@dataclass
class World:
    """Policy and engine of a step, with a log of what they do. A completion's first token is its weights' version."""

    generating: float = 0.0
    """Seconds that a batch or a group takes."""

    version: int = 0
    """Of the policy's weights: updates done."""

    loaded: int = 0
    """Of the engine's."""

    trained: list[tuple[int, int]] = field(default_factory=list)
    """Problem, and version of the weights that sampled it, of each update."""

    sampled: list[int] = field(default_factory=list)
    """Seeds."""

    notes: list[str] = field(default_factory=list)
    under_way: bool = False
    concurrent: bool = True
    waiting: list[Group] = field(default_factory=list)
    next_at: float = 0.0
    fail_sampling: BaseException | None = None
    fail_updating: BaseException | None = None
    during_generation: Callable[[], object] = lambda: None
    during_update: Callable[[], object] = lambda: None
    world_size = 1

    def gpu_memory(self) -> list[Any]:
        return []

    def submit(self, groups: Sequence[Group]) -> None:
        self.waiting += groups

    def advance(self, params: SamplingParams, on_progress: Callable[[int], None]) -> list[Group]:
        """The next group in order, by the weights that are loaded in the end."""
        self.under_way = True
        try:
            self.during_generation()
            time.sleep(TICK)
            if self.fail_sampling is not None:
                raise self.fail_sampling
            on_progress(0)
        finally:
            self.under_way = False
        if not self.waiting or time.monotonic() < self.next_at:
            return []
        self.next_at = time.monotonic() + self.generating
        group = self.waiting.pop(0)
        self.sampled.append(group.seed)
        sampled = Generation([self.loaded], [-1.0], True, ((self.loaded, 1),))
        return [replace(group, completions=(sampled,) * len(group.completions))]

    def unfinished(self) -> list[Group]:
        return list(self.waiting)

    def load_weights(self, version: int | None = None) -> None:
        assert version in (None, self.version), "the controller counts the updates"
        self.loaded = self.version

    def sleep(self) -> None:
        assert not self.under_way

    def logprobs(self, samples: Sequence[Rollout], temperature: float) -> torch.Tensor:
        return torch.full((len(samples),), -1.0)

    def update(self, batch: TrainingBatch, settings: StepSettings) -> dict[str, float]:
        sample = batch.rollouts[0]
        self.trained.append((sample.prompt.item.ground_truth, sample.generation.token_ids[0]))
        self.during_update()
        if self.fail_updating is not None:
            raise self.fail_updating
        self.version += 1
        return {ENGINE_DIVERGENCE: 0.125}

    def entropies(self) -> None:
        return None

    def steps(self, level: int = 1, *, steps: int = 9, state: TrainerState | None = None, **more: Any) -> TrainingStep:
        values = {
            "run": {"task": "toy", "output": "run", "steps": steps},
            "data": {"prompts_per_step": 1},
            "rollout": {"group_size": 2, "max_async_level": level, "return_logprobs": "always"},
            "rollout_correction": {"is_level": "token"},
        }
        stop = more.pop("stop", None) or StopFlag()
        workers = fake_workers(self, self, log=self.notes.append)
        return TrainingStep(make_config(values), workers, state or TrainerState(), stop, **more)


@pytest.fixture(autouse=True)
def _fakes(monkeypatch: pytest.MonkeyPatch) -> Any:
    def score(rollouts: Sequence[tuple[Prompt, Generation]], *_: Any, **__: Any) -> list[Rollout]:
        return [Rollout(*each, "", Score(float(place % 2), place % 2 == 1)) for place, each in enumerate(rollouts)]

    monkeypatch.setattr(collecting, "training_stream", lambda config, tasks, progress: FakeStream(progress))
    monkeypatch.setattr(collecting, "score", score)
    threads = set(threading.enumerate())  # one of an earlier test may end meanwhile
    yield
    assert set(threading.enumerate()) <= threads, "a thread is left"


def take(taken: TrainingStep, numbers: Sequence[int]) -> list[dict[str, float]]:
    return [taken.take(number)[1] for number in numbers]


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("concurrent", [False, True])
def test_the_staleness_is_that_of_the_weights_that_sampled(level: int, concurrent: bool) -> None:
    world = World(concurrent=concurrent)
    metrics = take(world.steps(level, steps=6), range(1, 7))
    reported = [row["staleness/steps"] for row in metrics]
    assert [step - version for step, (_, version) in enumerate(world.trained)] == reported
    assert [row["staleness/steps_max"] for row in metrics] == reported
    assert [row["staleness/stale_frac"] for row in metrics] == [float(age > 0) for age in reported]
    assert reported[0] == 0
    assert max(reported) <= (1 if concurrent else 0), "it samples in order, so nothing has to wait"
    assert {row["staleness/kl"] for row in metrics} == {0.125}
    assert [row["staleness/groups_in_flight"] for row in metrics][-1] == 0


def test_the_next_batch_is_sampled_during_the_update() -> None:
    world = World()
    steps = world.steps()
    take(steps, [1])
    updating, sampling = threading.Event(), threading.Event()
    world.during_generation = lambda: (sampling.set(), updating.wait(60))
    world.during_update = lambda: (updating.set(), sampling.wait(60))
    metrics = take(steps, [2, 3])
    assert updating.is_set()
    assert sampling.is_set()
    for row in metrics:
        assert row["timing_s/wait_for_rollouts"] + row["timing_s/update_actor"] <= row["timing_s/step"]


@pytest.mark.parametrize("error", [RuntimeError("no update"), KeyboardInterrupt()], ids=["failure", "second signal"])
def test_an_update_that_fails_or_is_interrupted_ends_the_concurrent_sampling(error: BaseException) -> None:
    """A first signal is polled; the second arrives as an exception, wherever the trainer is."""
    world = World()
    steps = world.steps()
    take(steps, [1])
    world.generating, world.fail_updating = 1e6, error
    with pytest.raises(type(error)):
        steps.take(2)
    assert not world.under_way
    assert steps.collector.prefetched.step == 2, "the batch of the step that was not taken"


def test_a_signal_ends_the_wait_for_the_next_batch_whose_groups_stay_in_flight() -> None:
    stop, world = StopFlag(), World()
    steps = world.steps(stop=stop)
    take(steps, [1])
    world.next_at, waiting = float("inf"), threading.Event()
    world.during_generation = waiting.set
    world.during_update = lambda: (waiting.wait(60), stop.handle(signal.SIGTERM))
    steps.take(2)
    assert steps.collector.prefetched is None
    assert steps.failure is None
    assert [each.group.number for each in steps.collector.in_flight.groups] == [2]
    assert world.loaded == 2


@pytest.mark.parametrize(
    "failure",
    [WorkerDiedError("the rollout engine", "has died", policy_intact=True), VllmError("the rollout engine has failed")],
)
def test_a_dead_engine_is_reported_after_the_running_step(failure: TinyZeroError) -> None:
    world = World()
    steps = world.steps()
    take(steps, [1])
    assert steps.collector.failure is None
    world.fail_sampling = failure
    world.during_update = lambda: time.sleep(0.2)
    _, metrics = steps.take(2)
    assert metrics["staleness/steps"] <= 1
    assert len(steps.collector.in_flight.groups) == 1
    assert steps.collector.failure is failure
    assert steps.policy_intact
    assert steps.collector.prefetched is None
    assert world.loaded == 1, "a dead engine was sent weights"
    assert len(world.trained) == 2


def test_a_failure_in_a_batch_is_raised_by_its_own_step() -> None:
    world = World()
    steps = world.steps()
    updating = threading.Event()
    world.during_generation = lambda: None if not world.sampled else updating.wait(60)

    def update() -> None:
        world.fail_sampling = BrokenTaskError("the scorer failed")
        updating.set()
        time.sleep(0.2)

    world.during_update = update
    take(steps, [1])
    assert steps.collector.failure is None
    assert world.loaded == 1, "the engine of an evaluation has old weights"
    with pytest.raises(BrokenTaskError, match="the scorer failed"):
        steps.take(2)
    assert [problem for problem, _ in world.trained] == [0]
