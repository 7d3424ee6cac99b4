"""Several engines share a batch: with fake engines, without Ray; the real ones are in test_ray.py."""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer.rollout.engines import asked
from tinyzero_sdk.errors import TinyZeroError
from tinyzero_trainer.errors import EngineDiedError, WorkerDiedError
from tinyzero_trainer.executors.ray import remote_engine, remote_workers
from tinyzero_trainer.executors.ray.base_actor import ActorHandle
from tinyzero_trainer.executors.ray.remote_engine import ColocatedEngines, DedicatedEngines, RemoteEngine
from tinyzero_trainer.executors.ray.remote_workers import TrainerActors
from tinyzero_trainer.executors.restart import Restartable
from tinyzero_trainer.rollout.engine import Completions, Group, PromptBatch, SamplingParams
from tinyzero_trainer.types import Generation

PARAMS = SamplingParams(4)
DEAD = WorkerDiedError("engine 0", "has died", policy_intact=True)
WAIT = 10.0
"""Seconds, against hanging."""


class FakeActor:
    """An engine whose completions are the prompt's tokens, its index in the batch, the sample's and the seed."""

    def __init__(self, fails: Sequence[Exception] = ()) -> None:
        self.fails, self.generated, self.calls = list(fails), 0, list[str]()
        self.stopped, self.failed = threading.Event(), threading.Event()
        self.waits_for: threading.Event | None = None
        names = ("build_engine", "load_weights", "help_with_weights", "free_memory", "sleep", "close")
        self.methods = {name: partial(self.record, name) for name in names}
        self.methods |= {"generate": self.work, "finished": lambda: 0, "probe_engine": lambda: f"of {id(self)}"}
        self.groups = list[Group]()
        self.methods |= {"submit": self.take, "advance": self.complete_one, "unfinished": lambda: self.groups}
        self.methods["check_engine"] = lambda probes: self.record(f"check {probes}")

    def __getattr__(self, name: str) -> Any:
        """Ray's handle of a method; what is called is called when `gather` asks for it."""
        if name == "stop":
            return SimpleNamespace(remote=self.stopped.set)
        return SimpleNamespace(remote=lambda *args: lambda: self.methods[name](*args))

    def record(self, name: str, *_: Any) -> None:
        self.calls.append(name)

    def work(self, batch: PromptBatch) -> Completions:
        if self.fails:
            self.failed.set()
            raise self.fails.pop(0)
        assert self.waits_for is None or self.waits_for.wait(WAIT)
        self.generated += len(batch.prompts)
        return [
            [Generation([*prompt, index, sample, batch.seed], None, True) for sample in range(batch.samples)]
            for index, prompt in enumerate(batch.prompts, batch.first)
        ]

    def take(self, groups: Sequence[Group]) -> None:
        self.groups += groups

    def complete_one(self, params: SamplingParams) -> tuple[list[Group], int]:
        """The group submitted first."""
        if self.fails:
            raise self.fails.pop(0)
        self.generated += 1
        group, *self.groups = self.groups
        sampled = tuple(replace(each, token_ids=[group.number], finished=True) for each in group.completions)
        return [replace(group, completions=sampled)], len(sampled)

    def wait_for_stop(self, *_: Any) -> None:
        assert self.stopped.wait(WAIT)
        raise TinyZeroError("stopped")


def fake_gather(calls: Sequence[Any], *, returned: Any = (), **_: Any) -> list[Any]:
    results = []
    for _, call in calls:
        try:
            results.append(call())
        except returned as error:
            results.append(error)
    return results


@pytest.fixture(autouse=True, scope="module")
def _no_ray() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        for module in (remote_engine, remote_workers):
            patch.setattr(module, "gather", fake_gather)
        patch.setattr(remote_engine, "TICK_SECONDS", 0.002)
        patch.setattr(remote_engine, "import_ray", lambda: SimpleNamespace(get=lambda calls, **_: [c() for c in calls]))
        yield


