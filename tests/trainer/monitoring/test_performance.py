"""The share of a card's peak that updates reach. The card is pretended; what it counts is not."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from tinyzero_sdk import Item, Score
from tinyzero_trainer.config import OptimizerConfig, TrainConfig
from tinyzero_trainer.controller import step as training_step
from tinyzero_trainer.controller.step import TrainingStep
from tinyzero_trainer.monitoring import performance as utilization
from tinyzero_trainer.monitoring.performance import GpuMemoryUsage
from tinyzero_trainer.types import Generation, Prompt, Rollout

SECONDS = {"gen": 1.0, "update_actor": 2.0, "update_critic": 4.0, "step": 7.0}


def card(name: str, gib: int = 1) -> GpuMemoryUsage:
    return GpuMemoryUsage(name, gib * 2**30, 2 * gib * 2**30)


def test_known_cards_have_the_peaks_of_their_data_sheets() -> None:
    h200, old = card("NVIDIA H200"), card("Quadro 6000")
    assert utilization.peak_flops([h200]) == 989e12
    assert utilization.peak_flops([h200, h200]) == 2 * 989e12
    assert utilization.peak_flops([h200, old]) is None
    assert utilization.peak_flops([]) is None


def test_memory_is_that_of_the_fullest_card() -> None:
    assert utilization.memory_metrics([card("one", 3), card("other", 2)]) == {
        "perf/max_memory_allocated_gb": 3.0,
        "perf/max_memory_reserved_gb": 6.0,
    }
    assert utilization.memory_metrics([]) == {}


def test_a_cpu_is_no_card() -> None:
    assert utilization.memory_usage(torch.device("cpu")) is None


def step(monkeypatch: pytest.MonkeyPatch, *, adapter: object = None) -> TrainingStep:
    """On cards of 500 FLOP/s, with 2 epochs; the policy has 10 parameters, the critic 4."""
    monkeypatch.setattr(training_step, "peak_flops", lambda cards: 500.0 * len(cards) or None)
    taken = object.__new__(TrainingStep)
    taken.config = TrainConfig(optimizer=OptimizerConfig(update_epochs=2))
    critic = SimpleNamespace(parameters=4)
    taken.workers = SimpleNamespace(language_model=SimpleNamespace(adapter=adapter, parameters=10), critic=critic)
    return taken


def test_it_counts_the_tokens_of_all_epochs(monkeypatch: pytest.MonkeyPatch) -> None:
    one = Rollout(Prompt(Item(None), "", [1, 2]), Generation([3, 4, 5], None, True), "", Score(0.0, False))
    left_out = replace(one, score=Score(0.0, False, masked=True))
    samples = [one, one, left_out]  # 10 tokens a pass
    cards = [card("a"), card("b")]
    assert step(monkeypatch).utilization(SECONDS, samples, cards) == {
        "perf/mfu/actor": pytest.approx(6 * 10 * 20 / 2.0 / 1000),
        "perf/mfu/critic": pytest.approx(6 * 4 * 20 / 4.0 / 1000),
    }
    assert "perf/mfu/actor" not in step(monkeypatch, adapter=object()).utilization(SECONDS, samples, cards)
    assert step(monkeypatch).utilization(SECONDS, samples, []) == {}
