"""Rollouts a batch ahead of the update (`rollout.max_async_level=1`): what runs beside what, who trains on what,
who ends when."""

import itertools
import signal
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tinyzero_sdk import Item, Score
from tinyzero_sdk.errors import BrokenTaskError, SettingsError, TinyZeroError
from tinyzero_trainer.algorithms.batch import TrainingBatch
from tinyzero_trainer.algorithms.importance_sampling import ENGINE_DIVERGENCE
from tinyzero_trainer.algorithms.schedules import StepSettings
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.config.compose import make_config
from tinyzero_trainer.controller import collector as collecting
from tinyzero_trainer.controller.pending_batch import RolloutBatch, from_json, to_json
from tinyzero_trainer.controller.state import TrainerState
from tinyzero_trainer.controller.step import STOPPING, TrainingStep
from tinyzero_trainer.data.prompts import StreamState
from tinyzero_trainer.errors import VllmError, WorkerDiedError
from tinyzero_trainer.executors.ray import remote_workers
from tinyzero_trainer.executors.ray.calls import ActorHandle
from tinyzero_trainer.rollout import SamplingParams
from tinyzero_trainer.types import Generation, Prompt, Rollout
from tinyzero_trainer.utils.background import run_in_background
from tinyzero_trainer.utils.signals import StopFlag, StopRequested

APART = {"run": {"executor": "ray", "task": "toy", "output": "run"}, "rollout": {"num_engines": 1}}
CORRECTED: dict[str, dict[str, Any]] = {
    "rollout": {"num_engines": 1, "max_async_level": 1, "return_logprobs": "always"},
    "rollout_correction": {"is_level": "token"},
}
TICK = 0.002
"""Seconds between two looks of the engine at whether it shall end."""


class FakeStream:
    """Problems 0, 1, 2, …; one a batch."""

    def __init__(self, progress: dict[str, StreamState]) -> None:
        self.drawn = progress["toy"].taken if progress else 0

    def __next__(self) -> Prompt:
        self.drawn += 1
        return Prompt(Item(self.drawn - 1), "", [1], "toy")

    def close_step(self, samples: Sequence[Rollout]) -> dict[str, float]:
        return {}

    def progress(self) -> dict[str, StreamState]:
        return {"toy": StreamState(taken=self.drawn)}


@dataclass
class World:
    """Everyone whom a step needs, noting who does what when. A completion's first token is its weights' version."""

    generating: float = 0.0
    """Seconds that a batch takes."""

    updating: float = 0.0
    """Seconds that an update takes."""

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
    fail_sampling: BaseException | None = None
    fail_updating: BaseException | None = None
    during_update: Callable[[], None] = lambda: None
    ranks = 1

    def gpu_memory(self) -> list[Any]:
        return []

    # ---- the engine

    def generate(
        self,
        prompts: Sequence[list[int]],
        samples: int,
        params: SamplingParams,
        *,
        seed: int,
        first: int = 0,
        on_progress: Callable[[int], None] | None = None,
    ) -> list[list[Generation]]:
        assert on_progress is not None
        self.under_way, ends = True, time.monotonic() + self.generating
        self.sampled.append(seed)
        try:
            while time.monotonic() < ends:
                time.sleep(TICK)
                on_progress(0)
            if self.fail_sampling is not None:
                raise self.fail_sampling
            return [[Generation([self.loaded], [-1.0], True)] * samples for _ in prompts]
        finally:
            self.under_way = False

    def load_weights(self) -> None:
        assert not self.under_way, "weights were sent to an engine that generates"
        self.loaded = self.version

    def sleep(self) -> None:
        assert not self.under_way

    # ---- the policy

    def logprobs(self, samples: Sequence[Rollout], temperature: float) -> torch.Tensor:
        return torch.full((len(samples),), -1.0)

    def update(self, experience: TrainingBatch, settings: StepSettings) -> dict[str, float]:
        sample = experience.rollouts[0]
        self.trained.append((sample.prompt.item.ground_truth, sample.generation.token_ids[0]))
        self.during_update()
        time.sleep(self.updating)
        if self.fail_updating is not None:
            raise self.fail_updating
        self.version += 1
        return {ENGINE_DIVERGENCE: 0.125}

    # ---- the step

    def steps(self, lead: int = 1, *, steps: int = 9, state: TrainerState | None = None, **more: Any) -> TrainingStep:
        values: dict[str, Any] = {**APART, "data": {"prompts_per_step": 1}}
        values["run"] = {**APART["run"], "steps": steps}
        values["rollout"] = {"group_size": 2, "max_async_level": lead, "return_logprobs": "always", "num_engines": 1}
        roles = SimpleNamespace(
            policy=self,
            engine=self,
            critic=None,
            tasks={"toy": SimpleNamespace(task=SimpleNamespace(difficulties=lambda items: [0.0] * len(items)))},
            language_model=SimpleNamespace(context=999, tokenizer=None),
            pools={},
            display=SimpleNamespace(advance=lambda count: None, log=self.notes.append),
        )
        stop = more.pop("stop", None) or StopFlag()
        config = make_config({**values, "rollout_correction": {"is_level": "token"}})
        return TrainingStep(config, roles, state or TrainerState(), stop, None, **more)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def _fakes(monkeypatch: pytest.MonkeyPatch) -> Any:
    def score(rollouts: Sequence[tuple[Prompt, Generation]], *_: Any, **__: Any) -> list[Rollout]:
        return [Rollout(*each, "", Score(float(place % 2), place % 2 == 1)) for place, each in enumerate(rollouts)]

    monkeypatch.setattr(collecting, "training_stream", lambda config, tasks, progress: FakeStream(progress))
    monkeypatch.setattr(collecting, "score", score)
    threads = threading.active_count()
    yield
    assert threading.active_count() == threads, "a thread is left"


