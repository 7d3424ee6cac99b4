"""The warning where a policy can hardly learn from its completions: what is wrong, and the commands that can help."""

import shlex
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from tinyzero_sdk.console import percent, plural
from tinyzero_sdk.errors import TinyZeroError
from tinyzero_sdk.records import Item
from tinyzero_sdk.scoring.learning_signal import LearningSignal
from tinyzero_sdk.settings import flatten, format_value
from tinyzero_sdk.tasks.task import Task

MANY_TRUNCATED = 0.5
"""Above this fraction, longer completions are the first thing to try."""

ENOUGH_PROBLEMS = 32
"""From about here on, a fault of all completions is sure (learning_signal.py)."""

LONGER = 4
"""How many times as long."""


@dataclass(frozen=True, slots=True)
class Situation:
    """What the advice depends on."""

    task: Task
    model: str | None
    """What `--model` takes; None = the tiny model."""

    max_tokens: int
    """Longest completion."""

    max_tokens_key: str = "--max-tokens "
    """What stands before a number that changes it."""

    template_key: str = "--template "
    template: str | None = None
    """Prompt template in use; None = unknown."""

    has_chat_template: bool = True
    context: int | None = None
    """Longest completion for which the model's context has room; None = unknown."""


def warning(signal: LearningSignal, situation: Situation) -> str:
    """The fault of a signal that has one, and a line for each thing that can help."""
    advice = (f"  {what:<20}{how}" for what, how in _advice(signal, situation))
    return "\n".join((f"{headline(signal, situation.max_tokens)}; try:", *advice))


def hint(signal: LearningSignal) -> str | None:
    """What too few completions show without exception, where that leaves open whether it is a fault.

    Example:
        >>> hint(LearningSignal(8, 0.0, 1.0, None, None, None))
        'none of 8 completions has an answer; 32 problems or more would tell whether the model can learn'
    """
    if signal.fault is not None or max(signal.no_answer_frac, signal.truncated_frac or 0.0) < 1:
        return None
    of_all = plural(signal.completions, "completion")
    found = f"none of {of_all} has an answer" if signal.no_answer_frac == 1 else f"all of {of_all} are cut off"
    return f"{found}; {ENOUGH_PROBLEMS} problems or more would tell whether the model can learn"


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


def _advice(signal: LearningSignal, situation: Situation) -> Iterator[tuple[str, str]]:
    """What can help, in a word or two and as a command or setting; the likeliest first."""
    task = situation.task
    options = f"tinyzero tasks {shlex.quote(task.source)}"
    if signal.fault == "all_right":
        yield "a harder option", options
        return
    if signal.fault == "zero_std":
        yield "more variety", "a higher rollout.temperature, or a larger rollout.group_size"
        yield "other problems", "data.max_refill_rounds=3 samples more in place of these"
        return
    longer = min(LONGER * situation.max_tokens, situation.context or LONGER * situation.max_tokens)
    if (signal.truncated_frac or 0.0) > MANY_TRUNCATED and longer > situation.max_tokens:
        yield "more tokens", f"{situation.max_tokens_key}{longer}"
    item = None
    with suppress(TinyZeroError):  # its data may not be at hand, as where an evaluation is summarized
        item = next(iter(task.generate("train", 1)), None)
    yield from _fine_tuning(situation, item)
    prompts = task.templates(item) if item else {}
    present = prompts.get(situation.template or "")
    others = [name for name, prompt in prompts.items() if prompt != present]
    if others := [name for name in others if name != "chat" or situation.has_chat_template]:
        yield "another prompt", f"{situation.template_key}{' or '.join(others)}"
    if task.options is not None:
        yield "an easier option", options


def _fine_tuning(situation: Situation, item: Item | None) -> Iterator[tuple[str, str]]:
    """Supervised fine-tuning on the task's own examples, or on the right completions of a larger model."""
    task = situation.task
    values = [f"task.{key}={format_value(value)}" for key, value in flatten(task.option_values)]
    this_task = shlex.join(["--task", task.source, *values])
    model = f" --model {shlex.quote(situation.model)}" if situation.model else ""
    fine_tune = f"tinyzero sft {this_task}{model} --output DIR"
    has_examples = False
    with suppress(TinyZeroError):
        has_examples = item is not None and (task.demonstrate(item, 0) or task.solve(item)) is not None
    if has_examples:
        yield "worked examples", fine_tune
    else:
        yield "a larger model's", f"tinyzero eval {this_task} --model LARGER --split train --output FILE"
        yield "right completions", f"{fine_tune} data.path=FILE"
    yield "", "and then tinyzero train with --model DIR"
