"""Results and deaths of actors, with a fake Ray; the real one is in test_ray.py."""

import pickle
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tests.trainer.training.test_micro_batches import make_sample
from tinyzero_sdk.errors import SettingsError, TinyZeroError
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.config.compose import make_config
from tinyzero_trainer.errors import WorkerDiedError
from tinyzero_trainer.executors.ray import calls as calls_module
from tinyzero_trainer.executors.ray import remote_workers
from tinyzero_trainer.executors.ray.actors import without_weights
from tinyzero_trainer.executors.ray.calls import ActorHandle, gather
from tinyzero_trainer.models.loading import LanguageModel

DIED = (
    "The actor died unexpectedly before finishing this task.\n\tclass_name: A\n\tpid: 2869\n\tip: 10.0.0.2\n"
    "The actor is dead because its worker process has died. Worker exit type: {kind} Worker exit detail: Worker "
    "unexpectedly exits. Some common causes include: (1) the process was killed by the OOM killer"
)


class FakeRayError(Exception):
    """Ray's base class."""


class TaskError(FakeRayError):
    """A method raised."""

    def __init__(self, cause: Exception) -> None:
        super().__init__("many\nlines")
        self.cause = cause


class FakeRay:
    """Answers are what they are by a time that `wait` counts in calls; exceptions among them are raised."""

    exceptions = SimpleNamespace(RayError=FakeRayError, RayTaskError=TaskError)

    def __init__(self, after: dict[Any, int]) -> None:
        self.after, self.waited = after, 0

    def wait(self, pending: list[Any], timeout: float | None) -> tuple[list[Any], list[Any]]:
        self.waited += 1
        done = [answer for answer in pending if self.after[answer] <= self.waited]
        return done[:1], [answer for answer in pending if answer not in done[:1]]

    def get(self, answer: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[Any]]:
    """Ask as many members as there are answers, the last of which comes first."""

    def ask_actors(*results: Any, trains: bool = True, **given: Any) -> list[Any]:
        after = {result: len(results) - place for place, result in enumerate(results)}
        monkeypatch.setattr(calls_module, "import_ray", lambda: FakeRay(after))
        actors = [ActorHandle(f"rank {place}", None, trains) for place in range(len(results))]
        return gather(list(zip(actors, results, strict=True)), **given)

    return ask_actors


def test_answers_come_in_order(ask: Callable[..., list[Any]]) -> None:
    assert ask("a", "b", "c") == ["a", "b", "c"]


def test_what_a_worker_refuses_is_told_as_it_is(ask: Callable[..., list[Any]]) -> None:
    with pytest.raises(SettingsError, match=r"^not so$"):
        ask("a", TaskError(SettingsError("not so")))


def test_the_death_behind_a_broken_line_is_what_is_told(ask: Callable[..., list[Any]]) -> None:
    broken, dead = TaskError(RuntimeError("Connection closed by peer")), FakeRayError(DIED.format(kind="SYSTEM_ERROR"))
    with pytest.raises(WorkerDiedError) as told:
        ask(dead, "fine", broken)
    assert str(told.value) == "rank 0 (process 2869 on 10.0.0.2) has died"


