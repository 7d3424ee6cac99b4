"""Single scores: ground truths, ways to write a number, hostile texts, and the time it takes."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.relative_time import relative_time
from tinyzero_gsm8k.numbers import LONGEST, read_number
from tinyzero_gsm8k.scoring import score_answer
from tinyzero_sdk import load_task

task = load_task("gsm8k", options={"source": "synthetic"})


@pytest.mark.parametrize(
    "ground_truth", ["1000", "1,000", 1000, 1000.0, np.int64(1000), "$1,000", "He earns.\n#### 1,000"]
)
def test_ground_truths_as_other_tools_write_them(ground_truth):
    assert task.score_completion("<answer>1000</answer>", ground_truth).correct
    assert task.score_completion("<answer>1001</answer>", ground_truth).reason == "wrong"
    assert task.oracle("1,000.", ground_truth) is True


@pytest.mark.slow
@given(st.text())
@example("-" * 600)
@example("\\frac{" * 80)
def test_any_text_gets_a_score(text):
    assert score_answer(text, "42").reason in ("ok", "wrong", "malformed")
    assert task.oracle(text, "42") in (None, score_answer(text, "42").correct)


@pytest.mark.parametrize("piece", [*"9. \t/e}*$-", "1,", "1/", "a ", "and ", r"\frac{", r"\text{", "10^", "2²", "m^"])
def test_hostile_answers_take_no_time(piece):
    for text in (piece * (LONGEST // len(piece)), "1" + piece * ((LONGEST - 2) // len(piece)) + "x", piece * 400_000):
        # Without the bound on the length it would be hours.
        assert relative_time(lambda text=text: (read_number(text), task.oracle(text, "1")), attempts=1) < 15
