"""The share of a card's peak that updates reach. The card is pretended; what it counts is not."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from tinyzero_sdk import Item, Score
from tinyzero_trainer import training_step, utilization
from tinyzero_trainer.config import OptimizerConfig, RunConfig, TrainConfig
from tinyzero_trainer.records import Prompt, Rollout, Sample
from tinyzero_trainer.training_step import TrainingStep

SECONDS = {"gen": 1.0, "update_actor": 2.0, "update_critic": 4.0, "step": 7.0}


def test_a_known_card_has_the_peak_of_its_data_sheet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    assert utilization.peak_of(torch.device("cuda")) == 989e12
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Quadro 6000")
    assert utilization.peak_of(torch.device("cuda")) is None
    assert utilization.peak_of(torch.device("cpu")) is None


def step(monkeypatch: pytest.MonkeyPatch, *, adapter: object = None, device: str = "auto") -> TrainingStep:
    """On a card of 1,000 FLOP/s, with 2 epochs; the policy has 10 parameters, the critic 4."""
    monkeypatch.setattr(training_step, "peak_of", lambda device: 1000.0)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    taken = object.__new__(TrainingStep)
    taken.config = TrainConfig(run=RunConfig(device=device), optimizer=OptimizerConfig(epochs=2))
    critic = SimpleNamespace(parameters=4)
    taken.roles = SimpleNamespace(language_model=SimpleNamespace(adapter=adapter, parameters=10), critic=critic)
    return taken


def test_it_counts_the_tokens_of_all_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Sample(Prompt(Item(None), "", [1, 2]), Rollout([3, 4, 5], None, True), "", Score(0.0, False))
    left_out = replace(one, score=Score(0.0, False, masked=True))
    samples = [one, one, left_out]  # 10 tokens a pass
    assert step(monkeypatch).utilization(SECONDS, samples) == {
        "perf/mfu/actor": pytest.approx(6 * 10 * 20 / 2.0 / 1000),
        "perf/mfu/critic": pytest.approx(6 * 4 * 20 / 4.0 / 1000),
    }
    assert "perf/mfu/actor" not in step(monkeypatch, adapter=object()).utilization(SECONDS, samples)
    assert step(monkeypatch, device="cpu").utilization(SECONDS, samples) == {}
