"""Results and deaths of actors, with a fake Ray; the real one is in test_ray.py."""

import signal
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from tinyzero_sdk.errors import SettingsError
from tinyzero_trainer.errors import WorkerDiedError
from tinyzero_trainer.executors.ray import calls as calls_module
from tinyzero_trainer.executors.ray import remote_workers, watch
from tinyzero_trainer.executors.ray.base_actor import ActorHandle
from tinyzero_trainer.executors.ray.calls import gather
from tinyzero_trainer.utils.background import run_in_background
from tinyzero_trainer.utils.signals import catch_signals

DIED = (
    "The actor died unexpectedly before finishing this task.\n\tclass_name: A\n"
    "The actor is dead because its worker process has died. Worker exit type: {kind} Worker exit detail: Worker "
    "unexpectedly exits. Some common causes include: (1) the process was killed by the OOM killer"
)


class FakeRayError(Exception):
    """Ray's base class."""


class TaskError(FakeRayError):
    def __init__(self, cause: Exception) -> None:
        super().__init__("many\nlines")
        self.cause = cause


class FakeRay:
    """References are the results, done after a number of calls of `wait`; exceptions among them are raised."""

    exceptions = SimpleNamespace(RayError=FakeRayError, RayTaskError=TaskError)

    def __init__(self, after: dict[Any, int]) -> None:
        self.after, self.waited = after, 0

    def wait(self, pending: list[Any], *, timeout: float, num_returns: int = 1) -> tuple[list[Any], list[Any]]:
        self.waited += 1
        done = [reference for reference in pending if self.after.get(reference, 0) <= self.waited]  # 0: of a ping
        done = done[:num_returns]
        return done, [reference for reference in pending if reference not in done]

    def get(self, answer: Any, timeout: float | None = None) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    def remote(self, function: Any) -> Any:
        raise FakeRayError("its machine is gone")


@pytest.fixture
def call(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Any]]:
    """Call an actor for each result, the last of which comes first."""

    def call_actors(*results: Any, trains: bool = True, process: Any = None, **options: Any) -> list[Any]:
        after = {result: len(results) - place for place, result in enumerate(results)}
        monkeypatch.setattr(calls_module, "import_ray", lambda: FakeRay(after))
        actors = [ActorHandle(f"rank {place}", None, trains, process=process) for place in range(len(results))]
        return gather(list(zip(actors, results, strict=True)), **options)

    return call_actors


def test_results_are_in_order(call: Callable[..., list[Any]]) -> None:
    assert call("a", "b", "c") == ["a", "b", "c"]


def test_an_error_of_a_worker_is_raised_as_it_is(call: Callable[..., list[Any]]) -> None:
    with pytest.raises(SettingsError, match=r"^not so$"):
        call("a", TaskError(SettingsError("not so")))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "end"),
    [
        ("SYSTEM_ERROR", "has died: it was killed from outside, or exited at once"),
        ("NODE_OUT_OF_MEMORY", "was killed by Ray, since its machine ran out of memory; "),
    ],
)
def test_the_death_behind_a_broken_connection_is_raised(kind: str, end: str, call: Callable[..., list[Any]]) -> None:
    broken, dead = TaskError(RuntimeError("Connection closed by peer")), FakeRayError(DIED.format(kind=kind))
    with pytest.raises(WorkerDiedError) as raised:
        call(dead, "fine", broken, process=(2869, 28 * "ab", "10.0.0.2"))
    assert str(raised.value).startswith(f"rank 0 (process 2869 on 10.0.0.2) {end}")


