"""Single scores: ground truths, spaces, and hostile texts."""

import numpy as np

from tinyzero_countdown.expression import MAX_LENGTH
from tinyzero_sdk import Item, load_task

PUZZLE = {"target": 15, "numbers": [5, 17, 3]}

binary = load_task("countdown")


def test_rows_of_tinyzero_s_own_preprocessing_are_scored_as_they_stand():
    ground_truth = {"target": np.int64(15), "numbers": np.array([5, 17, 3])}
    for answer, correct in (("17-5+3 = 15", True), ("17-5-3", False), ("17-5+3+0", False)):
        assert binary.score_completion(f"<answer>{answer}</answer>", ground_truth).correct is correct
        assert binary.oracle(answer, ground_truth) is correct
    item = Item(ground_truth)
    assert binary.item_key(item) == "3 5 17=15"
    assert binary.difficulty(item) == binary.difficulty(Item(PUZZLE))
    assert binary.score_completion(binary.solve(item), ground_truth).correct


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


def test_the_longest_answer_that_is_read():
    answer = "17-5" + " " * (MAX_LENGTH - 6) + "+3"
    longer = answer.replace("+", " +")
    assert binary.score(answer, PUZZLE).correct
    assert binary.oracle(answer, PUZZLE) is True
    assert binary.score(longer, PUZZLE).reason == "malformed"
    assert binary.oracle(longer, PUZZLE) is False
    numbers = [999_999_999] * 25
    assert binary.score("*".join(map(str, numbers)), {"target": 999_999_999**25, "numbers": numbers}).correct
