"""What an actor does itself, without Ray."""

import pickle
from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from tinyzero_trainer.config.compose import make_config
from tinyzero_trainer.errors import EngineDiedError
from tinyzero_trainer.executors.ray import actors
from tinyzero_trainer.executors.ray.actors import without_weights
from tinyzero_trainer.models.loading import LanguageModel


@pytest.mark.parametrize("fails", ["before", "amid", "never"])
def test_a_rank_iterates_over_the_weights_once_whatever_fails(fails: str, monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[int] = []

    def named_weights(_: Any) -> Iterator[tuple[str, Any]]:
        passes.append(0)
        for index in range(3):
            passes[-1] += 1
            yield str(index), None

    def load_weights(version: int) -> None:
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


def test_a_model_without_its_weights_can_be_sent(toy_model: LanguageModel) -> None:
    found: LanguageModel = pickle.loads(pickle.dumps(without_weights(toy_model)))
    for name in ("parameters", "trained_parameters", "context", "trained", "eos_ids", "pad_id", "name"):
        assert getattr(found, name) == getattr(toy_model, name), name
    ids = toy_model.tokenizer("1 + 2").input_ids
    assert found.tokenizer.decode(ids) == "1 + 2"
    assert len(pickle.dumps(without_weights(toy_model))) < 4 * toy_model.parameters