def dedicated(
    *actors: FakeActor,
    chunks: int = 1,
    restarts: int = 0,
    start: Callable[[ActorHandle], ActorHandle] = lambda died: died,
    send: Callable[[Any], None] = lambda engines: None,
) -> RemoteEngine:
    limits = {WorkerDiedError: restarts, EngineDiedError: restarts}
    handles = [ActorHandle(f"engine {index}", actor, trains=False) for index, actor in enumerate(actors)]
    engines = [Restartable(handle.name, handle, start, limits, lambda _: None) for handle in handles]
    return DedicatedEngines(SimpleNamespace(send_weights=send), engines, chunks)  # type: ignore[arg-type]


def generate(engine: RemoteEngine, count: int, **options: Any) -> list[list[list[int]]]:
    groups = engine.generate([[prompt] for prompt in range(count)], 2, PARAMS, seed=7, **options)
    return [[completion.token_ids for completion in group] for group in groups]


@given(st.integers(0, 20), st.integers(1, 4), st.integers(1, 3))
def test_every_prompt_is_completed_once_in_order_by_any_engines(count: int, engines: int, chunks: int) -> None:
    actors = [FakeActor() for _ in range(engines)]
    found = generate(dedicated(*actors, chunks=chunks), count)
    assert found == [[[prompt, prompt, sample, 7] for sample in range(2)] for prompt in range(count)]
    assert sum(actor.generated for actor in actors) == count


def test_an_engine_that_finishes_early_takes_the_chunks_of_a_slow_one() -> None:
    slow, quick, done = FakeActor(), FakeActor(), threading.Event()
    slow.waits_for = done

    def count(*args: Any) -> Any:
        found = quick.work(*args)
        if quick.generated == 9:
            done.set()
        return found

    quick.methods["generate"] = count
    generate(dedicated(slow, quick, chunks=5), 10)
    assert (slow.generated, quick.generated) == (1, 9)


def test_the_chunk_of_an_engine_that_dies_is_repeated_and_no_other() -> None:
    dies, lives = FakeActor([DEAD]), FakeActor()
    lives.waits_for = dies.failed
    progress: list[int] = []
    assert len(generate(dedicated(dies, lives, restarts=1), 4, on_progress=progress.append)) == 4
    assert (dies.generated + lives.generated, sum(progress)) == (4, 8)


def test_an_engine_that_is_restarted_while_the_batch_is_stopped_generates_nothing() -> None:
    dies, fails, restarted = FakeActor([DEAD]), FakeActor(), threading.Event()

    def fail(*_: Any) -> None:
        assert restarted.wait(WAIT)
        raise EngineDiedError("out of memory")

    def restart(died: ActorHandle) -> ActorHandle:
        restarted.set()
        assert dies.stopped.wait(WAIT)
        return died

    fails.methods["generate"] = fail
    engine = dedicated(dies, fails, start=restart)
    engine.engines[0]._left[WorkerDiedError] = 1
    with pytest.raises(EngineDiedError, match="out of memory"):
        generate(engine, 2)
    assert dies.generated == 0


def test_a_failure_stops_the_others_and_is_raised() -> None:
    slow, fails = FakeActor(), FakeActor([EngineDiedError("out of memory")])
    slow.methods["generate"] = slow.wait_for_stop
    with pytest.raises(EngineDiedError, match="out of memory"):
        generate(dedicated(slow, fails), 4)


def test_a_signal_stops_all_and_is_raised() -> None:
    def on_progress(finished: int) -> None:
        raise KeyboardInterrupt

    actors = [FakeActor(), FakeActor()]
    for actor in actors:
        actor.methods["generate"] = actor.wait_for_stop
    with pytest.raises(KeyboardInterrupt):
        generate(dedicated(*actors), 4, on_progress=on_progress)
    assert all(actor.stopped.is_set() for actor in actors)


def test_a_death_after_an_update_leaves_no_step_to_save() -> None:
    deaths: list[WorkerDiedError] = []

    def send(engines: Any) -> None:
        if deaths:
            raise deaths.pop()

    engine = dedicated(FakeActor(), send=send)
    for name in ("engine 0", "rank 0"):  # one that may not be restarted, one that cannot
        deaths.append(WorkerDiedError(name, "has died", policy_intact=True))
        with pytest.raises(WorkerDiedError, match=name) as died:
            engine.load_weights()
        assert not died.value.policy_intact


