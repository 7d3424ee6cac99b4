"""The warning names what is wrong, with numbers, and commands that can be copied."""

import shlex
from dataclasses import replace

import pytest

from tests.sdk.conftest import options_source
from tinyzero_sdk import load_task
from tinyzero_sdk.evaluation.signal_advice import warning
from tinyzero_sdk.scoring.learning_signal import LearningSignal

SIGNAL = LearningSignal(1024, 0.001, 0.98, 0.7, None, "no_answer")
SOLVE = "@hookimpl\ndef solve(item): return f'<answer>{item.data[\"number\"]}</answer>'"


@pytest.fixture
def task(write_task):
    """A task with options and gold completions."""
    path = write_task(extra=options_source("digits: tuple[int, int] = (3, 3)"), solve=SOLVE)
    return load_task(path, options={"digits": [2, 1]})


def advice(signal, task, model="my model"):
    """The first line, and the others by what they advise."""
    first, *rest = warning(signal, task, model, 64).splitlines()
    return first, {line[2:22].strip(): line[22:] for line in rest}


def test_a_model_without_answers_is_to_be_fine_tuned(task, write_task):
    first, rest = advice(SIGNAL, task)
    assert first == (
        "98.0% of 1,024 completions have no answer, and 70.0% are cut off at 64 tokens: there is nothing to learn "
        "from; try:"
    )
    assert shlex.split(rest["worked examples"]) == [
        *("tinyzero", "sft", "--task", task.source, "task.digits=[2, 1]", "--model", "my model", "--output", "DIR")
    ]
    assert list(rest) == ["more tokens", "worked examples", "", "another template"]
    assert rest["more tokens"] == "--max-tokens 256"
    bare = load_task(write_task("bare"))
    _, rest = advice(replace(SIGNAL, truncated_frac=None), bare, None)
    assert list(rest) == ["a larger model's", "right completions", "", "another template"]
    assert rest["right completions"] == f"tinyzero sft --task {bare.source} --output DIR data.path=FILE"


@pytest.mark.parametrize(
    ("signal", "start", "advised"),
    [
        (
            LearningSignal(512, 1.0, 0.0, 0.0, 0.97, "all_right"),
            "100.0% of 512 completions are right, and 97.0% of the groups have one and the same reward",
            "a harder option",
        ),
        (
            LearningSignal(512, 0.0, 0.1, None, None, "all_wrong"),
            "0.0% of 512 completions are right, and nearly all have one and the same reward",
            "worked examples",
        ),
        (
            LearningSignal(512, 0.0, 0.1, 1.0, 1.0, "truncated"),
            "100.0% of 512 completions are cut off at 64 tokens, and 0.0% are right; try:",
            "more tokens",
        ),
        (LearningSignal(512, 0.5, 0.0, 0.0, 1.0, "zero_std"), "50.0% of 512", "more variety"),
    ],
)
def test_each_fault_has_its_numbers_and_its_advice(task, signal, start, advised):
    first, rest = advice(signal, task)
    assert first.startswith(start)
    assert next(iter(rest)) == advised
