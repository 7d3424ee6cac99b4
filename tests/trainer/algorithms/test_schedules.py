"""Learning rate, temperature and KL weight over a run."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinyzero_trainer.config import AlgorithmConfig, OptimizerConfig, RolloutConfig, RunConfig, TrainConfig

CONFIG = TrainConfig(
    run=RunConfig(steps=20),
    rollout=RolloutConfig(temperature=1.2, temperature_end=0.6),
    algorithm=AlgorithmConfig(kl_coefficient=0.1, kl_coefficient_end=0.0),
    optimizer=OptimizerConfig(learning_rate=1.0, warmup_steps=4, lr_schedule="linear", min_lr_ratio=0.1),
)


@settings(max_examples=30)
@given(st.integers(1, 40), st.integers(0, 20), st.floats(0, 0.99), st.sampled_from(["constant", "linear", "cosine"]))
def test_the_rate_is_the_textbooks_schedule(steps: int, warmup: int, final_share: float, shape) -> None:
    """Up to the peak in equal stairs, there for a step, then down a line or half a cosine to the last step."""
    final_share = 0.0 if shape == "constant" else final_share
    optimizer = OptimizerConfig(learning_rate=3.0, warmup_steps=warmup, lr_schedule=shape, min_lr_ratio=final_share)
    for step in range(1, steps + 1):
        left = steps - warmup - 1
        done = min(1.0, (step - warmup - 1) / left) if left > 0 and step > warmup else 0.0
        falling = {"constant": 1.0, "linear": 1 - done, "cosine": (1 + math.cos(math.pi * done)) / 2}[shape]
        expected = 3.0 * (final_share + (1 - final_share) * falling) if step > warmup else 3.0 * step / warmup
        if shape == "constant" and step > warmup:
            expected = 3.0
        assert optimizer.learning_rate_at(step, steps) == pytest.approx(expected)


def test_temperature_and_kl_go_to_their_ends_linearly() -> None:
    first, last = CONFIG.settings_at(1), CONFIG.settings_at(20)
    assert (first.temperature, last.temperature) == (1.2, pytest.approx(0.6))
    assert (first.kl_coefficient, last.kl_coefficient) == (0.1, 0.0)


def test_without_an_end_nothing_changes() -> None:
    plain = replace(CONFIG, rollout=RolloutConfig(), optimizer=OptimizerConfig(), algorithm=AlgorithmConfig())
    assert len({plain.settings_at(step) for step in range(1, 21)}) == 1
