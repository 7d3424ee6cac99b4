"""Learning rate, temperature and KL weight over a run."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinyzero_trainer.config import AlgorithmConfig, OptimizerConfig, RolloutConfig, RunConfig, TrainConfig
from tinyzero_trainer.schedules import decayed, settings_at

CONFIG = TrainConfig(
    run=RunConfig(task="countdown", steps=20),
    rollout=RolloutConfig(temperature=1.2, final_temperature=0.6),
    algorithm=AlgorithmConfig(kl_coefficient=0.1, final_kl_coefficient=0.0),
    optimizer=OptimizerConfig(learning_rate=1.0, warmup_steps=4, schedule="linear", final_rate_share=0.1),
)


def test_the_rate_rises_to_its_peak_and_falls_to_its_end() -> None:
    rates = [settings_at(CONFIG, step).learning_rate for step in range(1, 21)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    assert rates[-1] == pytest.approx(0.1)
    assert rates[4:] == sorted(rates[4:], reverse=True)


def test_temperature_and_kl_go_to_their_ends_linearly() -> None:
    first, last = settings_at(CONFIG, 1), settings_at(CONFIG, 20)
    assert (first.temperature, last.temperature) == (1.2, pytest.approx(0.6))
    assert (first.kl_coefficient, last.kl_coefficient) == (0.1, 0.0)


def test_without_an_end_nothing_changes() -> None:
    plain = replace(CONFIG, rollout=RolloutConfig(), optimizer=OptimizerConfig(), algorithm=AlgorithmConfig())
    assert len({settings_at(plain, step) for step in range(1, 21)}) == 1


@given(st.floats(0, 9), st.floats(0, 9), st.integers(-3, 30), st.integers(1, 20), st.sampled_from(["linear", "cosine"]))
def test_a_schedule_stays_between_its_ends(start: float, end: float, step: int, steps: int, shape) -> None:
    value = decayed(start, end, step, steps, shape)
    assert min(start, end) - 1e-9 <= value <= max(start, end) + 1e-9
    assert decayed(start, end, 1, steps, shape) == pytest.approx(start)
    if steps > 1:
        assert decayed(start, end, steps, steps, shape) == pytest.approx(end, abs=1e-9)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"policy_loss": "reinforce", "clip_high": 0.3}, "clip_high=0.3 has no effect: policy_loss='reinforce'"),
        ({"policy_loss": "cispo", "dual_clip": 3.0}, "dual_clip=3.0 has no effect"),
        ({"discount": 0.9}, "discount=0.9 has no effect: advantage='grpo'"),
        ({"kl_in": "reward"}, "kl_in='reward' has no effect: kl_coefficient=0"),
        ({"kl_coefficient": 0.1, "kl_horizon": 5}, "kl_horizon=5 has no effect"),
        ({"kl_coefficient": 0.1, "kl_target": 0.1, "final_kl_coefficient": 0.0}, "the coefficient adapts"),
        ({"kl_coefficient": 0.1, "kl_in": "reward", "kl_estimator": "k3+"}, "only the value counts there"),
    ],
)
def test_a_setting_without_effect_is_refused(settings, message) -> None:
    with pytest.raises(ValueError, match=message):
        AlgorithmConfig(**settings)
