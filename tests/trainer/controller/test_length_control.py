"""The adaptive completion-length limit: its rules, and the faults it must not have."""

import random
from dataclasses import asdict, replace

from hypothesis import given
from hypothesis import strategies as st

from tinyzero_sdk import Item, Score
from tinyzero_trainer.config import LengthControlConfig
from tinyzero_trainer.controller.length_control import LengthControlState, LengthStatistics, adapt, max_tokens_at
from tinyzero_trainer.types import Generation, Prompt, Rollout

CONFIG = LengthControlConfig(mode="adaptive", warmup_steps=3, every=1, patience=4, ema_decay=0.0)
FULL = 1024
START = LengthControlState(max_tokens=500)


def test_truncated_completions_do_not_shrink_it_forever() -> None:
    """A model that needs 300 tokens: completions that are cut off fail, and only short ones succeed."""
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


def test_exploring_takes_one_step_and_depends_on_seed_and_step_alone() -> None:
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


def test_statistics_of_a_batch() -> None:
    prompt, mixed = Prompt(Item(None), "", [1]), []
    for length, correct, finished in ((4, True, True), (8, True, True), (12, False, True), (16, False, False)):
        generation = Generation([2] * length, [-1.0] * length, finished)
        mixed.append(Rollout(prompt, generation, "", Score(float(correct), correct, "ok" if correct else "wrong")))
    assert LengthStatistics.of(mixed) == LengthStatistics(
        success_rate=0.5, correct_length=6.0, length=10.0, truncated=0.25
    )
    assert LengthStatistics.of(mixed[2:]).correct_length is None


def test_a_fixed_limit_never_exceeds_the_full_one() -> None:
    fixed = LengthControlConfig(mode="fixed", max_tokens=300)
    assert max_tokens_at(START, fixed, full=FULL, step=1, seed=0) == 300
    assert max_tokens_at(START, fixed, full=200, step=1, seed=0) == 200
    assert max_tokens_at(START, LengthControlConfig(), full=FULL, step=1, seed=0) == FULL
