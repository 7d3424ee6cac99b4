"""What an actor does itself, without Ray."""

import pickle
from collections.abc import Iterator
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from threading import Event, Thread
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.trainer.samples import build_policy, ragged_samples, with_advantages
from tinyzero_sdk.errors import TinyZeroError
from tinyzero_trainer.algorithms.schedules import StepSettings
from tinyzero_trainer.config import OptimizerConfig
from tinyzero_trainer.config.compose import make_config
from tinyzero_trainer.errors import EngineDiedError
from tinyzero_trainer.executors.ray import actors
from tinyzero_trainer.executors.ray.actors import without_weights
from tinyzero_trainer.models.loading import LanguageModel
from tinyzero_trainer.training.policy import Policy


@pytest.mark.parametrize("fails", ["before", "amid", "never"])
def test_a_rank_iterates_over_the_weights_once_whatever_fails(fails: str, monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[int] = []

    def named_weights(_: Any) -> Iterator[tuple[str, Any]]:
        passes.append(0)
        for index in range(3):
            passes[-1] += 1
            yield str(index), None

    def load_weights() -> None:
        if fails == "before":
            raise EngineDiedError("it does not wake up")
        for name, _ in rank._full_weights():
            if fails == "amid" and name == "1":
                raise EngineDiedError("it dies")

    monkeypatch.setattr(actors, "named_weights", named_weights)
    monkeypatch.setattr(actors, "sent_weights", named_weights)
    rank = actors.TrainerActor(make_config({"run": {"task": "countdown"}}), 0, 2, "cpu")
    rank._models = SimpleNamespace(language_model=SimpleNamespace(model=None))  # type: ignore[assignment]
    rank.engine = SimpleNamespace(load_weights=load_weights)  # type: ignore[assignment]
    for _ in range(2):
        with nullcontext() if fails == "never" else pytest.raises(EngineDiedError):
            rank.load_weights()
    rank.help_with_weights()
    with pytest.raises(AssertionError, match="an engine has died"):
        rank.broadcast()  # after `leave_group`
    assert passes == [3, 3, 3, 3]


def test_a_rank_takes_over_what_another_has_done_of_an_update(toy_model: LanguageModel, tmp_path: Path) -> None:
    samples = ragged_samples(toy_model)
    batch = with_advantages(samples, [float(index % 3) - 1 for index in range(len(samples))])
    now, settings = StepSettings(learning_rate=1e-2, temperature=1.0), OptimizerConfig(num_mini_batches=3)

    def rank() -> tuple[Any, Policy]:
        policy = build_policy(replace(toy_model, model=deepcopy(toy_model.model)), optimizer=settings)
        actor = actors.TrainerActor(make_config({"run": {"task": "countdown"}}), 0, 1, "cpu")
        actor._models = SimpleNamespace(learners=[policy])  # type: ignore[assignment]
        return actor, policy

    (before, failing), (after, policy), (_, undisturbed) = rank(), rank(), rank()
    left, update_mini_batch = iter((True, True, False)), failing._update_mini_batch

    def fail_at_the_third(*args: Any) -> None:
        if not next(left):
            raise torch.OutOfMemoryError
        update_mini_batch(*args)

    failing._update_mini_batch = fail_at_the_third  # type: ignore[method-assign]
    with pytest.raises(torch.OutOfMemoryError):
        failing.update(batch, now)
    [done] = before.hand_over(tmp_path)
    assert done.mini_batches == 2
    with pytest.raises(TinyZeroError, match="did not end within"):
        failing.stop(0.01)  # it makes no further step
    after.take_over(tmp_path, pickle.loads(pickle.dumps([done])))
    assert policy.update(batch, now) == undisturbed.update(batch, now)
    for weight, expected in zip(*(each.model.parameters() for each in (policy, undisturbed)), strict=True):
        assert torch.equal(weight, expected)


@pytest.mark.slow
def test_a_rank_that_waits_for_the_gradients_of_others_hands_over(toy_model: LanguageModel, tmp_path: Path) -> None:
    policy, waits, goes_on = build_policy(toy_model, optimizer=OptimizerConfig()), Event(), Event()
    actor = actors.TrainerActor(make_config({"run": {"task": "countdown"}}), 0, 1, "cpu")
    actor._models = SimpleNamespace(learners=[policy])  # type: ignore[assignment]
    gather = policy._optimizer.gather_gradients

    def gather_late(loss: torch.Tensor) -> torch.Tensor:
        waits.set()
        goes_on.wait()
        return gather(loss)

    policy._optimizer.gather_gradients = gather_late  # type: ignore[method-assign]
    batch = with_advantages(ragged_samples(toy_model), [1.0, -1.0] * 6)
    before = [weight.detach().clone() for weight in toy_model.model.parameters()]
    now = StepSettings(learning_rate=1e-2, temperature=1.0)
    updating = Thread(target=policy.update, args=(batch, now), daemon=True)
    updating.start()
    assert waits.wait(60)
    [done] = actor.hand_over(tmp_path)
    goes_on.set()
    updating.join(0.5)
    assert updating.is_alive()  # it makes no step
    assert done.mini_batches == 0
    assert all(map(torch.equal, before, toy_model.model.parameters()))


def test_a_model_without_its_weights_can_be_sent(toy_model: LanguageModel) -> None:
    found: LanguageModel = pickle.loads(pickle.dumps(without_weights(toy_model)))
    for name in ("parameters", "trained_parameters", "context", "trained", "eos_ids", "pad_id", "name"):
        assert getattr(found, name) == getattr(toy_model, name), name
    ids = toy_model.tokenizer("1 + 2").input_ids
    assert found.tokenizer.decode(ids) == "1 + 2"
    assert len(pickle.dumps(without_weights(toy_model))) < 4 * toy_model.parameters
