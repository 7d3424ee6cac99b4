"""Shaped rewards against their papers' formulas, through a task, as training and offline scoring see them."""

import math
import re
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinyzero_sdk import Completion, Score, load_task
from tinyzero_sdk.errors import SettingsError
from tinyzero_sdk.rewards.shaping import SoftOverlong, repeated_fraction
from tinyzero_sdk.rewards.wrappers import make_wrapper

RIGHT, WRONG, NONE = "<answer>7</answer>", "<answer>8</answer>", "no answer"


@pytest.fixture
def score(write_task):
    path = write_task()

    def score(wrapper, text, tokens=10, finished=True):
        return load_task(path, wrappers=[wrapper]).score_completion(Completion(text, tokens, finished), 7)

    return score


@pytest.mark.parametrize(("text", "value"), [(RIGHT, 1.0), (WRONG, 0.1), (NONE, 0.0)])
def test_format_score_rewards_a_wrong_answer_a_little(score, text, value):
    shaped = score("format", text)
    assert (shaped.value, shaped.correct) == (value, text == RIGHT)
    assert shaped.unshaped == float(text == RIGHT)


@pytest.mark.parametrize(("partial", "value"), [("0.0", 0.1), ("0.04", 0.1), ("0.3", 0.3)])
def test_format_score_is_what_a_wrong_answer_scores_at_least(write_task, partial, value):
    source = f"@hookimpl\ndef score(answer): return tinyzero_sdk.Score({partial}, False)"
    task = load_task(write_task(score=f"import tinyzero_sdk\n{source}"), wrappers=["format"])
    assert task.score_completion(WRONG, 7).value == pytest.approx(value)


@pytest.mark.parametrize("length", [0, 1, 37, 50, 99])
@pytest.mark.parametrize("text", [RIGHT, WRONG])
def test_cosine_is_the_papers_formula(score, text, length):
    low, high = (1.0, 2.0) if text == RIGHT else (0.0, -10.0)
    expected = low + 0.5 * (high - low) * (1 + math.cos(math.pi * length / 100))
    assert score("cosine(limit=100)", text, length).value == pytest.approx(expected)


@pytest.mark.parametrize(("tokens", "finished"), [(100, True), (100, False), (40, False)])
def test_cosine_punishes_what_exceeds_the_limit(score, tokens, finished):
    assert score("cosine(limit=100)", RIGHT, tokens, finished).value == -10.0
    assert score("cosine(limit=100, exceeded=-1)", RIGHT, tokens, finished).value == -1.0


@given(st.integers(0, 200))
def test_overlong_is_the_papers_formula(length):
    expected = 0 if length <= 80 else Fraction(80 - length, 20) if length <= 100 else -1
    assert _shaped(SoftOverlong(limit=100, buffer=20), length) == pytest.approx(1 + float(expected))


@given(st.integers(1, 200))
def test_overlongs_buffer_is_a_fifth_of_the_limit(limit):
    assert _shaped(make_wrapper(f"overlong(limit={limit})"), limit - max(1, limit // 5)) == 1.0
    assert _shaped(make_wrapper(f"overlong(limit={limit})"), limit) == 0.0


def _shaped(wrapper, length):
    shaping = wrapper.score_completion(Completion("", length))
    next(shaping)
    with pytest.raises(StopIteration) as end:
        shaping.send(Score(1.0, True))
    return end.value.value.value


def test_truncated_completions_are_masked(score):
    assert score("mask_truncated", WRONG, finished=False).masked
    assert not score("mask_truncated", WRONG).masked


def test_repetition_costs_its_share(score):
    assert score("repetition(size=2)", f"{RIGHT} a b a b a b").value == pytest.approx(1 - 3 / 6)
    assert score("repetition(size=2, penalty=0.5)", f"{RIGHT} a b c").value == 1.0


@given(st.lists(st.sampled_from("abc"), max_size=30), st.integers(1, 5))
def test_repeated_share_is_the_definition(words, size):
    grams = [tuple(words[start : start + size]) for start in range(len(words) - size + 1)]
    repeats = sum(gram in grams[:place] for place, gram in enumerate(grams))
    assert repeated_fraction(" ".join(words), size) == pytest.approx(repeats / len(grams) if grams else 0.0)


def test_wrappers_add_up_and_keep_what_the_task_gave(write_task):
    task = load_task(write_task(), wrappers=["format(value=0.2)", "overlong(limit=100, buffer=50)"])
    shaped = task.score_completion(Completion(WRONG, 75), 7)
    assert shaped.value == pytest.approx(0.2 - 0.5)
    assert shaped.parts == {"task": 0.0, "format_score": 0.2, "overlong": -0.5}


def test_a_failing_scorer_is_not_shaped(write_task):
    task = load_task(write_task(score="@hookimpl\ndef score(answer): return None"), wrappers=["cosine(limit=100)"])
    shaped = task.score_completion(Completion(RIGHT, 5), 7)
    assert (shaped.value, shaped.reason) == (0.0, "error")


def test_without_token_counts_a_length_wrapper_says_so(write_task):
    task = load_task(write_task(), wrappers=["overlong(limit=100, buffer=50)"])
    assert task.score_completion(RIGHT, 7).reason == "error"
    assert "needs each completion's token count" in task.first_error


@pytest.mark.parametrize(
    ("specs", "message"),
    [
        ("format; format", "the score wrapper format is given twice; give it once"),
        ("cosin(limit=1)", "did you mean 'cosine'"),
        ("cosine", "wrapper 'cosine' needs limit: cosine(limit=…); in a run it is rollout.max_completion_tokens"),
        ("cosine(limit=0)", "cosine.limit: got 0"),
        ("cosine(limits=1)", "unknown key 'cosine.limits'"),
        ("cosine(limit=)", "cannot read the settings"),
        ("overlong(limit=1, buffer=2)", "buffer=2 is more than limit=1"),
        ("trace(a=1)", "has no settings"),
        ("(a)", "expected name or name"),
        ("format(value=2)", "format.value: got 2"),
    ],
)
def test_a_mistake_is_one_line(write_task, specs, message):
    with pytest.raises(SettingsError, match=re.escape(message)):
        load_task(write_task(), wrappers=specs.split("; "))
