"""The score guard: which scores it accepts and refuses, and what a scorer may do without harm."""

import math
import pickle
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.relative_time import relative_time
from tinyzero_sdk import Completion, RewardPart, Score, load_task
from tinyzero_sdk.errors import BrokenTaskError
from tinyzero_sdk.records import REASONS, ScoreColumns
from tinyzero_sdk.tasks.score_guard import ScoreGuard
from tinyzero_sdk.text import last_tagged


def guard(result, score_range=(0.0, 1.0)):
    """A guard around a scorer that returns `result`, or raises it."""

    def score(answer, ground_truth):
        if isinstance(result, BaseException) or (isinstance(result, type) and issubclass(result, BaseException)):
            raise result
        return result

    return ScoreGuard("say", last_tagged, score, score_range)


RIGHT = Score(1.0, True, "ok", "3")
WRONG = Score(0.0, False, "wrong", "3")


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        (1.0, RIGHT), (1, RIGHT), (0, WRONG), (0.5, Score(0.5, False, "wrong", "3")), (np.float64(1), RIGHT),
        (np.float32(0.5), Score(0.5, False, "wrong", "3")), (np.int64(1), RIGHT),
        (Fraction(1, 2), Score(0.5, False, "wrong", "3")), (Score(1.0, True), RIGHT),
        (Score(np.float16(1), True), RIGHT), (Score(0.0, False), WRONG),
        (Score(0.0, False, "malformed"), Score(0.0, False, "malformed", "3")),
        (Score(1, True, answer="three"), RIGHT),
        (Score(0.1, False, parts={"format": 1}), Score(0.1, False, "wrong", "3", {"format": 1.0})),
        (Score(1.0, True, masked=True), Score(1.0, True, "ok", "3", {}, True)),
    ],
)  # fmt: skip
def test_accepted_score(returned, expected):
    got = guard(returned).score_completion("<answer>3</answer>", 3)
    assert got == expected
    assert type(got.value) is float


class Unshowable:
    def __repr__(self):
        raise ValueError


@pytest.mark.parametrize(
    "returned",
    [
        *(None, "1.0", True, np.True_, 1j, [1.0], np.array(1.0), Decimal(1), math.nan, math.inf, -math.inf),
        *(np.float64("nan"), 10**400, 10**5000, Fraction(10**400), 1.0000001, -0.1, 2, Unshowable()),
        *(Score(math.nan, False), Score(2.0, True), Score(None, False), Score(True, True), Score(0.0, None)),
        *(Score(1.0, np.True_), Score(0.0, False, "because"), Score(1.0, True, "wrong")),
        *(Score(0.0, False, parts={"format": math.inf}), Score(0.0, False, parts=[1.0])),
    ],
    ids=lambda value: type(value).__name__,
)
def test_refused_score(returned):
    refusing = guard(returned)
    assert refusing.score_completion("<answer>3</answer>", 3) == Score(0.0, False, "error")
    assert refusing.error_count == 1


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (math.nan, r"task 'say': score returned nan \(float\); expected a finite number from 0 to 1"),
        ("1", r"score returned '1' \(str\); expected a Score or a number"),
        (10**400, r"expected a number that a float can hold"),
        (Score(0.0, False, "why"), r"score returned reason='why' \(str\); expected one of ok, wrong"),
        (Score(0.0, None), r"score returned correct=None \(NoneType\); expected True or False"),
    ],
)
@pytest.mark.fault(
    "F14",
    "A scorer returns NaN, a text, a number that no float holds, an impossible Score",
    made="it does, and numpy's numbers, None, infinity, lists in the tests beside it",
    seen="score returned …; expected …",
    kept="the completion counts as failed, not as 0: it is in no mean and no advantage",
    code=2,
)
def test_refusal_says_what_was_returned_and_expected(fault_row, returned, message):
    with pytest.raises(BrokenTaskError, match=message) as error:
        guard(None).check(returned, "3")
    fault_row.check(error.value)


def test_full_marks_are_the_end_of_the_range():
    assert not guard(1.0, (-1, 2)).check(1.0, "3").correct
    assert guard(2.0, (-1, 2)).check(2, "3").correct
    assert guard(-1.0, (-1, 2)).check(-1, "3").value == -1.0