def take(taken: TrainingStep, numbers: Sequence[int]) -> list[dict[str, float]]:
    return [taken.take(number)[1] for number in numbers]


# ---- who trains on what ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lead", [0, 1])
def test_every_batch_is_trained_once_in_the_order_and_with_the_seeds_of_a_synchronous_run(lead: int) -> None:
    world, synchronous = World(), World()
    take(world.steps(lead, steps=5), range(1, 6))
    take(synchronous.steps(0, steps=5), range(1, 6))
    assert [problem for problem, _ in world.trained] == list(range(5))
    assert world.sampled == synchronous.sampled
    assert len(set(world.sampled)) == 5


def test_the_staleness_told_is_that_of_the_weights_which_sampled() -> None:
    world = World(updating=TICK)
    metrics = take(world.steps(steps=5), range(1, 6))
    told = [row["staleness/steps"] for row in metrics]
    assert told == [0, 1, 1, 1, 1]
    assert [step - version for step, (_, version) in enumerate(world.trained)] == told
    assert {row["staleness/kl"] for row in metrics} == {0.125}


def test_without_a_lead_every_batch_is_sampled_by_the_newest_weights() -> None:
    world = World()
    metrics = take(world.steps(0, steps=4), range(1, 5))
    assert world.trained == [(step, step) for step in range(4)]
    assert not [name for row in metrics for name in row if name.startswith("staleness") or "wait_for" in name]


def test_nothing_is_sampled_past_the_last_step() -> None:
    world = World()
    steps = world.steps(steps=2)
    take(steps, [1])
    assert steps.collector.prefetched is not None
    take(steps, [2])
    assert steps.collector.prefetched is None
    assert len(world.sampled) == 2


@pytest.mark.slow
@pytest.mark.parametrize("cut", range(5))
def test_a_run_that_is_cut_anywhere_goes_on_with_the_same_batches(cut: int) -> None:
    """What a checkpoint holds: its state, and the prefetched batch."""
    steps, whole, parted = 5, World(), World()
    all_of_them = whole.steps(steps=steps)
    expected = take(all_of_them, range(1, steps + 1))
    before = parted.steps(steps=steps)
    found = take(before, range(1, cut + 1))
    ready = None if before.collector.prefetched is None else from_json(to_json(before.collector.prefetched))
    after = parted.steps(steps=steps, state=before.state, prefetched=ready)
    found += take(after, range(cut + 1, steps + 1))
    assert parted.trained == whole.trained
    timeless = [{key: value for key, value in row.items() if "tim" not in key and "perf" not in key} for row in found]
    assert timeless == [{key: row[key] for key in ours} for row, ours in zip(expected, timeless, strict=True)]
    assert after.state == all_of_them.state


