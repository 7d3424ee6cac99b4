"""The adaptive completion-length limit: its rules, and the faults it must not have."""

from dataclasses import replace

import pytest

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


RULES = replace(
    CONFIG,
    target_success_rate=0.6,
    tolerance=0.1,
    slack_tokens=50,
    step_tokens=20,
    max_truncated_fraction=0.05,
    min_tokens=100,
)


@pytest.mark.parametrize(
    ("success", "correct", "length", "truncated", "unchanged", "limit"),
    [
        (0.5, 300, 300, 0.0, 0, 520),  # too few are right
        (0.7, 300, 300, 0.0, 0, 480),  # there is room to spare
        (0.7, 300, 300, 0.2, 0, 500),  # but for those that are cut off
        (0.7, 300, 460, 0.0, 0, 500),  # for the correct ones alone
        (0.7, 460, 300, 0.0, 0, 500),  # for all together alone
        (0.7, None, 300, 0.0, 0, 480),
        (0.65, 470, 470, 0.0, 4, 520),  # settled for long enough
        (0.65, 470, 470, 0.0, 3, 500),
        (0.59, 470, 470, 0.0, 9, 500),  # below the target
        (0.65, 300, 300, 0.0, 9, 500),  # room to spare, near the target
    ],
)
def test_the_limit_follows_success_and_room(
    success: float, correct: float | None, length: float, truncated: float, unchanged: int, limit: int
) -> None:
    state = LengthControlState(max_tokens=500, unchanged_steps=unchanged)
    measured = LengthStatistics(success, correct, length, truncated)
    after = adapt(state, measured, RULES, full=FULL, step=9)
    assert (after.max_tokens, after.unchanged_steps) == (limit, unchanged + 1 if limit == 500 else 0)
    assert adapt(state, measured, RULES, full=505, step=9).max_tokens == min(505, limit)
    assert adapt(state, measured, replace(RULES, min_tokens=495), full=FULL, step=9).max_tokens == max(495, limit)
    assert adapt(state, measured, replace(RULES, every=2), full=FULL, step=9).max_tokens == 500


def test_it_starts_after_the_warm_up_at_the_length_of_correct_completions() -> None:
    wrong, right = LengthStatistics(0.0, None, 700, 0.0), LengthStatistics(0.5, 400, 700, 0.0)
    state = adapt(LengthControlState(), right, RULES, full=FULL, step=RULES.warmup_steps - 1)
    assert max_tokens_at(state, RULES, full=FULL, step=9, seed=0) == FULL
    assert adapt(LengthControlState(), wrong, RULES, full=FULL, step=9).max_tokens is None
    state = adapt(state, replace(right, correct_length=300), replace(RULES, ema_decay=0.75), full=FULL, step=9)
    assert max_tokens_at(state, RULES, full=FULL, step=9, seed=0) == 375 + 50
    assert (state.length, state.success_rate) == (700, 0.5)


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