@given(
    st.one_of(
        *(st.floats(), st.integers(), st.text(), st.none(), st.complex_numbers()),
        st.builds(Score, st.floats() | st.none(), st.booleans() | st.none(), st.sampled_from(REASONS) | st.text()),
    )
)
def test_whatever_a_scorer_returns_the_score_is_valid(returned):
    got = guard(returned).score_completion("<answer>3</answer>", 3)
    assert 0.0 <= got.value <= 1.0
    assert got.reason in REASONS
    assert got.correct == (got.reason == "ok")


PIECES = [
    *("<answer>", "</answer>", "</think>", "\\boxed{", "}", "#### ", "</s>", "3 + 4", "12", "7", "*", "(", "\ud800"),
    "é",
]
TRUTHS = st.sampled_from([{"target": 7, "numbers": [3, 4]}, {"num1": 3, "num2": 4, "product": 12}, "12", 7, None, []])
WAYS = {"countdown": (), "multiply": (), "gsm8k": (), "wrapped": ("format",), "grouped": ()}


@pytest.fixture(scope="module")
def scored_ways(tmp_path_factory):
    """Tasks whose completions are scored in one way each: by parts, plainly, and with what else goes around a score."""
    grouped = tmp_path_factory.mktemp("tasks") / "grouped.py"
    grouped.write_text(
        "from tinyzero_gsm8k import *\nfrom tinyzero_sdk import hookimpl\n\n@hookimpl\n"
        "def score_group(answers, ground_truth, scores):\n    return [score.value / len(scores) for score in scores]\n"
    )
    names = {"wrapped": "countdown", "grouped": str(grouped)}
    return {way: load_task(names.get(way, way), wrappers=wrappers) for way, wrappers in WAYS.items()}


@pytest.mark.parametrize("way", WAYS)
@given(st.lists(st.tuples(st.lists(st.sampled_from(PIECES), max_size=8).map("".join) | st.text(), TRUTHS), max_size=6))
def test_scores_of_many_are_the_scores_of_each(way, scored_ways, pairs):
    task = scored_ways[way]
    before = task.error_count
    each = [task.score_completion(*pair) for pair in pairs]
    errors = task.error_count - before
    assert list(task.score_completions([text for text, _ in pairs], [truth for _, truth in pairs])) == each
    assert task.error_count == before + 2 * errors


@pytest.mark.parametrize("declared", [True, False])
def test_a_result_that_is_filled_again_is_another_result(declared):
    """A frozen record has mutable parts, and a slot's own setter changes the rest."""
    kept = Score.of_parts({"right": 0.0}, correct=False) if declared else Score(0.0, False, "wrong")

    def score(answer, ground_truth):
        value = float(answer)
        changed = {"parts": {"right": value}} if declared else {"value": value}
        for name, content in {**changed, "correct": value == 1.0, "reason": "ok" if value == 1.0 else "wrong"}.items():
            object.__setattr__(kept, name, content)
        kept.parts["extra" if not declared else "right"] = value
        return kept

    filling = ScoreGuard("say", last_tagged, score, (0.0, 1.0), None, {"right": RewardPart()} if declared else None)
    for answer in ("1", "0", "0.5", "1", "0"):
        one, columns = filling.score_completion(f"<answer>{answer}</answer>", 3), ScoreColumns()
        filling.score_into(columns, f"<answer>{answer}</answer>", 3)
        assert one.value == columns.values[0] == next(iter(one.parts.values())) == float(answer)
        assert one.correct is columns.correct[0] is (answer == "1")
    assert filling.error_count == 0


class Hostile(Exception):
    def __str__(self):
        raise RuntimeError("no text")

    __repr__ = __str__


class Unpicklable(BaseException):
    def __reduce__(self):
        raise TypeError