# ---- time ------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("generating", "updating"), [(0.15, 0.1), (0.1, 0.15)])
def test_a_step_takes_as_long_as_the_slower_of_the_two(generating: float, updating: float) -> None:
    rows = take(World(generating, updating).steps(), range(1, 5))
    assert rows[0]["timing_s/step"] >= generating + max(generating, updating)  # nothing has been sampled yet
    for row, following in pairwise(rows[1:]):
        # As measured, since on a busy machine all of it takes longer.
        beside_it, update = following["timing_s/gen"], row["timing_s/update_actor"]
        assert max(generating, updating) <= row["timing_s/step"] < beside_it + update
        waited = row["timing_s/wait_for_rollouts"]
        assert waited < beside_it
        assert waited + update <= row["timing_s/step"]


# ---- the end, whoever brings it --------------------------------------------------------------------------------------


def test_a_failed_update_ends_the_sampling_beside_it() -> None:
    world = World(fail_updating=RuntimeError("no update"))
    steps = world.steps()
    collector = steps.collector
    collector.next_batch = lambda step, collect=collector.next_batch: _slower(world, collect(step))  # type: ignore[method-assign]
    started = time.monotonic()
    with pytest.raises(RuntimeError, match="no update"):
        steps.take(1)
    assert time.monotonic() - started < 60  # against hanging
    assert not world.under_way


def _slower(world: World, batch: RolloutBatch) -> RolloutBatch:
    """From now on sampling takes for ever."""
    world.generating = 1e6
    return batch


def test_a_second_signal_ends_both_sides() -> None:
    """The first is polled; the second arrives as an exception, wherever the trainer is."""
    world = World()
    steps = world.steps()
    take(steps, [1])
    world.generating, interrupted = 1e6, KeyboardInterrupt()

    def interrupt() -> None:
        raise interrupted

    world.during_update = interrupt
    with pytest.raises(KeyboardInterrupt):
        steps.take(2)
    assert not world.under_way
    assert steps.collector.prefetched is not None, "the batch of the step that was not taken"
    assert steps.collector.prefetched.step == 2


def test_a_signal_lets_both_sides_finish_and_the_batch_is_kept() -> None:
    stop = StopFlag()
    world = World(generating=0.03)
    steps = world.steps(stop=stop)
    take(steps, [1])
    world.during_update = lambda: stop.handle(signal.SIGTERM)
    take(steps, [2])
    assert steps.collector.prefetched is not None
    assert (steps.collector.prefetched.step, steps.collector.prefetched.version) == (3, 1)
    assert world.notes == [STOPPING]


def test_a_signal_before_anything_was_sampled_ends_the_step_at_once() -> None:
    stop = StopFlag()
    stop.handle(signal.SIGINT)
    world = World(generating=1e6)
    steps = world.steps(stop=stop)
    with pytest.raises(StopRequested):
        steps.take(1)
    assert steps.collector.prefetched is None
    assert world.trained == []


@pytest.mark.parametrize(
    "failure",
    [
        WorkerDiedError("the rollout engine", "has died", policy_intact=True),
        VllmError("the rollout engine has failed"),
    ],
)
def test_a_lost_engine_is_told_of_after_the_step_that_was_under_way(failure: TinyZeroError) -> None:
    world = World()
    steps = world.steps()
    take(steps, [1])
    assert steps.collector.failure is None
    world.fail_sampling = failure
    _, metrics = steps.take(2)
    assert metrics["staleness/steps"] == 1
    assert steps.state.progress["toy"].taken == 2
    assert steps.collector.failure is failure
    assert steps.policy_intact
    assert steps.collector.prefetched is None
    assert world.loaded == 1, "a dead engine was sent weights"
    assert len(world.trained) == 2


def test_what_fails_in_a_batch_is_raised_by_its_own_step() -> None:
    world = World()
    steps = world.steps()
    world.during_update = lambda: setattr(world, "fail_sampling", BrokenTaskError("the scorer failed"))
    world.generating = 0.02
    take(steps, [1])
    assert steps.collector.failure is None
    assert world.loaded == 1, "an evaluation would be of old weights"
    with pytest.raises(BrokenTaskError, match="the scorer failed"):
        steps.take(2)
    assert [problem for problem, _ in world.trained] == [0]


