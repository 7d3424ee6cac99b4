"""Several engines share a batch: with fake engines, and no Ray; the real ones are in test_ray.py."""

import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from queue import Queue
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.configurations import call, changed
from tinyzero_sdk.errors import TinyZeroError
from tinyzero_sdk.settings import merge
from tinyzero_trainer.checkpoint.run_directory import OWNER
from tinyzero_trainer.config import RayConfig, TrainConfig, VllmConfig
from tinyzero_trainer.config.compose import make_config
from tinyzero_trainer.config.parallel import ParallelDims, ParallelError, parallel_dims
from tinyzero_trainer.errors import EngineDiedError, WorkerDiedError
from tinyzero_trainer.executors.ray import actors, build, remote_workers, reward_actor
from tinyzero_trainer.executors.ray import remote_engine as engines
from tinyzero_trainer.executors.ray.calls import ActorHandle
from tinyzero_trainer.executors.ray.cluster import RayError
from tinyzero_trainer.executors.ray.remote_engine import ColocatedEngines, RemoteEngine, chunks
from tinyzero_trainer.executors.ray.remote_workers import TrainerActors
from tinyzero_trainer.executors.ray.reward_actor import RewardActor
from tinyzero_trainer.executors.restart import Restartable
from tinyzero_trainer.rollout import SamplingParams
from tinyzero_trainer.types import Generation

PARAMS = SamplingParams(4)


class Actor:
    """Draws for each prompt its own tokens and its number in the batch; each prompt takes so long."""

    def __init__(self, seconds: float = 0.0, fails: Sequence[Exception] = ()) -> None:
        self.seconds, self.fails, self.drawn, self.told = seconds, list(fails), 0, list[str]()
        self.stopped = threading.Event()
        for name in ("generate", "finished", "stop", "sleep", "close"):
            setattr(self, name, SimpleNamespace(remote=getattr(self, f"_{name}")))
        self.check_engine = SimpleNamespace(remote=lambda found: lambda: self.told.append(f"check {found}"))
        self.probe_engine = SimpleNamespace(remote=lambda: lambda: f"of {id(self)}")
        for name in ("build_engine", "load_weights", "help_with_weights", "free_memory"):
            setattr(self, name, SimpleNamespace(remote=lambda name=name: lambda: self.told.append(name)))

    def _generate(
        self, prompts: Sequence[list[int]], samples: int, params: SamplingParams, seed: int, first: int
    ) -> Callable[[], Any]:
        def work() -> list[list[Generation]]:
            if self.fails:
                raise self.fails.pop(0)
            for _ in prompts:
                if self.stopped.wait(self.seconds):
                    raise TinyZeroError("given up")
                self.drawn += 1
            return [
                [Generation([*prompt, first + place, sample, seed], None, True) for sample in range(samples)]
                for place, prompt in enumerate(prompts)
            ]

        return work

    def _finished(self) -> Callable[[], int]:
        return lambda: 0

    def _stop(self) -> None:
        self.stopped.set()

    def _sleep(self) -> Callable[[], None]:
        return lambda: self.told.append("sleep")

    def _close(self) -> Callable[[], None]:
        return lambda: self.told.append("close")


def never() -> None:
    """A call without an answer."""


def all_answers(calls: Sequence[Any], *, meanwhile: Callable[[], None] | None = None, **_: Any) -> list[Any]:
    while any(call is never for _, call in calls):
        if meanwhile is not None:
            meanwhile()
        time.sleep(0.001)
    return [call() for _, call in calls]


@pytest.fixture(autouse=True)
def _no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (engines, remote_workers):
        monkeypatch.setattr(module, "gather", all_answers)
    monkeypatch.setattr(engines, "TICK_SECONDS", 0.005)


def fleet(*actors: Actor, restarts: int = 0) -> Any:
    members = [ActorHandle(f"engine {place}", actor, trains=False) for place, actor in enumerate(actors)]
    return SimpleNamespace(engines=[restartable(member, restarts) for member in members])


def restartable(
    actor: ActorHandle, restarts: int, start: Callable[[ActorHandle], ActorHandle] = lambda died: died
) -> Restartable[ActorHandle]:
    limits = {WorkerDiedError: restarts, EngineDiedError: restarts}
    return Restartable(actor.name, actor, start, limits, lambda _: None)


def draw(engine: RemoteEngine, count: int, **given: Any) -> list[list[list[int]]]:
    groups = engine.generate([[prompt] for prompt in range(count)], 2, PARAMS, seed=7, **given)
    return [[rollout.token_ids for rollout in group] for group in groups]