def test_a_dedicated_engine_that_dies_while_it_takes_weights_is_restarted() -> None:
    failures: list[Exception] = []
    started: list[str] = []

    def send(engines: Any) -> None:
        if failures:
            raise failures.pop()

    def start(died: ActorHandle) -> ActorHandle:
        started.append(died.name)
        return died

    engine = dedicated(FakeActor(), FakeActor(), restarts=1, start=start, send=send)
    failures.append(WorkerDiedError("engine 1", "has died", policy_intact=False))
    engine.load_weights()
    assert started == ["engine 1"]


# ---- colocated with ranks --------------------------------------------------------------------------------------------


class Ranks:
    """Four ranks, of which the first and the third have an engine; `notes` are the messages for the user."""

    def __init__(self, restarts: int = 1, *, check_sync: bool = False) -> None:
        self.actors, self.notes = [FakeActor() for _ in range(4)], list[str]()
        handles = [
            ActorHandle(f"policy rank {rank} of 4", actor, trains=True) for rank, actor in enumerate(self.actors)
        ]
        ranks = TrainerActors(handles)
        self.engine = ColocatedEngines(ranks, range(0, 4, 2), 1, restarts, self.notes.append, check_sync=check_sync)

    def fail_once(self) -> None:
        """Let the third rank's engine fail at its next chunk."""
        self.actors[2].fails, self.actors[0].waits_for = [EngineDiedError("it hangs")], self.actors[2].failed

    def forget(self) -> None:
        for actor in self.actors:
            actor.calls.clear()


RESTARTED = ["policy rank 2 of 4: it hangs; it is restarted, and its work repeated (at most 0 more times)"]


def test_ranks_without_an_engine_help_with_the_weights_and_free_their_memory() -> None:
    ranks = Ranks()
    expected = [["free_memory", "build_engine"], ["free_memory", "help_with_weights"]] * 2
    assert [actor.calls for actor in ranks.actors] == expected
    ranks.engine.load_weights()
    assert [actor.calls[-1] for actor in ranks.actors] == ["load_weights", "help_with_weights"] * 2
    # One of two engines fails: it is restarted, and the other three ranks help it with the weights.
    ranks.fail_once()
    ranks.forget()
    generate(ranks.engine, 4)
    last = [actor.calls[-1] for actor in ranks.actors]
    assert last == ["help_with_weights", "help_with_weights", "build_engine", "help_with_weights"]
    assert ranks.notes == RESTARTED


def test_each_engine_is_compared_with_the_policy_by_all_ranks_at_once() -> None:
    ranks = Ranks(check_sync=True)
    ranks.engine.load_weights()
    expected = [f"check of {id(ranks.actors[rank])}" for rank in (0, 2)]  # in the same order everywhere
    for actor in ranks.actors:
        assert [call for call in actor.calls if call.startswith("check")] == expected * 2
    # One that is restarted is checked with what it took then, and no other.
    ranks.fail_once()
    generate(ranks.engine, 4)
    for actor in ranks.actors:
        assert actor.calls[-2:] in ([call, expected[1]] for call in ("build_engine", "help_with_weights"))


@pytest.mark.parametrize("method", ["sleep", "load_weights"])
@pytest.mark.parametrize("restarts", [0, 1])
def test_an_engine_that_cannot_sleep_or_take_weights_is_restarted(method: str, restarts: int) -> None:
    ranks = Ranks(restarts)
    failing, failures = ranks.actors[2], [EngineDiedError("it hangs")]

    def fail(*_: Any) -> None:
        failing.record(method)
        if failures:
            raise failures.pop()

    failing.methods[method] = fail
    ranks.forget()
    with nullcontext() if restarts else pytest.raises(EngineDiedError, match="it hangs"):
        getattr(ranks.engine, method)()
    assert ranks.notes == RESTARTED[:restarts]
    if restarts:
        calls = [call for call in failing.calls if call != "free_memory"]
        assert calls == [method, "build_engine", *(["sleep"] if method == "sleep" else [])]
        assert ranks.actors[0].calls[-1] == "help_with_weights"