def test_work_beside_the_block_is_over_when_the_block_is_left() -> None:
    numbers = itertools.count()

    def work(stop: Any) -> int:
        while not stop.requested:
            time.sleep(TICK)
            if next(numbers) == 5:
                return 42
        return 0

    with run_in_background(work) as answer:
        pass
    assert answer.result() == 42
    with pytest.raises(ValueError, match="of the block"), run_in_background(work) as answer:
        raise ValueError("of the block")
    assert answer.result() == 0


def test_ranks_are_asked_by_one_thread_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that is replaced beside an update asks them for weights."""
    at_work, most = list[object](), 0

    def answers(calls: Sequence[Any], **_: Any) -> list[None]:
        nonlocal most
        at_work.append(calls)
        most = max(most, len(at_work))
        time.sleep(5 * TICK)
        at_work.pop()
        return [None] * len(calls)

    remote = SimpleNamespace(remote=lambda *args: None)
    names = ("do", "help_with_weights", "open_store", "join_group", "broadcast", "receive", "load_weights")
    actor = SimpleNamespace(**dict.fromkeys(names, remote))
    monkeypatch.setattr(remote_workers, "import_ray", lambda: SimpleNamespace(put=lambda given: given))
    monkeypatch.setattr(remote_workers, "gather", answers)
    members = [ActorHandle(name, actor, trains=True) for name in ("first", "second")]
    ranks = remote_workers.TrainerActors(members)
    for other in (lambda stop: ranks.send_weights(members), lambda stop: ranks.pass_weights("load_weights", [0])):
        with run_in_background(other) as sent:
            for _ in range(3):
                ranks.do("policy", "update")
        sent.result()
    assert most == 1


# ---- which configurations there are ----------------------------------------------------------------------------------


def configured(**groups: dict[str, Any]) -> TrainConfig:
    values = {**APART, **CORRECTED}
    return make_config({**values, **{name: {**values.get(name, {}), **group} for name, group in groups.items()}})


def test_where_it_works_and_old_samples_are_weighed() -> None:
    assert configured().rollout.max_async_level == 1
    assert configured(rollout_correction={"is_level": "sequence"}).rollout.max_async_level == 1
    # The ratio of these losses is to the engine's probabilities, which are the old ones, and they bound it.
    for loss in ("ppo", "cispo"):
        assert (
            configured(rollout_correction={"is_level": None}, algorithm={"policy_loss": loss}).rollout.max_async_level
            == 1
        )
    assert configured(algorithm={"policy_loss": "reinforce"}).rollout.max_async_level == 1


@pytest.mark.parametrize(
    ("groups", "reason"),
    [
        (
            {"run": {"executor": "local"}, "rollout": {"num_engines": 0}},
            "set run.executor=ray and rollout.num_engines=1",
        ),
        ({"rollout": {"num_engines": 0}}, "the trainer's processes cannot do both at once; set rollout.num_engines=1"),
        (
            {"rollout_correction": {"is_level": None}, "rollout": {"return_logprobs": "sample"}},
            "nothing here weighs; set rollout.return_logprobs=always and rollout_correction.is_level=token",
        ),
        (
            {"rollout_correction": {"is_level": None, "rejection_bounds": [0.5, 2.0]}},
            "nothing here weighs; set rollout.return_logprobs=always",
        ),
        ({"rollout_correction": {"is_level": None}, "algorithm": {"policy_loss": "reinforce"}}, "it has no ratio; set"),
        (
            {"rollout_correction": {"is_level": None}, "algorithm": {"policy_loss": "gspo"}},
            "it has bounds narrower than",
        ),
        ({"run": {"steps": 1}}, "rollout.max_async_level=1 has no effect: run.steps=1 has no next batch"),
        (
            {"rollout": {"engine": "vllm"}, "vllm": {"sleep_mode": True}},
            "vllm.sleep_mode=True has no effect: with rollout.max_async_level=1 engines never sleep",
        ),
    ],
)
def test_where_it_cannot_work_the_words_to_type_are_told(groups: dict[str, Any], reason: str) -> None:
    with pytest.raises(SettingsError) as refused:
        configured(**groups)
    assert reason in str(refused.value)