@given(st.integers(0, 20), st.integers(1, 4), st.integers(1, 3))
def test_every_prompt_is_drawn_once_in_order_whoever_draws_it(count: int, workers: int, chunks_per_engine: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engines, "gather", lambda calls, **_: [call() for _, call in calls])
        patch.setattr(engines, "TICK_SECONDS", 0.001)
        actors = [Actor() for _ in range(workers)]
        found = draw(RemoteEngine(fleet(*actors), chunks_per_engine), count)
    assert found == [[[prompt, prompt, sample, 7] for sample in range(2)] for prompt in range(count)]
    assert sum(actor.drawn for actor in actors) == count


@given(st.integers(0, 50), st.integers(1, 60))
def test_chunks_are_of_one_size_and_leave_nothing_out(count: int, wanted: int) -> None:
    found = chunks(count, wanted)
    sizes = [part.stop - part.start for part in found]
    assert len(found) == min(count, wanted)
    assert [place for part in found for place in range(count)[part]] == list(range(count))
    assert not sizes or max(sizes) - min(sizes) <= 1


def test_an_engine_that_is_done_early_takes_over() -> None:
    slow, quick = Actor(0.05), Actor()
    draw(RemoteEngine(fleet(slow, quick), chunks_per_engine=5), 10)
    assert slow.drawn <= 2
    assert quick.drawn >= 8


def test_the_part_of_one_that_dies_is_done_again_and_no_other() -> None:
    dies, lives = Actor(0.02, [WorkerDiedError("engine 0", "has died", policy_intact=True)]), Actor(0.02)
    assert len(draw(RemoteEngine(fleet(dies, lives, restarts=1), 1), 4)) == 4
    assert (dies.drawn, lives.drawn) == (2, 2)


def test_one_that_is_replaced_while_the_batch_is_given_up_generates_nothing() -> None:
    dies, fails = Actor(fails=[WorkerDiedError("engine 0", "has died", policy_intact=True)]), Actor()
    restarted, stopped = threading.Event(), threading.Event()

    def fail() -> None:
        assert restarted.wait(5)
        raise EngineDiedError("out of memory")

    def restart(died: ActorHandle) -> ActorHandle:
        restarted.set()
        assert stopped.wait(5)
        return died

    fails.generate = SimpleNamespace(remote=lambda *_: fail)
    dies.stop = SimpleNamespace(remote=stopped.set)
    actors = [ActorHandle(f"engine {place}", actor, trains=False) for place, actor in enumerate((dies, fails))]
    group: Any = SimpleNamespace(engines=[restartable(actors[0], 1, restart), restartable(actors[1], 0)])
    with pytest.raises(EngineDiedError, match="out of memory"):
        draw(RemoteEngine(group, 1), 2)
    assert dies.drawn == 0


def test_a_failure_stops_the_others_and_is_what_is_told() -> None:
    slow, fails = Actor(5.0), Actor(fails=[EngineDiedError("out of memory")])
    started = time.monotonic()
    with pytest.raises(EngineDiedError, match="out of memory"):
        draw(RemoteEngine(fleet(slow, fails), 1), 4)
    assert time.monotonic() - started < 2


def test_one_that_does_not_say_how_far_it_is_keeps_nobody_from_a_failure() -> None:
    asked, silent, fails = threading.Event(), Actor(5.0), Actor()
    silent.finished = SimpleNamespace(remote=lambda: asked.set() or never)

    def fail() -> None:
        assert asked.wait(5)
        raise EngineDiedError("out of memory")

    fails.generate = SimpleNamespace(remote=lambda *_: fail)
    engine = RemoteEngine(fleet(silent, fails), 1)
    told: Queue[str] = Queue()

    def generate() -> None:
        try:
            draw(engine, 4, on_progress=lambda _: None)
        except EngineDiedError as error:
            told.put(str(error))

    threading.Thread(target=generate, daemon=True).start()  # which might wait for ever
    assert told.get(timeout=5) == "out of memory"


def test_a_signal_stops_all_and_is_what_is_told() -> None:
    class Stop(Exception):
        """Stands for a signal."""

    def on_progress(finished: int) -> None:
        raise Stop

    actors = [Actor(5.0), Actor(5.0)]
    with pytest.raises(Stop):
        draw(RemoteEngine(fleet(*actors), 1), 4, on_progress=on_progress)
    assert all(actor.stopped.is_set() for actor in actors)


def test_progress_adds_up_to_all_completions() -> None:
    told: list[int] = []
    draw(RemoteEngine(fleet(Actor(0.01), Actor()), 2), 9, on_progress=told.append)
    assert sum(told) == 18