@pytest.mark.parametrize(
    "raised", [ValueError("bad"), SystemExit(0), MemoryError, GeneratorExit, Hostile(), Unpicklable()]
)
def test_scorer_that_raises_is_contained(raised):
    raising = guard(raised)
    assert raising.score_completion("<answer>3</answer>", 3) == Score(0.0, False, "error")
    assert raising.score_completion("<answer>3</answer>", 3).reason == "error"
    assert raising.error_count == 2
    assert "in score" in raising.first_error
    pickle.dumps(raising.first_error)
    with pytest.raises(KeyboardInterrupt):
        guard(KeyboardInterrupt()).score_completion("<answer>3</answer>", 3)


def test_endless_recursion_is_contained(write_task):
    task = load_task(write_task(score="@hookimpl\ndef score(answer): return score(answer)"))
    assert task.score_completion("<answer>3</answer>", 3).reason == "error"
    assert "RecursionError" in task.first_error
    assert len(task.first_error) < 10_000


@pytest.mark.parametrize("completion", ["<answer>1</answer>", "no answer", Completion("<answer>2</answer>")])
def test_a_ground_truth_that_cannot_be_judged_is_an_error_whatever_the_completion_says(write_task, completion):
    code = "@hookimpl\ndef is_valid(ground_truth):\n    return type(ground_truth) is int and 1 <= ground_truth <= 9"
    task = load_task(write_task(is_valid=code))
    assert task.score_completion(completion, 1).reason != "error"
    for truth in (True, "one", None, 10, [1, 2]):
        assert task.score_completion(completion, truth) == Score(0.0, False, "error")
    assert task.error_count == 5
    assert "task 'say' has no such ground truth: True (bool)" in task.first_error


def test_an_error_names_the_last_line_of_the_task_itself(write_task, tmp_path):
    (tmp_path / "helper.py").write_text("import json\n\ndef read(text):\n    return json.loads(text)\n")
    code = "import helper\n@hookimpl\ndef score(answer, ground_truth):\n    return helper.read('{')"
    task = load_task(write_task(score=code))
    task.score_completion("<answer>1</answer>", 1)
    last = task.first_error.splitlines()[-1]
    assert last.startswith("JSONDecodeError: Expecting property name")
    assert last.endswith(f"({tmp_path / 'helper.py'}:4)")


def test_extraction_that_raises_or_lies_is_contained(write_task):
    task = load_task(write_task(extract_answer="@hookimpl\ndef extract_answer(completion): return int(completion)"))
    assert task.score_completion("x", 3).reason == "error"
    assert task.score_completion("3", 3).reason == "error"
    with pytest.raises(BrokenTaskError, match=r"extract_answer returned 3 \(int\); expected str or None"):
        task.extract_answer("3")


@pytest.mark.parametrize(
    "end", ["raise ValueError", "return 1.0", "return Score(float('nan'), False)", "return Score(1.0, True, answer=3)"]
)
def test_wrapper_that_fails_is_contained(write_task, end):
    task = load_task(write_task(extra=f"@hookimpl(wrapper=True)\ndef score_completion():\n    yield\n    {end}"))
    assert task.score_completion("<answer>3</answer>", 3) == Score(0.0, False, "error")
    assert task.error_count == 1


@given(
    st.text(st.characters())
    | st.lists(st.sampled_from(["<answer>", "</answer>", "</think>", "<|", "|>", "\0", "\ud800", "3"])).map("".join)
)
def test_any_text_gets_a_score(text):
    for completion in (text, Completion(text, token_count=3, finished=False)):
        got = guard(1.0).score_completion(completion, 3)
        assert got.reason in ("ok", "no_answer")
        assert (got.value, got.answer is None) == ((1.0, False) if got.correct else (0.0, True))


@pytest.mark.slow
@pytest.mark.parametrize("filling", ["</s>", "<|a|>", "<answer>", "x"])
def test_an_endless_completion_is_read_at_its_end_only(write_task, filling):
    task = load_task(write_task())
    text = f"<answer>4</answer>{filling * 1_000_000}<answer>3</answer>"
    assert task.score_completion(text, 3).correct
    assert relative_time(lambda: task.score_completion(text, 3)) < 200  # some 2; the whole of it takes thousands
    assert task.score_completion(f"<answer>3</answer>{'x' * 2**20}", 3).reason == "no_answer"
