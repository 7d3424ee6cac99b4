"""The warning where a policy can hardly learn from its completions: what is wrong, and the commands that can help."""

import shlex
from collections.abc import Iterator
from contextlib import suppress

from tinyzero_sdk.console import percent, plural
from tinyzero_sdk.errors import TinyZeroError
from tinyzero_sdk.scoring.learning_signal import LearningSignal
from tinyzero_sdk.settings import flatten, format_value
from tinyzero_sdk.tasks.task import Task

MANY_TRUNCATED = 0.5
"""Above this fraction, longer completions are the first thing to try."""

LONGER = 4
"""How many times as long."""


def warning(
    signal: LearningSignal, task: Task, model: str | None, max_tokens: int, max_tokens_key: str = "--max-tokens "
) -> str:
    """The fault of a signal that has one, and a line for each thing that can help.

    Args:
        signal: of completions of the task.
        task: what was evaluated or trained on.
        model: what `--model` takes; None = the tiny model.
        max_tokens: longest completion.
        max_tokens_key: what stands before a number that changes it.
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
    has_examples = False
    with suppress(TinyZeroError):  # its data may not be at hand, as where an evaluation is summarized
        item = next(iter(task.generate("train", 1)), None)
        has_examples = item is not None and (task.demonstrate(item, 0) or task.solve(item)) is not None
    if has_examples:
        yield "worked examples", fine_tune
    else:
        yield "a larger model's", f"tinyzero eval {this_task} --model LARGER --split train --output FILE"
        yield "right completions", f"{fine_tune} data.path=FILE"
    yield "", "and then tinyzero train with --model DIR"