def test_an_error_without_a_death_behind_it_is_raised(
    call: Callable[..., list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls_module, "GRACE_SECONDS", 0.0)
    with pytest.raises(TaskError):
        call("never comes", TaskError(RuntimeError("a fault of ours")))


def test_a_connection_that_breaks_without_a_death_is_named(
    call: Callable[..., list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls_module, "GRACE_SECONDS", 0.0)
    message = "[gloo/transport/tcp/pair.cc:547] Connection closed by peer [10.0.0.2]:4711"
    with pytest.raises(WorkerDiedError, match=r"^rank 1 has lost its connection to another rank \(\[gloo.*:4711\)$"):
        call("never comes", TaskError(RuntimeError(message)))


@pytest.mark.parametrize(
    ("trains", "policy_intact", "expected"), [(True, True, False), (False, True, True), (False, False, False)]
)
def test_the_policy_is_intact_if_no_training_rank_has_died_and_none_was_updating(
    trains: bool, policy_intact: bool, expected: bool, call: Callable[..., list[Any]]
) -> None:
    with pytest.raises(WorkerDiedError) as raised:
        call(FakeRayError("it is gone"), trains=trains, policy_intact=policy_intact)
    assert str(raised.value) == "rank 0 has died"
    assert raised.value.policy_intact == expected


@pytest.mark.parametrize("stopping", [False, True])
def test_an_actor_that_answers_no_ping_hangs_and_one_that_does_may_take_long(
    stopping: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    processes = {name: (number, 28 * "ab", name) for number, name in enumerate(("slow", "hung"))}
    answers = {
        **dict.fromkeys(processes.values(), 0),
        "slow": 30,
        "hung": 10_000,
        "ping of slow": 0,
        "ping of hung": 10_000,
    }
    monkeypatch.setattr(calls_module, "import_ray", lambda: FakeRay(answers))
    for module in (calls_module, watch):
        monkeypatch.setattr(module, "PING_SECONDS", 1e-9)
    monkeypatch.setattr(watch, "STOP_SECONDS", 20e-9)

    def actor(name: str, timeout: float) -> ActorHandle:
        host = SimpleNamespace(remote=lambda: f"ping of {name}")
        return ActorHandle(name, SimpleNamespace(host=host), False, timeout, processes[name])

    calls = [(actor("slow", 5e-9), "slow"), (actor("hung", 1.0 if stopping else 20e-9), "hung")]
    with catch_signals() as stop:
        if stopping:
            stop.handle(signal.SIGTERM)
        with pytest.raises(
            WorkerDiedError, match=r"^hung \(process 1\) hangs: it has not answered for 2e-08 s.*ray\.timeout"
        ) as raised:
            gather(calls, policy_intact=True)
    assert raised.value.policy_intact
    with pytest.raises(WorkerDiedError):
        gather([(actor("hung", 3e-9), "hung")])


@pytest.mark.parametrize("dead", ["rank 1", "engine"])
def test_a_weight_group_is_left_and_ranks_are_waited_for_only_if_they_can_return(
    dead: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[list[str]] = []

    def answer(calls: Any, **_: Any) -> list[Any]:
        raise WorkerDiedError(dead, "has died", policy_intact=False)

    ray = SimpleNamespace(wait=lambda calls, **_: waited.append(calls))
    monkeypatch.setattr(remote_workers, "gather", answer)
    monkeypatch.setattr(remote_workers, "import_ray", lambda: ray)
    names = ("broadcast", "help_with_weights", "receive", "leave_group")
    actor = SimpleNamespace(**{name: SimpleNamespace(remote=lambda *_, name=name: name) for name in names})
    ranks = remote_workers.TrainerActors([ActorHandle(f"rank {n}", actor, True) for n in range(2)])
    engine = ActorHandle("engine", actor, False)
    ranks._receivers = [engine]
    with pytest.raises(WorkerDiedError, match=dead):
        ranks.send_weights([engine])
    assert waited == ([["leave_group", "leave_group", "broadcast", "help_with_weights"]] if dead == "engine" else [])


def test_ranks_are_called_by_one_thread_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that restarts during an update fetches weights from them."""
    at_work, most = list[object](), 0

    def answers(calls: Sequence[Any], **_: Any) -> list[None]:
        nonlocal most
        at_work.append(calls)
        most = max(most, len(at_work))
        time.sleep(0.01)
        at_work.pop()
        return [None] * len(calls)

    remote = SimpleNamespace(remote=lambda *args: None)
    names = ("do", "help_with_weights", "open_store", "join_group", "broadcast", "receive", "load_weights")
    actor = SimpleNamespace(**dict.fromkeys(names, remote))
    monkeypatch.setattr(remote_workers, "import_ray", lambda: SimpleNamespace(put=lambda given: given))
    monkeypatch.setattr(remote_workers, "gather", answers)
    actors = [ActorHandle(name, actor, trains=True) for name in ("first", "second")]
    ranks = remote_workers.TrainerActors(actors)
    for other in (lambda stop: ranks.send_weights(actors), lambda stop: ranks.pass_weights("load_weights", [0])):
        with run_in_background(other) as sent:
            for _ in range(3):
                ranks.do("policy", "update")
        sent.result()
    assert most == 1
