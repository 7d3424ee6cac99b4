"""Adaptive completion-length limit: how many tokens a completion may have in training.

After the controller of TinyZero's adaptive-rollout fork: a successful model gets a shorter limit, a failing one a
longer one. Evaluation always uses the full length. Pure: state and measurements in, state out.
"""

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any

from pydantic import PositiveInt

from tinyzero_sdk.seeds import derive_seed
from tinyzero_trainer.config import LengthControlConfig
from tinyzero_trainer.types import Rollout
from tinyzero_trainer.utils.ema import ema


@dataclass(frozen=True, slots=True)
class LengthStatistics:
    """Success and lengths of a batch."""

    success_rate: float
    correct_length: float | None  # mean tokens of correct completions; None without any
    length: float  # mean tokens of all completions
    truncated: float  # fraction cut off at the limit

    @classmethod
    def of(cls, rollouts: Sequence[Rollout]) -> "LengthStatistics":
        correct = [len(rollout.generation.token_ids) for rollout in rollouts if rollout.score.correct]
        return cls(
            success_rate=len(correct) / len(rollouts),
            correct_length=fmean(correct) if correct else None,
            length=fmean(len(rollout.generation.token_ids) for rollout in rollouts),
            truncated=fmean(not rollout.generation.finished for rollout in rollouts),
        )


@dataclass(frozen=True, slots=True)
class LengthControlState:
    """State of the limit, part of a checkpoint; averages of `LengthStatistics` are None before the first batch."""

    max_tokens: PositiveInt | None = None  # the limit; None = the full length, during warm-up
    success_rate: float | None = None
    correct_length: float | None = None
    length: float | None = None
    truncated: float | None = None
    unchanged_steps: int = 0  # steps since the limit last changed


def max_tokens_at(state: LengthControlState, config: LengthControlConfig, *, full: int, step: int, seed: int) -> int:
    """The limit of a step (1-based), from the state after the previous one; the seed decides when `full` is tried."""
    if config.mode == "fixed":
        return min(config.max_tokens, full)
    if config.mode == "full" or state.max_tokens is None:
        return full
    explores = random.Random(derive_seed("window", seed, step)).random() < config.full_length_prob
    return full if explores else state.max_tokens


def adapt(
    state: LengthControlState, measured: LengthStatistics, config: LengthControlConfig, *, full: int, step: int
) -> LengthControlState:
    """The state after a step: updated averages, and every `every` steps perhaps another limit."""
    averages: dict[str, Any] = {
        name: ema(getattr(state, name), value, config.ema_decay) for name, value in asdict(measured).items()
    }
    state = replace(state, **averages)
    if config.mode != "adaptive" or step < config.warmup_steps:
        return state
    if state.max_tokens is None:
        if state.correct_length is None:
            return state  # without a correct completion there is nothing to start from
        limit = _clipped(round(state.correct_length) + config.slack_tokens, config, full)
        return replace(state, max_tokens=limit, unchanged_steps=0)
    change = _change(state, config) if step % config.every == 0 else 0
    limit = _clipped(state.max_tokens + change, config, full)
    unchanged_steps = 0 if limit != state.max_tokens else state.unchanged_steps + 1
    return replace(state, max_tokens=limit, unchanged_steps=unchanged_steps)


def _change(state: LengthControlState, config: LengthControlConfig) -> int:
    assert state.max_tokens is not None, "the limit is in force"
    success_rate, length, truncated = state.success_rate or 0.0, state.length or 0.0, state.truncated or 0.0
    # Lengths of all completions, and the fraction truncated: correct completions alone are those that fitted, and a
    # limit that follows them shrinks for ever.
    spare = state.max_tokens - max(length, state.correct_length or 0.0)
    if success_rate <= config.target_success_rate - config.tolerance:
        return config.step_tokens
    if success_rate >= config.target_success_rate + config.tolerance and spare > config.slack_tokens:
        return -config.step_tokens if truncated <= config.max_truncated_fraction else 0
    settled = success_rate >= config.target_success_rate and abs(spare) <= config.slack_tokens
    return config.step_tokens if settled and state.unchanged_steps >= config.patience else 0


def _clipped(tokens: int, config: LengthControlConfig, full: int) -> int:
    return min(full, max(min(config.min_tokens, full), tokens))
