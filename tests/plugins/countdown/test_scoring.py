"""Single scores: ground truths, spaces, and hostile texts."""

import numpy as np
import pytest

from tests.relative_time import relative_time
from tinyzero_countdown.expression import MAX_LENGTH
from tinyzero_countdown.scoring import score_answer
from tinyzero_sdk import Item, load_task

PUZZLE = {"target": 15, "numbers": [5, 17, 3]}

binary = load_task("countdown")
graded = load_task("countdown", options={"reward": "tinyzero"})


@pytest.mark.parametrize(
    "answer",
    [
        *("17-5+3\x00", "\u202e17-5+3", "17\u200b-5+3", "17-5+\ud8003", "17-5\\,\u200b+3"),
        *("17-5" + " " * 300 + "+3", "1" * 300, "1234567890-5+3"),
    ],
)
def test_what_a_table_cannot_show_is_malformed_too(answer):
    assert binary.score_completion(f"<answer>{answer}</answer>", PUZZLE).reason == "malformed"
    assert binary.oracle(answer, PUZZLE) is False


def test_rows_of_tinyzero_s_own_preprocessing_are_scored_as_they_stand():
    ground_truth = {"target": np.int64(15), "numbers": np.array([5, 17, 3])}
    for answer, correct in (("17-5+3 = 15", True), ("17-5-3", False), ("17-5+3+0", False)):
        assert binary.score_completion(f"<answer>{answer}</answer>", ground_truth).correct is correct
        assert binary.oracle(answer, ground_truth) is correct
    item = Item(ground_truth)
    assert binary.item_key(item) == "3 5 17=15"
    assert binary.difficulty(item) == binary.difficulty(Item(PUZZLE))
    assert binary.score_completion(binary.solve(item), ground_truth).correct


@pytest.mark.parametrize(
    "ground_truth",
    [
        {"target": "48", "numbers": ["3", "7", "12"]},
        {"target": "48", "numbers": [3, 7, 12]},
        {"target": 48, "numbers": ["3", "7", "12"]},
        {"target": 48, "numbers": "3 7 12"},
        {"target": 48, "numbers": 3},
        {"target": None, "numbers": [3, 7, 12]},
    ],
    ids=str,
)
def test_a_ground_truth_of_the_wrong_type_is_an_error_and_not_a_wrong_answer(ground_truth):
    for answer in ("(7-3)*12", "(7-3)*12=48"):
        with pytest.raises(TypeError):
            score_answer(answer, ground_truth)
    task = load_task("countdown")
    assert task.score_completion("<answer>(7-3)*12</answer>", ground_truth).reason == "error"


def test_every_space_between_numbers_and_signs_is_blank():
    spaces = [char for char in map(chr, range(0x110000)) if char.isspace()]
    for space in (*spaces, r"\,", r"\;", r"\:", r"\!"):
        for answer in ("{}17{}-{}5{}+{}3{}={}15{}", r"{}\({}\left{}({}17{}-5{}\right{}){}+{}3{}\){}"):
            text = answer.replace("{}", space)
            assert binary.score(text, PUZZLE).correct
            assert binary.oracle(text, PUZZLE) is True
        for answer in ("1{}7-5+3", "17{}5{}3"):
            text = answer.replace("{}", space)
            assert binary.score(text, PUZZLE).reason == "malformed"
            assert binary.oracle(text, PUZZLE) is False


HOSTILE_ANSWERS = [
    *("(" * 500_000, "1+" * 500_000, "7" * 1_000_000, " " * 1_000_000, "9**9**9**9"),
    *("(" * 128 + "1" + ")" * 127, "(" * 127 + "1" + ")" * 127, "$" * 256, "\\(" * 64 + "\\)" * 64, "\\boxed{" * 20),
    *("\\frac{" * 42, "{}" * 128, "}{" * 128, "\\left" * 51, "\\left(" * 36, "*".join(["999999999"] * 25)),
    *("\ud800" * 256, "\x00" * 256, "\u202e" * 256, "\u00b2" * 256),
]
HOSTILE_TEXTS = [
    *("<answer>" * 100_000, "</answer>" * 100_000, "<answer></answer>" * 50_000 + "</think>"),
    *("<think>" * 100_000 + "</think>" * 100_000, "<" * 1_000_000, "\ud800" * 1_000_000),
]


@pytest.mark.parametrize(
    "text",
    HOSTILE_TEXTS + [f"<answer>{answer}</answer>" for answer in HOSTILE_ANSWERS],
    ids=lambda text: f"{text[:20]!a}-{len(text)}",
)
def test_no_text_takes_long(text):
    assert graded.score_completion(text, PUZZLE).value <= 0.1
    assert relative_time(lambda: graded.score_completion(text, PUZZLE)) < 15
    assert graded.error_count == 0


def test_the_longest_answer_that_is_read():
    answer = "17-5" + " " * (MAX_LENGTH - 6) + "+3"
    longer = answer.replace("+", " +")
    assert binary.score(answer, PUZZLE).correct
    assert binary.oracle(answer, PUZZLE) is True
    assert binary.score(longer, PUZZLE).reason == "malformed"
    assert binary.oracle(longer, PUZZLE) is False


def test_as_many_large_numbers_as_fit_are_evaluated_exactly():
    numbers = [999_999_999] * 25
    answer = "*".join(map(str, numbers))
    truth = {"target": 999_999_999**25, "numbers": numbers}
    assert binary.score_completion(f"<answer>{answer}</answer>", truth).correct
