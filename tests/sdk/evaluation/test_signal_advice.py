"""The warning names what is wrong, with numbers, and commands that can be copied."""

import shlex
from dataclasses import replace

import pytest

from tests.sdk.conftest import options_source
from tinyzero_sdk import load_task
from tinyzero_sdk.evaluation.signal_advice import Situation, warning
from tinyzero_sdk.scoring.learning_signal import LearningSignal

SIGNAL = LearningSignal(1024, 0.001, 0.98, 0.7, None, "no_answer")
SOLVE = "@hookimpl\ndef solve(item): return f'<answer>{item.data[\"number\"]}</answer>'"


@pytest.fixture
def situation(write_task):
    """Of a task with options and gold completions, and a model with a space in its name."""
    path = write_task(extra=options_source("digits: tuple[int, int] = (3, 3)"), solve=SOLVE)
    task = load_task(path, options={"digits": [2, 1]})
    return Situation(task, "my model", 64)


def advice(signal, situation):
    """The first line, and the others by what they advise."""
    first, *rest = warning(signal, situation).splitlines()
    return first, {line[2:22].strip(): line[22:] for line in rest}


def test_a_model_without_answers_is_to_be_fine_tuned(situation):
    first, rest = advice(SIGNAL, situation)
    assert first == (
        "98.0% of 1,024 completions have no answer, and 70.0% are cut off at 64 tokens: there is nothing to learn "
        "from; try:"
    )
    source = situation.task.source
    assert shlex.split(rest["worked examples"]) == [
        *("tinyzero", "sft", "--task", source, "task.digits=[2, 1]", "--model", "my model", "--output", "DIR")
    ]
    assert list(rest) == ["more tokens", "worked examples", "", "another prompt", "an easier option"]
    assert rest["more tokens"] == "--max-tokens 256"
    assert rest["another prompt"] == "--template base or chat or compact"
    assert rest["an easier option"] == f"tinyzero tasks {source}"


def test_only_what_can_help_is_advised(situation, write_task):
    in_training = replace(situation, template="base", template_key="data.prompt_template=", has_chat_template=False)
    _, rest = advice(replace(SIGNAL, truncated_frac=0.2), in_training)
    assert "more tokens" not in rest
    assert rest["another prompt"] == "data.prompt_template=compact"
    assert advice(SIGNAL, replace(situation, context=100))[1]["more tokens"] == "--max-tokens 100"
    assert "more tokens" not in advice(SIGNAL, replace(situation, context=64))[1]
    bare = load_task(write_task("bare", make_prompt="@hookimpl\ndef make_prompt(item, template): return 'say it'"))
    _, rest = advice(replace(SIGNAL, truncated_frac=None), Situation(bare, None, 64, template="base"))
    assert list(rest) == ["a larger model's", "right completions", ""]
    assert rest["right completions"] == f"tinyzero sft --task {bare.source} --output DIR data.path=FILE"


def test_each_fault_has_its_numbers_and_its_advice(situation):
    first, rest = advice(LearningSignal(512, 1.0, 0.0, 0.0, 0.97, "all_right"), situation)
    assert first.startswith("100.0% of 512 completions are right, and 97.0% of the groups have one and the same reward")
    assert list(rest) == ["a harder option"]
    first, rest = advice(LearningSignal(512, 0.0, 0.1, None, None, "all_wrong"), situation)
    assert first.startswith("0.0% of 512 completions are right, and nearly all have one and the same reward")
    assert "worked examples" in rest
    first, rest = advice(LearningSignal(512, 0.0, 0.1, 1.0, 1.0, "truncated"), situation)
    assert first == "100.0% of 512 completions are cut off at 64 tokens, and 0.0% are right; try:"
    assert next(iter(rest)) == "more tokens"
    assert "more variety" in advice(LearningSignal(512, 0.5, 0.0, 0.0, 1.0, "zero_std"), situation)[1]
