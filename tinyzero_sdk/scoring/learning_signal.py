"""Whether a policy can learn from its completions.

Rewards teach by comparison: where all completions of a prompt get one reward, there is nothing to compare. Those
without an answer all get the same, and most that are cut off have none. Where that is nearly all, a warning says what
is wrong, and the commands that can help.
"""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tinyzero_sdk.console import percent, plural
from tinyzero_sdk.scoring.statistics import wilson
from tinyzero_sdk.settings import flatten, format_value
from tinyzero_sdk.tasks.task import Task

Fault = Literal["no_answer", "truncated", "all_wrong", "all_right", "zero_std"]

# A fraction that surely exceeds this is a fault: of 32 groups, three or fewer then have anything to compare.
NEARLY_ALL = 0.9
USUAL_GROUP_SIZE = 8  # completions that training compares, where there is only one of each prompt to judge by
MANY_TRUNCATED = 0.5  # above this fraction, longer completions are the first thing to try
LONGER = 4  # how many times as long
ONE_SIDED_95 = 1.6448536269514722  # the 95% quantile of the normal distribution


@dataclass(frozen=True, slots=True)
class LearningSignal:
    """What there is to learn from completions of some prompts."""

    completions: int
    accuracy: float
    no_answer_frac: float  # completions without an answer
    truncated_frac: float | None  # completions that are cut off; None where unknown
    zero_std_frac: float | None
    """Prompts whose completions all have one reward, of those with several completions; None if none has."""

    fault: Fault | None  # why there is hardly anything to learn; None also where too few completions leave it open


def measure(
    sizes: np.ndarray,
    rewards: np.ndarray,
    correct: np.ndarray,
    no_answer: np.ndarray,
    truncated: np.ndarray | None = None,
) -> LearningSignal:
    """What there is to learn from n completions of G prompts.

    Each of the G sizes is at least one; the [n] others are in the order of the prompts. `truncated` is None where it is
    unknown or intended.

    Example:
        >>> rewards = np.zeros(64)
        >>> measure(np.full(32, 2), rewards, correct=rewards > 0, no_answer=rewards == 0).fault
        'no_answer'
    """
    starts, several = np.cumsum(sizes) - sizes, sizes > 1
    uniform = np.minimum.reduceat(rewards, starts) == np.maximum.reduceat(rewards, starts)
    if several.any():
        has_uniform_groups = _is_nearly_all(uniform[several], several.sum())
        compared = correct[np.repeat(uniform & several, sizes)]
    else:
        # Where a fraction p of the completions have one reward, at least p^k of the groups of k have no other.
        values, counts = np.unique(rewards, return_counts=True)
        lowest = wilson(counts.max() / len(rewards), len(rewards), ONE_SIDED_95)[0]
        has_uniform_groups = lowest**USUAL_GROUP_SIZE >= NEARLY_ALL
        compared = correct[rewards == values[counts.argmax()]]
    fault: Fault | None = None  # the likely cause, not what follows from it
    if _is_nearly_all(no_answer, len(sizes)):
        fault = "no_answer"
    elif truncated is not None and _is_nearly_all(truncated, len(sizes)):
        fault = "truncated"
    elif has_uniform_groups:
        rate = compared.mean()
        fault = "all_right" if rate >= NEARLY_ALL else "all_wrong" if rate <= 1 - NEARLY_ALL else "zero_std"
    return LearningSignal(
        completions=len(rewards),
        accuracy=float(correct.mean()),
        no_answer_frac=float(no_answer.mean()),
        truncated_frac=None if truncated is None else float(truncated.mean()),
        zero_std_frac=float(uniform[several].mean()) if several.any() else None,
        fault=fault,
    )


def _is_nearly_all(chosen: np.ndarray, prompts: int) -> bool:
    """Whether the chosen are surely nearly all; completions of one prompt may be alike, so each prompt counts once."""
    return wilson(float(chosen.mean()), prompts, ONE_SIDED_95)[0] >= NEARLY_ALL


def warning(
    signal: LearningSignal, task: Task, model: str | None, max_tokens: int, max_tokens_key: str = "--max-tokens "
) -> str:
    """The fault of a signal that has one, and a line for each thing that can help.

    The model is what `--model` takes, None = the tiny one; `max_tokens_key` stands before the number of a longer limit.
    """
    longer = f"{max_tokens_key}{LONGER * max_tokens}"
    advice = (f"  {what:<20}{how}" for what, how in _advice(signal, task, model, longer))
    return "\n".join((f"{headline(signal, max_tokens)}; try:", *advice))


def headline(signal: LearningSignal, max_tokens: int) -> str:
    """The fault in one line.

    Example:
        >>> headline(LearningSignal(64, 0.25, 0.5, 1.0, 0.5, "truncated"), max_tokens=256)
        '100.0% of 64 completions are cut off at 256 tokens, and 25.0% are right'
    """
    accuracy, of_all = percent(signal.accuracy), f"of {plural(signal.completions, 'completion')}"
    cut_off = "" if signal.truncated_frac is None else f"{percent(signal.truncated_frac)}"
    match signal.fault:
        case "truncated":
            return f"{cut_off} {of_all} are cut off at {max_tokens:,} tokens, and {accuracy} are right"
        case "no_answer":
            beside = f", and {cut_off} are cut off at {max_tokens:,} tokens" if cut_off else ""
            return f"{percent(signal.no_answer_frac)} {of_all} have no answer{beside}: there is nothing to learn from"
    same = "nearly all" if signal.zero_std_frac is None else f"{percent(signal.zero_std_frac)} of the groups"
    left = "little is left to learn" if signal.fault == "all_right" else "there is nothing to learn from"
    return f"{accuracy} {of_all} are right, and {same} have one and the same reward: {left}"


def _advice(signal: LearningSignal, task: Task, model: str | None, longer: str) -> Iterator[tuple[str, str]]:
    """What can help, in a word or two and as a command or setting; the likeliest first."""
    show_task = f"tinyzero tasks {shlex.quote(task.source)}"
    if signal.fault == "all_right":
        yield "a harder option", show_task
        return
    if signal.fault == "zero_std":
        yield "more variety", "a higher rollout.temperature, or a larger rollout.group_size"
        yield "other problems", "data.max_refill_rounds=3 samples more in place of these"
        return
    if (signal.truncated_frac or 0.0) > MANY_TRUNCATED:
        yield "more tokens", longer
    yield from _fine_tuning(task, model)
    yield "another template", f"or an easier option: {show_task}"


def _fine_tuning(task: Task, model: str | None) -> Iterator[tuple[str, str]]:
    """Supervised fine-tuning on the task's own examples, or on the right completions of a larger model."""
    values = [f"task.{key}={format_value(value)}" for key, value in flatten(task.option_values)]
    this_task = shlex.join(["--task", task.source, *values])
    this_model = f" --model {shlex.quote(model)}" if model else ""
    fine_tune = f"tinyzero sft {this_task}{this_model} --output DIR"
    hooks = task.plugin_manager.hook
    if hooks.demonstrate.get_hookimpls() or hooks.solve.get_hookimpls():
        yield "worked examples", fine_tune
    else:
        yield "a larger model's", f"tinyzero eval {this_task} --model LARGER --split train --output FILE"
        yield "right completions", f"{fine_tune} data.path=FILE"
    yield "", "and then tinyzero train with --model DIR"
