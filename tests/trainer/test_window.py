"""The adaptive window: each of its rules, and the faults it must not have."""

from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinyzero_trainer.config import WindowConfig
from tinyzero_trainer.window import Measured, WindowState, observe, window_at

CONFIG = WindowConfig(mode="adaptive", warmup_steps=3, every=1, hold_steps=4, decay=0.0)
FULL = 1024


def after(state: WindowState, *, steps: int = 1, config: WindowConfig = CONFIG, step: int = 10, **measured):
    values = {"success_rate": 0.7, "correct_length": 200.0, "length": 200.0, "truncated": 0.0, **measured}
    for _ in range(steps):
        state = observe(state, Measured(**values), config, full=FULL, step=step)
    return state


def test_it_starts_after_the_warm_up_from_the_length_of_what_is_correct() -> None:
    state = after(WindowState(), step=2, correct_length=100.0)
    assert window_at(state, CONFIG, full=FULL, step=3, seed=0) == FULL
    assert after(state, step=3, correct_length=100.0).tokens == 132


def test_without_anything_correct_it_waits() -> None:
    assert after(WindowState(), steps=5, success_rate=0.0, correct_length=None).tokens is None


START = WindowState(tokens=500)


@pytest.mark.parametrize(
    ("measured", "tokens"),
    [
        ({"success_rate": 0.8}, 436),  # succeeds, with room to spare
        ({"success_rate": 0.8, "correct_length": 480.0, "length": 480.0}, 500),  # no room
        ({"success_rate": 0.8, "correct_length": 200.0, "length": 480.0}, 500),  # the correct ones are the short ones
        ({"success_rate": 0.8, "truncated": 0.2}, 500),  # many are cut off
        ({"success_rate": 0.6}, 564),
        ({"success_rate": 0.7}, 500),
    ],
)
def test_a_decision(measured, tokens: int) -> None:
    assert after(START, **measured).tokens == tokens


def test_after_long_success_it_grows_once_to_see() -> None:
    states, state = [], START
    for _ in range(6):
        state = after(state, length=490.0, correct_length=490.0)
        states.append(state.tokens)
    assert states == [500, 500, 500, 500, 564, 564]


def test_decisions_are_made_every_few_steps() -> None:
    config = replace(CONFIG, every=5)
    assert after(START, config=config, step=11, success_rate=0.0).tokens == 500
    assert after(START, config=config, step=15, success_rate=0.0).tokens == 564


@given(
    st.lists(
        st.builds(
            Measured,
            success_rate=st.floats(0, 1),
            correct_length=st.none() | st.floats(1, 2000),
            length=st.floats(1, 2000),
            truncated=st.floats(0, 1),
        ),
        max_size=60,
    ),
    st.integers(1, 200),
)
def test_it_stays_within_its_bounds_and_is_plain_json(batches: list[Measured], full: int) -> None:
    state = WindowState()
    for step, measured in enumerate(batches, 1):
        state = observe(state, measured, CONFIG, full=full, step=step)
        window = window_at(state, CONFIG, full=full, step=step + 1, seed=0)
        assert min(CONFIG.least, full) <= window <= full
    assert WindowState(**asdict(state)) == state


def test_truncated_completions_do_not_make_it_shrink_for_ever() -> None:
    """A model that would need 300 tokens: whatever is cut off fails, and the survivors are the short ones."""
    config, state = replace(CONFIG, decay=0.5), WindowState(tokens=128)
    for step in range(100):
        window = window_at(state, config, full=FULL, step=step, seed=0)
        fits = window >= 300
        measured = Measured(
            0.9 if fits else 0.2, 250.0 if fits else window / 2, min(window, 250.0), 0.0 if fits else 0.8
        )
        state = observe(state, measured, config, full=FULL, step=step + 10)
    assert state.tokens is not None
    assert 250 <= state.tokens <= 450


def test_exploring_is_a_single_step_and_depends_on_nothing_but_seed_and_step() -> None:
    config = replace(CONFIG, explore=0.3)
    windows = [window_at(START, config, full=FULL, step=step, seed=1) for step in range(300)]
    assert set(windows) == {500, FULL}
    assert 50 < windows.count(FULL) < 130
    assert windows == [window_at(START, config, full=FULL, step=step, seed=1) for step in range(300)]


@pytest.mark.parametrize("settings", [{"least": 8}, {"mode": "fixed", "every": 2}, {"mode": "adaptive", "tokens": 9}])
def test_a_setting_without_effect_is_refused(settings) -> None:
    with pytest.raises(ValueError, match="has no effect with mode"):
        WindowConfig(**settings)
