"""The rollout window: how many tokens a completion may have in training, and how that adapts to success.

After the controller of TinyZero's adaptive-rollout fork: a model that succeeds is asked to be brief, one that fails is
given room. Evaluation always uses the full length. Pure: state and measurements in, state out.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from tinyzero_sdk.seeds import derive_seed
from tinyzero_trainer.config import LengthControlConfig
from tinyzero_trainer.types import Rollout
from tinyzero_trainer.utils.ema import ema


@dataclass(frozen=True, slots=True)
class Measured:
    """What a batch of completions says about the window."""

    success_rate: float
    """Share that is correct."""

    correct_length: float | None
    """Mean tokens of the correct ones; None without any."""

    length: float
    """Mean tokens of all."""

    truncated: float
    """Share that the window cut off."""


@dataclass(frozen=True, slots=True)
class WindowState:
    """What the controller remembers; part of a checkpoint. Averages are exponential, None before the first batch."""

    tokens: int | None = None
    """The window; None = still the full length, while warming up."""

    success_rate: float | None = None
    """Average share of correct completions."""

    correct_length: float | None = None
    """Average length of the correct ones, in tokens."""

    length: float | None = None
    """Average length of all."""

    truncated: float | None = None
    """Average share that was cut off."""

    held: int = 0
    """Steps since the window last changed."""


def measure(samples: Sequence[Rollout]) -> Measured:
    """Success and lengths of a batch."""
    correct = [len(sample.generation.token_ids) for sample in samples if sample.score.correct]
    return Measured(
        success_rate=len(correct) / len(samples),
        correct_length=fmean(correct) if correct else None,
        length=fmean(len(sample.generation.token_ids) for sample in samples),
        truncated=fmean(not sample.generation.finished for sample in samples),
    )


def window_at(state: WindowState, config: LengthControlConfig, *, full: int, step: int, seed: int) -> int:
    """Tokens that completions of this step may have.

    Args:
        state: after the steps before.
        config: the mode and its settings.
        full: `rollout.max_completion_tokens`.
        step: counts from 1.
        seed: of the run; decides in which steps the full length is tried once.
    """
    if config.mode == "fixed":
        return min(config.max_tokens, full)
    if config.mode == "full" or state.tokens is None:
        return full
    explores = random.Random(derive_seed("window", seed, step)).random() < config.full_length_prob
    return full if explores else state.tokens


def observe(
    state: WindowState, measured: Measured, config: LengthControlConfig, *, full: int, step: int
) -> WindowState:
    """The state after a step: averages moved, and at every `every`-th step perhaps another window."""
    state = _averaged(state, measured, config.ema_decay)
    if config.mode != "adaptive" or step < config.warmup_steps:
        return state
    if state.tokens is None:
        if state.correct_length is None:
            return state  # nothing correct yet, so nothing to go by
        return replace(state, tokens=_clipped(round(state.correct_length) + config.slack_tokens, config, full), held=0)
    change = _change(state, config) if step % config.every == 0 else 0
    tokens = _clipped(state.tokens + change, config, full)
    return replace(state, tokens=tokens, held=0 if tokens != state.tokens else state.held + 1)


def _change(state: WindowState, config: LengthControlConfig) -> int:
    assert state.tokens is not None
    assert state.success_rate is not None
    assert state.length is not None
    assert state.truncated is not None
    # The lengths of all completions, and how many were cut: the correct ones alone are those that fitted, and a
    # window that follows them shrinks for ever.
    spare = state.tokens - max(state.length, state.correct_length or 0.0)
    if state.success_rate <= config.target_success_rate - config.tolerance:
        return config.step_tokens
    if state.success_rate >= config.target_success_rate + config.tolerance and spare > config.slack_tokens:
        return -config.step_tokens if state.truncated <= config.max_truncated_fraction else 0
    settled = state.success_rate >= config.target_success_rate and abs(spare) <= config.slack_tokens
    settled = settled and state.held >= config.patience
    return config.step_tokens if settled else 0


def _averaged(state: WindowState, measured: Measured, decay: float) -> WindowState:
    return replace(
        state,
        success_rate=ema(state.success_rate, measured.success_rate, decay),
        correct_length=ema(state.correct_length, measured.correct_length, decay),
        length=ema(state.length, measured.length, decay),
        truncated=ema(state.truncated, measured.truncated, decay),
    )


def _clipped(tokens: int, config: LengthControlConfig, full: int) -> int:
    return min(full, max(min(config.min_tokens, full), tokens))