# ---- groups that go on -----------------------------------------------------------------------------------------------


@given(st.integers(0, 12), st.integers(1, 4))
def test_every_group_is_completed_once_by_the_engine_with_the_fewest(count: int, engines: int) -> None:
    actors, seen, complete = [FakeActor() for _ in range(engines)], list[int](), list[int]()
    engine = dedicated(*actors)
    engine.submit(asked([[1]] * count, 2, 4))
    while len(complete) < count:
        complete += [group.number for group in engine.advance(PARAMS, seen.append)]
    assert sorted(complete) == list(range(count))
    assert sum(seen) == 2 * count
    generated = [actor.generated for actor in actors]
    assert max(generated) - min(generated) <= 1
    assert engine.unfinished() == []


def test_an_engine_that_is_restarted_gets_its_groups_again_and_no_others() -> None:
    dies, lives, anew = FakeActor(), FakeActor(), FakeActor()
    engine = dedicated(dies, lives, restarts=1, start=lambda died: replace(died, handle=anew))
    engine.submit(asked([[1]] * 6, 2, 4))
    complete = engine.advance(PARAMS, lambda _: None)
    dies.fails = [DEAD]
    engine.submit(asked([[1]] * 2, 2, 4, start=6))
    while engine.unfinished():
        complete += engine.advance(PARAMS, lambda _: None)
    assert sorted(group.number for group in complete) == list(range(8))
    assert (dies.generated, lives.generated, anew.generated) == (1, 4, 3)


def test_groups_that_are_complete_when_a_signal_arrives_are_not_lost() -> None:
    def stop(_: int) -> None:
        raise KeyboardInterrupt

    engine = dedicated(FakeActor())
    engine.submit(asked([[1]] * 3, 2, 4))
    with pytest.raises(KeyboardInterrupt):
        engine.advance(PARAMS, stop)
    assert [group.complete for group in engine.unfinished()] == [True, False, False]
    assert [group.number for group in engine.advance(PARAMS, lambda _: None)] == [0, 1]


def test_a_death_is_raised_once_no_other_engine_is_used_any_more() -> None:
    dies, slow = FakeActor([DEAD]), FakeActor()
    engine = dedicated(dies, slow)
    engine.submit(asked([[1]] * 2, 2, 4))
    answer = slow.methods["advance"]

    def advance_slowly(params: SamplingParams) -> Any:
        time.sleep(0.2)
        return answer(params)

    slow.methods["advance"] = advance_slowly
    with pytest.raises(WorkerDiedError):
        engine.advance(PARAMS, lambda _: None)
    assert slow.generated == 1
    dies.methods["unfinished"] = lambda: dies.groups
    assert [group.complete for group in engine.unfinished()] == [True, False]


def test_of_an_engine_that_has_died_the_groups_are_known_as_they_were_submitted() -> None:
    dies = FakeActor([DEAD, DEAD])
    engine = dedicated(dies)
    engine.submit(asked([[1]] * 3, 2, 4))
    with pytest.raises(WorkerDiedError):
        engine.advance(PARAMS, lambda _: None)
    dies.methods["unfinished"] = lambda: dies.complete_one(PARAMS)  # it does not answer either
    assert engine.unfinished() == asked([[1]] * 3, 2, 4)


def test_weights_are_passed_between_two_polls_with_their_version() -> None:
    passed, polling, over, engines = list[int](), threading.Event(), threading.Event(), list[Any]()
    engine: Any = dedicated(FakeActor(), send=lambda _: passed.extend(each._ranks.version for each in engines))
    engines.append(engine)
    engine.submit(asked([[1]] * 2000, 1, 4))

    def poll() -> None:
        while not over.is_set():
            engine.advance(PARAMS, lambda _: polling.set())

    thread = threading.Thread(target=poll, daemon=True)
    thread.start()
    assert polling.wait(WAIT)
    for version in (1, 2, 3):
        engine.load_weights(version)
    over.set()
    thread.join(WAIT)
    assert passed[-3:] == [1, 2, 3]
