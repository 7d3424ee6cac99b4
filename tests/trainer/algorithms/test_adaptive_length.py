"""The adaptive window: each of its rules, and the faults it must not have."""

import random
from dataclasses import asdict, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinyzero_sdk import Item, Score
from tinyzero_sdk.errors import SettingsError
from tinyzero_trainer.algorithms.adaptive_length import LengthControlState, LengthStatistics, adapt, max_tokens_at
from tinyzero_trainer.config import LengthControlConfig
from tinyzero_trainer.config.compose import make_config
from tinyzero_trainer.types import Generation, Prompt, Rollout

CONFIG = LengthControlConfig(mode="adaptive", warmup_steps=3, every=1, patience=4, ema_decay=0.0)
FULL = 1024


def after(
    state: LengthControlState, *, steps: int = 1, config: LengthControlConfig = CONFIG, step: int = 10, **measured
):
    values = {"success_rate": 0.7, "correct_length": 200.0, "length": 200.0, "truncated": 0.0, **measured}
    for _ in range(steps):
        state = adapt(state, LengthStatistics(**values), config, full=FULL, step=step)
    return state


def test_it_starts_after_the_warm_up_from_the_length_of_what_is_correct() -> None:
    state = after(LengthControlState(), step=2, correct_length=100.0)
    assert max_tokens_at(state, CONFIG, full=FULL, step=3, seed=0) == FULL
    assert after(state, step=3, correct_length=100.0).max_tokens == 132


START = LengthControlState(max_tokens=500)


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
    assert after(START, **measured).max_tokens == tokens


def test_truncated_completions_do_not_make_it_shrink_for_ever() -> None:
    """A model that would need 300 tokens: whatever is cut off fails, and the survivors are the short ones."""
    config, state = replace(CONFIG, ema_decay=0.5), LengthControlState(max_tokens=128)
    for step in range(100):
        window = max_tokens_at(state, config, full=FULL, step=step, seed=0)
        fits = window >= 300
        measured = LengthStatistics(
            0.9 if fits else 0.2, 250.0 if fits else window / 2, min(window, 250.0), 0.0 if fits else 0.8
        )
        state = adapt(state, measured, config, full=FULL, step=step + 10)
    assert state.max_tokens is not None
    assert 250 <= state.max_tokens <= 450


def test_exploring_is_a_single_step_and_depends_on_nothing_but_seed_and_step() -> None:
    config = replace(CONFIG, full_length_prob=0.3)
    windows = [max_tokens_at(START, config, full=FULL, step=step, seed=1) for step in range(300)]
    assert set(windows) == {500, FULL}
    assert 50 < windows.count(FULL) < 130
    assert windows == [max_tokens_at(START, config, full=FULL, step=step, seed=1) for step in range(300)]


class Controller:
    """The rules, written down a second time from their description, on plain numbers.

    s = EMA of the success rate; spare = window − EMA of the length, of all or of the correct ones, whichever is more.
    """

    def __init__(self, config: LengthControlConfig, full: int) -> None:
        self.config, self.full, self.length_control, self.idle = config, full, full, 0
        self.averages: dict[str, float] = {}
        self.started = False

    def step(self, number: int, measured: LengthStatistics) -> None:
        for name, value in asdict(measured).items():
            if value is not None:
                before, share = self.averages.get(name, value), self.config.ema_decay
                self.averages[name] = share * before + (1 - share) * value
        if number < self.config.warmup_steps:
            return
        if not self.started:
            if "correct_length" in self.averages:
                self.started = True
                self.move(round(self.averages["correct_length"]) + self.config.slack_tokens)
                self.idle = 0
            return
        before = self.length_control
        if number % self.config.every == 0:
            self.move(self.length_control + self.decision())
        self.idle = self.idle + 1 if self.length_control == before else 0

    def decision(self) -> int:
        config, success = self.config, self.averages["success_rate"]
        spare = self.length_control - max(self.averages["length"], self.averages.get("correct_length", 0))
        if success <= config.target_success_rate - config.tolerance:
            return config.step_tokens
        if success >= config.target_success_rate + config.tolerance and spare > config.slack_tokens:
            return 0 if self.averages["truncated"] > config.max_truncated_fraction else -config.step_tokens
        if (
            success >= config.target_success_rate
            and -config.slack_tokens <= spare <= config.slack_tokens
            and self.idle >= config.patience
        ):
            return config.step_tokens
        return 0

    def move(self, tokens: int) -> None:
        self.length_control = max(min(self.config.min_tokens, self.full), min(self.full, tokens))


@given(st.integers(0, 10**6), st.sampled_from([0.0, 0.5, 0.9]), st.integers(1, 4), st.sampled_from([100, 300, 1024]))
def test_it_follows_the_rules_step_by_step(seed: int, decay: float, every: int, full: int) -> None:
    draw = random.Random(seed)
    config = replace(CONFIG, ema_decay=decay, every=every, patience=draw.randint(1, 6), warmup_steps=draw.randint(1, 5))
    state, reference = LengthControlState(), Controller(config, full)
    success, length = draw.random(), draw.uniform(20, full)
    for number in range(1, 80):
        success = min(1.0, max(0.0, success + draw.uniform(-0.15, 0.17)))
        length = min(float(full), max(1.0, length + draw.uniform(-30, 30)))
        measured = LengthStatistics(
            success, length * draw.choice([0.8, 1.2]) if success > 0.1 else None, length, draw.choice([0.0, 0.05, 0.3])
        )
        state = adapt(state, measured, config, full=full, step=number)
        reference.step(number, measured)
        assert max_tokens_at(state, config, full=full, step=number + 1, seed=0) == reference.length_control


def test_what_is_measured_of_a_batch() -> None:
    def sample(length: int, *, correct: bool, finished: bool) -> Rollout:
        return Rollout(
            Prompt(Item(None), "", [1]), Generation([2] * length, [-1.0] * length, finished), "", verdict(correct)
        )

    def verdict(correct: bool) -> Score:
        return Score(float(correct), correct, "ok" if correct else "wrong")

    mixed = [
        sample(4, correct=True, finished=True),
        sample(8, correct=True, finished=True),
        sample(12, correct=False, finished=True),
        sample(16, correct=False, finished=False),
    ]
    assert LengthStatistics.of(mixed) == LengthStatistics(
        success_rate=0.5, correct_length=6.0, length=10.0, truncated=0.25
    )
    assert LengthStatistics.of(mixed[2:]).correct_length is None


def test_a_fixed_window_is_never_longer_than_the_full_one() -> None:
    fixed = LengthControlConfig(mode="fixed", max_tokens=300)
    assert max_tokens_at(START, fixed, full=FULL, step=1, seed=0) == 300
    assert max_tokens_at(START, fixed, full=200, step=1, seed=0) == 200
    assert max_tokens_at(START, LengthControlConfig(), full=FULL, step=1, seed=0) == FULL


@pytest.mark.parametrize(
    "settings", [{"min_tokens": 8}, {"mode": "fixed", "every": 2}, {"mode": "adaptive", "max_tokens": 9}]
)
def test_a_setting_without_effect_is_refused(settings) -> None:
    with pytest.raises(SettingsError, match=r"has no effect: it is not used with length_control\.mode"):
        make_config({"run": {"task": "x"}, "length_control": settings})
