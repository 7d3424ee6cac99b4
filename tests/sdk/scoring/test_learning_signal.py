"""Completions from which a policy cannot learn are told from those from which it can; the warning says what helps."""

import math
import shlex
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sdk.conftest import options_source
from tinyzero_sdk import load_task
from tinyzero_sdk.scoring.learning_signal import NEARLY_ALL, LearningSignal, measure, warning
from tinyzero_sdk.scoring.statistics import wilson


def judged(correct, *, size=1, no_answer=0, truncated=0, rewards=None):
    """The signal of groups of `size`: the last `no_answer` and `truncated` completions are such."""
    correct = np.array(correct, bool)
    count = len(correct)
    rewards = correct.astype(float) if rewards is None else np.array(rewards, float)
    last = np.arange(count)[::-1]
    return measure(np.full(count // size, size), rewards, correct, last < no_answer, last < truncated)


@pytest.mark.parametrize("count", [8, 24, 25, 32, 64, 256])
def test_a_model_that_answers_one_time_in_five_is_hardly_ever_warned_of(count):
    warned = [k for k in range(count + 1) if judged([False] * count, no_answer=k).fault == "no_answer"]
    probability = sum(math.comb(count, k) * 0.8**k * 0.2 ** (count - k) for k in warned)
    assert probability < 0.01


def test_an_evaluation_of_few_dozen_problems_suffices_where_none_is_answered():
    assert [judged([False] * 25, no_answer=25).fault, judged([False] * 24, no_answer=24).fault] == ["no_answer", None]


@pytest.mark.slow
@given(st.integers(1, 60), st.integers(1, 8), st.data())
def test_no_fault_is_found_where_the_fraction_itself_is_small(prompts, size, data):
    some = st.integers(0, int(NEARLY_ALL * prompts * size))
    flags = data.draw(st.lists(st.booleans(), min_size=prompts * size, max_size=prompts * size))
    signal = judged(flags, size=size, no_answer=data.draw(some), truncated=data.draw(some))
    assert signal.fault not in ("no_answer", "truncated")
    if size > 1:
        groups = np.array(flags).reshape(-1, size)
        alike = np.mean(groups.all(axis=1) | ~groups.any(axis=1))
        assert signal.zero_std_frac == pytest.approx(alike)
        assert (signal.fault is None) == (wilson(alike, prompts, 1.6448536269514722)[0] < NEARLY_ALL)


def test_all_wrong_all_right_and_all_alike_are_told_apart():
    assert judged([False] * 320, size=8).fault == "all_wrong"
    assert judged([True] * 320, size=8).fault == "all_right"
    assert judged(([True] * 8 + [False] * 8) * 20, size=8).fault == "zero_std"
    assert judged(([True] * 16 + [False] * 24) * 8, size=8).fault == "zero_std"
    assert judged(([True] + [False] * 7) * 40, size=8).fault is None
    partial = judged([False] * 320, size=8, rewards=[0.1, 0.0] * 160)  # none right, but the rewards differ
    assert (partial.fault, partial.zero_std_frac) == (None, 0.0)


def test_one_completion_of_each_prompt_foretells_groups():
    assert judged([False] * 1024).fault == "all_wrong"
    assert judged([True] * 1024).fault == "all_right"
    assert judged([True] * 30 + [False] * 994).fault is None  # of groups of eight, a fifth has a right answer
    assert judged([False] * 64).fault is None
    assert judged([False] * 1024).zero_std_frac is None


def test_the_cause_comes_before_what_follows_from_it():
    everything = {"no_answer": 400, "truncated": 400}
    assert judged([False] * 400, size=8, **everything).fault == "no_answer"
    assert judged([False] * 400, size=8, truncated=400).fault == "truncated"
    nobody_knows = measure(np.full(50, 8), np.zeros(400), np.zeros(400, bool), np.zeros(400, bool))
    assert (nobody_knows.fault, nobody_knows.truncated_frac) == ("all_wrong", None)


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
