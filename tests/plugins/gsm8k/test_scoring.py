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


@given(st.decimals(allow_nan=False, allow_infinity=False, places=3, min_value=-(10**9), max_value=10**9))
def test_every_way_to_write_a_decimal_is_the_same_number(value):
    written = f"{value:f}"
    sign, digits = ("-", written[1:]) if value < 0 else ("", written.removeprefix("-"))
    grouped = f"{abs(value):,f}"
    spelled = (written, f"{value:,f}", f"{written}000", f"{sign}${digits}", f"{sign}{grouped} dollars", f"so {written}")
    for text in spelled:
        assert score_answer(text, written).correct, text
    for text in (rf"\boxed{{{written}}}", rf"${written}$", f"**{written}**", f"{sign}{grouped.replace(',', '{,}')}"):
        assert score_answer(text, written).correct, text
    if value != 0:
        assert not score_answer(written.removeprefix("-") if sign else f"-{written}", written).correct
        assert not score_answer(f"{written}1", str(value)).correct


@given(st.integers(0, 10**6), st.integers(1, 10**6), st.integers(0, 10**6))
@example(1, 2, 1)
def test_fractions_are_exact(top, bottom, whole):
    truth = f"{top}/{bottom}"
    assert score_answer(truth, truth).correct
    assert score_answer(rf"\frac{{{2 * top}}}{{{2 * bottom}}}", truth).correct
    assert not score_answer(f"{top + 1}/{bottom}", truth).correct
    if top < bottom:
        assert score_answer(f"{whole} {truth}", f"{whole * bottom + top}/{bottom}").correct


@given(st.integers(-999, 999), st.integers(-9, 9))
def test_scientific_notation_is_exact(digits, exponent):
    truth = f"{digits * 10 ** max(exponent, 0)}/{10 ** max(-exponent, 0)}"
    for text in (f"{digits}e{exponent}", f"{digits} × 10^{exponent}", rf"{digits} \times 10^{{{exponent}}}"):
        assert score_answer(text, truth).correct, text
    assert not score_answer(f"{digits}e{exponent + 1}", truth).correct or digits == 0


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