def test_ranks_without_an_engine_help_with_the_weights_and_give_up_their_memory() -> None:
    notes: list[str] = []
    workers = [Actor(0.02) for _ in range(4)]
    members = [ActorHandle(f"policy rank {place} of 4", actor, trains=True) for place, actor in enumerate(workers)]
    beside = ColocatedEngines(TrainerActors(members, "cuda"), range(0, 4, 2), 1, notes.append)
    assert [actor.told for actor in workers] == [
        ["free_memory", "build_engine"],
        ["free_memory", "help_with_weights"],
    ] * 2
    beside.load_weights()
    assert workers[2].told[-1] == "load_weights"
    assert workers[3].told[-1] == "help_with_weights"
    # One of two engines fails: it is started anew, and the other three ranks help it with the weights.
    workers[2].fails = [EngineDiedError("it hangs")]
    for actor in workers:
        actor.told.clear()
    draw(RemoteEngine(beside, 1), 4)
    assert [actor.told[-1] for actor in workers] == [*["help_with_weights"] * 2, "build_engine", "help_with_weights"]
    assert notes == ["policy rank 2 of 4: it hangs; it is restarted, and its work repeated (at most 0 more times)"]


def test_each_engine_is_compared_with_the_policy_by_all_ranks_at_once() -> None:
    workers = [Actor(0.02) for _ in range(4)]
    members = [ActorHandle(f"policy rank {place} of 4", actor, trains=True) for place, actor in enumerate(workers)]
    beside = ColocatedEngines(TrainerActors(members, "cuda"), range(0, 4, 2), 1, lambda _: None, check_sync=True)
    beside.load_weights()
    expected = [f"check of {id(workers[place])}" for place in (0, 2)]  # in the same order everywhere
    for actor in workers:
        assert [told for told in actor.told if told.startswith("check")] == expected * 2
    # One that is replaced is checked with what it took then, and no other.
    workers[2].fails = [EngineDiedError("it hangs")]
    draw(RemoteEngine(beside, 1), 4)
    for actor in workers:
        assert actor.told[-2:] in ([task, expected[1]] for task in ("build_engine", "help_with_weights"))


@pytest.mark.parametrize("method", ["sleep", "load_weights"])
@pytest.mark.parametrize("restarts", [0, 1])
def test_an_engine_that_cannot_sleep_or_take_weights_is_replaced(method: str, restarts: int) -> None:
    notes: list[str] = []
    workers = [Actor() for _ in range(4)]
    members = [ActorHandle(f"policy rank {place} of 4", actor, trains=True) for place, actor in enumerate(workers)]
    beside = ColocatedEngines(TrainerActors(members, "cuda"), range(0, 4, 2), restarts, notes.append)
    failing, faults = workers[2], [EngineDiedError("it hangs")]

    def answer() -> EngineDiedError | None:
        failing.told.append(method)
        fault = faults.pop() if faults else None
        if fault is not None and method == "sleep":
            raise fault
        return fault  # of weights a rank must come back, or the others would wait

    setattr(failing, method, SimpleNamespace(remote=lambda: answer))
    for actor in workers:
        actor.told.clear()
    engine = RemoteEngine(beside, 1)
    with nullcontext() if restarts else pytest.raises(EngineDiedError, match="it hangs"):
        getattr(engine, method)()
    if not restarts:
        assert not notes
        return
    asked = [name for name in failing.told if name != "free_memory"]
    assert asked == ["sleep", "build_engine", "sleep"] if method == "sleep" else ["load_weights", "build_engine"]
    assert workers[0].told[-1] == "help_with_weights"
    assert notes == ["policy rank 2 of 4: it hangs; it is restarted, and its work repeated (at most 0 more times)"]


def test_who_is_lost_after_an_update_leaves_no_step_to_save() -> None:
    def load_weights() -> None:
        raise WorkerDiedError("engine 0", "has died", policy_intact=True)

    with pytest.raises(WorkerDiedError) as lost:
        RemoteEngine(SimpleNamespace(engines=[], load_weights=load_weights), 1).load_weights()
    assert not lost.value.policy_intact