def test_an_error_without_a_death_behind_it_is_raised_as_it_is(
    ask: Callable[..., list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls_module, "GRACE_SECONDS", 0.0)
    with pytest.raises(TaskError):
        ask("never comes", TaskError(RuntimeError("a fault of ours")))


def test_memory_that_ran_out_is_told(ask: Callable[..., list[Any]]) -> None:
    with pytest.raises(
        WorkerDiedError, match=r"2869 on 10\.0\.0\.2\) was ended, since its machine's memory had run out$"
    ):
        ask(FakeRayError(DIED.format(kind="NODE_OUT_OF_MEMORY")))


@pytest.mark.parametrize(
    ("trains", "policy_intact", "expected"), [(True, True, False), (False, True, True), (False, False, False)]
)
def test_the_policy_is_intact_if_no_training_rank_has_died_and_none_was_updating(
    trains: bool, policy_intact: bool, expected: bool, ask: Callable[..., list[Any]]
) -> None:
    with pytest.raises(WorkerDiedError) as told:
        ask(FakeRayError("it is gone"), trains=trains, policy_intact=policy_intact)
    assert str(told.value) == "rank 0 has died"
    assert told.value.policy_intact == expected


def test_waiting_can_be_stopped(ask: Callable[..., list[Any]]) -> None:
    class Stop(Exception):
        """Stands for a signal."""

    def meanwhile() -> None:
        raise Stop

    with pytest.raises(Stop):
        ask("a", "b", meanwhile=meanwhile)


def test_the_user_is_told_how_to_go_on() -> None:
    lost = WorkerDiedError("rank 1", "has died", policy_intact=False)
    assert str(lost.with_resume_hint(4, "my runs/a")) == (
        "rank 1 has died; step 4 is saved; resume with: tinyzero train --output 'my runs/a' --resume"
    )
    assert str(lost.with_resume_hint(None, "a")).endswith("start again, with a smaller checkpoint.every")
    assert isinstance(lost.with_resume_hint(None, "a"), TinyZeroError)


class Stream:
    """A rank's stream of buckets, of which it waits for each to be taken."""

    def __init__(self, buckets: list[Any]) -> None:
        self.left = buckets

    def __iter__(self) -> "Stream":
        return self

    def __next__(self) -> Any:
        if not self.left:
            raise StopIteration
        return self.left.pop(0)

    def completed(self) -> str:
        assert not self.left, "the rank would wait for ever"
        return "sent"


@pytest.mark.parametrize("rank_died", [False, True])
def test_an_engine_that_dies_while_it_takes_weights_leaves_no_rank_waiting(
    rank_died: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    def answer(calls: Any, **_: Any) -> list[Any]:
        asked.append([member.name for member, _ in calls])
        if asked[-1] == ["engine"]:
            raise WorkerDiedError("engine", "has died", policy_intact=False)
        if rank_died:
            raise WorkerDiedError("rank 1", "has died", policy_intact=False)
        return [found for _, found in calls]

    monkeypatch.setattr(remote_workers, "gather", answer)
    remote = SimpleNamespace(remote=lambda *_: "asked")
    stream = Stream(["a", "b", "c"])
    sending = SimpleNamespace(options=lambda **_: SimpleNamespace(remote=lambda: stream))
    ranks = [
        ActorHandle(f"rank {n}", SimpleNamespace(help_with_weights=remote, weights=sending), True) for n in range(2)
    ]
    engine = ActorHandle("engine", SimpleNamespace(load_bucket=remote, load_weights=remote), False)
    with pytest.raises(WorkerDiedError, match="rank 1" if rank_died else "engine"):
        remote_workers.TrainerActors(ranks, "cpu").send_weights([engine])
    assert asked == [["engine"], ["rank 0", "rank 1"]]


@pytest.mark.parametrize("dead", ["rank 1", "engine"])
def test_a_group_is_left_and_ranks_are_waited_for_only_where_they_can_come_back(
    dead: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[list[str]] = []

    def answer(calls: Any, **_: Any) -> list[Any]:
        raise WorkerDiedError(dead, "has died", policy_intact=False)

    ray = SimpleNamespace(wait=lambda calls, **_: waited.append(calls))
    monkeypatch.setattr(remote_workers, "gather", answer)
    monkeypatch.setattr(remote_workers, "import_ray", lambda: ray)
    names = ("broadcast", "help_with_weights", "receive", "leave_group")
    actor = SimpleNamespace(**{name: SimpleNamespace(remote=lambda name=name: name) for name in names})
    ranks = remote_workers.TrainerActors([ActorHandle(f"rank {n}", actor, True) for n in range(2)], "cuda")
    engine = ActorHandle("engine", actor, False)
    ranks._receivers = [engine]
    with pytest.raises(WorkerDiedError, match=dead):
        ranks.send_weights([engine])
    assert waited == ([["leave_group", "leave_group", "broadcast", "help_with_weights"]] if dead == "engine" else [])


def test_a_model_without_its_weights_can_be_sent(toy_model: LanguageModel) -> None:
    found: LanguageModel = pickle.loads(pickle.dumps(without_weights(toy_model)))
    for name in ("parameters", "trained_parameters", "context", "trained", "eos_ids", "pad_id", "name"):
        assert getattr(found, name) == getattr(toy_model, name), name
    text = toy_model.tokenizer.decode(make_sample(3, 2).prompt.token_ids)
    assert found.tokenizer.decode(make_sample(3, 2).prompt.token_ids) == text
    assert len(pickle.dumps(without_weights(toy_model))) < 4 * toy_model.parameters


def test_settings_of_ray_are_refused_without_it() -> None:
    with pytest.raises(SettingsError, match=r"parallel\.world_size=2 has no effect: run\.executor='local'"):
        make_config({"run": {"task": "countdown"}, "parallel": {"world_size": 2}})
    config: TrainConfig = make_config({"run": {"task": "countdown", "executor": "ray"}, "parallel": {"world_size": 2}})
    assert config.parallel.world_size == 2