@pytest.mark.parametrize("fails", ["before", "amid", "never"])
def test_a_rank_goes_through_the_weights_once_whatever_fails(fails: str, monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[int] = []

    def named_weights(_: Any) -> Iterator[tuple[str, Any]]:
        passes.append(0)
        for place in range(3):
            passes[-1] += 1
            yield str(place), None

    def load_weights() -> None:
        if fails == "before":
            raise EngineDiedError("it does not wake up")
        for name, _ in rank._full_weights():
            if fails == "amid" and name == "1":
                raise EngineDiedError("it dies")

    monkeypatch.setattr(actors, "named_weights", named_weights)
    rank = actors.TrainerActor(make_config({"run": {"task": "countdown"}}), 0, 2, "cpu")
    rank._learners = SimpleNamespace(language_model=SimpleNamespace(model=None))  # type: ignore[assignment]
    rank._engine = SimpleNamespace(load_weights=load_weights)  # type: ignore[assignment]
    for _ in range(2):
        assert (rank.load_weights() is None) == (fails == "never")
    rank.help_with_weights()
    assert passes == [3, 3, 3]


def test_each_actor_has_a_seat_and_those_that_share_an_engine_sit_together(monkeypatch: pytest.MonkeyPatch) -> None:
    bundles = dims(2, ray__gpus=4).bundles(scorers=1)
    table = {"bundles_to_node_id": {0: "a", 1: "b", 2: "a"}}
    ray = SimpleNamespace(util=SimpleNamespace(placement_group_table=lambda group: table))
    monkeypatch.setattr(build, "import_ray", lambda: ray)
    started: list[tuple[int, type]] = []
    monkeypatch.setattr(build.ActorPool, "_start", lambda self, bundle, kind, args: started.append((bundle, kind)))
    pool = build.ActorPool(SimpleNamespace(bundle_specs=bundles))
    for _ in range(4):
        pool.start("a rank", actors.TrainerActor)
    pool.start("a scorer", RewardActor)
    assert started == [*[(bundle, actors.TrainerActor) for bundle in (0, 0, 1, 1)], (2, RewardActor)]


def test_a_scorer_does_not_wait_for_torch() -> None:
    code = "import sys; from tinyzero_trainer.executors.ray import reward_actor; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "tinyzero_trainer.rewards.pool" in (loaded := done.stdout.split())
    assert not {"torch", "transformers"} & set(loaded)


@pytest.mark.parametrize(
    ("words", "there", "told"),
    [
        ({}, 8.0, "the Ray at head:6379 has 8 GPUs, and this run uses none; give --gpus N for N of them"),
        ({}, 0.0, None),
        ({"ray": {"gpus": 2}}, 8.0, None),
        ({"run": {"device": "cpu"}}, 8.0, None),
    ],
)
def test_gpus_that_a_run_leaves_idle_are_told_of(
    words: dict[str, Any], there: float, told: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "import_ray", lambda: SimpleNamespace(cluster_resources=lambda: {"GPU": there}))
    given = {"run": {"task": "countdown", "executor": "ray"}, "ray": {"address": "head:6379"}}
    assert build._idle_gpus(make_config(merge(given, words))) == told


# ---- the run directory -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("there", ["the same", "another run's", None])
def test_a_rank_that_does_not_see_the_run_directory_is_named(
    there: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reward_actor, "VISIBLE_SECONDS", 0.3)
    monkeypatch.setattr(build, "gather", lambda calls, **_: [call() for _, call in calls])
    run, elsewhere = tmp_path / "run", tmp_path / "elsewhere"
    for directory, content in ((run, "the same"), (elsewhere, there)):
        directory.mkdir()
        if content is not None:
            (directory / OWNER).write_text(content)

    def member(place: int, directory: Path) -> ActorHandle:
        own = reward_actor.BaseActor()
        sees = SimpleNamespace(remote=lambda file, content: lambda: own.sees(directory / file.name, content))
        actor = SimpleNamespace(sees=sees, host=SimpleNamespace(remote=lambda: lambda: f"10.0.0.{place}"))
        return ActorHandle(f"policy rank {place} of 2", actor, trains=True)

    config = make_config({"run": {"task": "countdown", "output": str(run)}})
    ranks = TrainerActors([member(0, run), member(1, elsewhere)], "cpu")
    told = re.escape(f"policy rank 1 of 2 on 10.0.0.1 does not see {run}, where it is to save its part")
    with nullcontext() if there == "the same" else pytest.raises(RayError, match=told):
        build._check_run_directory(config, ranks)


# ---- who is where ----------------------------------------------------------------------------------------------------


def dims(tensor_parallel: int = 1, **settings: Any) -> ParallelDims:
    """Of a run with these settings, written as `group__name`."""
    vllm = {"rollout__engine": "vllm", "vllm__tensor_parallel": tensor_parallel} if tensor_parallel > 1 else {}
    return parallel_dims(changed({"run": {"task": "countdown", "executor": "ray"}}, vllm | settings))


def test_each_gpu_has_a_rank_or_belongs_to_an_engine() -> None:
    assert dims(ray__gpus=4) == ParallelDims(4, num_engines=4)
    assert list(dims(ray__gpus=4).engine_ranks) == [0, 1, 2, 3]
    assert list(dims(2, ray__gpus=4).engine_ranks) == [0, 2]
    apart = dims(2, ray__gpus=4, rollout__num_engines=1)
    assert (apart.world_size, apart.dedicated_engines, list(apart.engine_ranks)) == (2, 1, [])
    assert sum(bundle.get("GPU", 0) for bundle in apart.bundles(scorers=3)) == 4
    assert len(apart.bundles(scorers=3)) == 2 + 1 + 3
    together = dims(2, ray__gpus=4).bundles(scorers=3)
    assert together == [{"CPU": 2.0, "GPU": 2.0}] * 2 + [{"CPU": 1.0}] * 3, "those that share an engine are on one node"
    cpu = dims(parallel__world_size=2)
    assert (cpu.world_size, cpu.device, list(cpu.engine_ranks)) == (2, "cpu", [0, 1])
    assert not any("GPU" in bundle for bundle in cpu.bundles(1))
    shared = dims(2, parallel__world_size=2)
    assert list(shared.engine_ranks) == [0], "on the CPU ranks share an engine as on GPUs"
    assert shared.bundles(scorers=1) == [{"CPU": 2.0}, {"CPU": 1.0}]
    assert parallel_dims(TrainConfig(ray=RayConfig(), vllm=VllmConfig())).world_size == 1


@pytest.mark.parametrize(
    ("tensor_parallel", "settings", "told"),
    [
        (
            1,
            {"ray__gpus": 2, "rollout__num_engines": 2},
            r"rollout\.num_engines=2 leave no GPU of ray\.gpus=2 to train on",
        ),
        (2, {"ray__gpus": 4, "rollout__num_engines": 2}, r"rollout\.num_engines=2 of 2 GPUs each leave no GPU"),
        (
            1,
            {"ray__gpus": 4, "parallel__world_size": 3},
            r"parallel\.world_size=3, but ray\.gpus=4 with rollout\.num_engines=0 is 4.*give parallel\.world_size=4",
        ),
        (2, {"ray__gpus": 3}, r"vllm\.tensor_parallel=2 does not divide ray\.gpus=3"),
        (2, {"parallel__world_size": 3}, r"vllm\.tensor_parallel=2 does not divide the 3 ranks"),
    ],
)
def test_what_does_not_fit_is_refused(tensor_parallel: int, settings: dict[str, int], told: str) -> None:
    with pytest.raises(ParallelError, match=told):
        dims(tensor_parallel, **settings)


@pytest.mark.parametrize("device", ["auto", "cuda", "cpu", "cuda:0", "cuda:1"])
def test_which_gpu_is_rays_to_say(device: str) -> None:
    settings = {"run": {"task": "countdown", "executor": "ray", "device": device}}
    if device in ("auto", "cpu"):
        assert parallel_dims(make_config(settings)).device == "cpu", "there is nothing to choose"
    else:
        with pytest.raises(ParallelError, match=rf"run\.device={device}, but ray\.gpus=0 is .* CPU; give --gpus N"):
            parallel_dims(make_config(settings))
    config = make_config(settings | {"ray": {"gpus": 2}})
    if device in ("auto", "cuda"):
        assert parallel_dims(config) == ParallelDims(2, num_engines=2)
        return
    with pytest.raises(ParallelError, match=rf"run\.device={device}, but .* one of ray\.gpus=2 .*; leave it out"):
        parallel_dims(config)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("parallel.world_size=3", "parallel.dp_replicate=2"), "parallel.dp_replicate=2 does not divide the 3 ranks"),
        (("ray.address=127.0.0.1:1",), "there is no Ray at ray.address='127.0.0.1:1' (Connection refused)"),
        (
            ("ray.address=head",),
            "ray.address='head' is no address of a Ray; give auto, or HOST:PORT as `ray start --head` prints it",
        ),
        (
            ("ray.address=ray://head:10001",),
            "ray.address='ray://head:10001' is no address of a Ray; give auto, or HOST:PORT",
        ),
        (("ray.address=head:99999",), "ray.address='head:99999' is no address of a Ray; give auto, or HOST:PORT"),
    ],
)
def test_a_run_that_cannot_be_placed_leaves_nothing(
    words: tuple[str, ...], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, said = call(
        capsys, "train", "--task", "countdown", "--gpus", "0", "--output", str(tmp_path / "run"), *words
    )
    assert code == 2
    assert said.startswith(f"error: {told}")
    assert not (tmp_path / "run").exists()
