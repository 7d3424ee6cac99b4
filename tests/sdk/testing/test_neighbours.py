"""Neighbours of right answers: what is one and what is not, and that broken rewards without an oracle take them."""

from pathlib import Path

import pytest

from tests.broken_rewards.near_gold import HOLES
from tests.sdk.testing.conftest import HOOKS
from tinyzero_sdk import load_task
from tinyzero_sdk.testing import check_task
from tinyzero_sdk.testing.cases import Case
from tinyzero_sdk.testing.neighbours import change_letters, change_numbers, change_order, change_parts, same

BROKEN = Path(__file__).parents[2] / "broken_rewards/near_gold.py"
CHECKS = ["numbers-count", "parts-count", "order-counts", "letters-count"]


def all_of(change, answer, *others):
    return {text for _, text in change(answer, others) if not same(text, answer)}


@pytest.mark.parametrize(
    ("change", "answer", "others", "some"),
    [
        (change_numbers, "42", (), "43 41 42.4 42.21 4200 -42 422 2 4 24"),
        (change_numbers, "-3.5", (), "-2.5 -4.5 -3.1 3.5 -35"),
        (change_numbers, "1000", (), "1005 995"),
        (change_numbers, "1+2", ("4-3",), "1-2 2+2 1+1"),
        (change_parts, "3/4", ("5/6",), "5/6 3 4 5/4 3/6 3/3/4 34"),
        (change_order, "3/4", (), "4/3"),
        (change_order, "03/04/2024", (), "04/03/2024 2024/04/03"),
        (change_letters, "plum", (), "plu lum plumm pluq qlum"),
        (change_letters, "aXb", ("bXa",), "axb AXb"),
    ],
)
def test_neighbours(change, answer, others, some):
    assert {*some.split()} <= all_of(change, answer, *others)


@pytest.mark.parametrize(
    ("change", "answer", "others"),
    [
        (change_numbers, "none", ("5",)),
        (change_order, "3 + 4 + 5", ()),  # a sum
        (change_order, "2 × 3 × 5", ()),
        (change_order, "{3, 4}", ()),  # a set
        (change_letters, "42", ("17",)),
        (change_letters, r"\frac{1}{2}", ()),  # a command, which has other names
    ],
)
def test_what_respells_an_answer_is_no_neighbour(change, answer, others):
    assert not all_of(change, answer, *others)


@pytest.mark.parametrize(("left", "right"), [("1.50", "1.5"), ("1, 2", "1,2"), ("007", "7"), ("3/4.0", "3 / 4")])
def test_other_notations_are_the_same(left, right):
    assert same(left, right)
    assert not same(left, f"{right}1")


def test_case_and_brackets_count_where_they_vary():
    assert "plum" not in all_of(change_letters, "Plum", "Pear")
    assert "[1, 2)" in all_of(change_numbers, "(1, 2)", "[3, 4)")
    assert "[1, 2)" not in all_of(change_numbers, "(1, 2)", "(3, 4)")


def test_names_make_the_order_free():
    assert "y = 4, x = 3" not in all_of(change_order, "x = 3, y = 4")
    assert "x = 4, y = 3" in all_of(change_order, "x = 3, y = 4")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("check", "hole"), [(check, hole.__name__) for check, holes in HOLES.items() for hole in holes]
)
def test_a_reward_that_takes_neighbours_fails(check, hole):
    report = check_task(load_task(BROKEN, options={"hole": hole}), properties=CHECKS, cases=[])
    failed = {result.prop.name: result.failure for result in report.failed}
    assert check in failed if check else not failed
    assert all("problems)" in failure.got and "gold's answer" in failure.sample.note for failure in failed.values())


DEMONSTRATE = HOOKS["solve"].replace("solve(item)", "demonstrate(item, seed)")
RIGHT = [Case(f"<answer>{10 + n}</answer>", {"numbers": [10, n], "total": 10 + n}, True) for n in range(3)]
NUMBERS = HOOKS["generate_dataset"].replace("Item({", "Item(sum(numbers), {")
PLAIN = {"generate_dataset": NUMBERS, "make_prompt": HOOKS["make_prompt"].replace("ground_truth", "data")}
CLOSE = """
@hookimpl
def score(answer, ground_truth):
    truth = ground_truth if isinstance(ground_truth, int) else ground_truth["total"]
    return float(answer.isdigit() and abs(int(answer[:9]) - truth) < 2)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hooks", "cases", "status"),
    [
        ({"demonstrate": DEMONSTRATE}, [], "failed"),
        ({}, RIGHT, "failed"),
        (PLAIN, [], "failed"),
        ({}, [], "not checked"),
    ],
)
def test_right_answers_are_found_without_solve(write_sum, hooks, cases, status):
    task = load_task(write_sum(**{"score": CLOSE, "solve": None, "oracle": None, "grammar": None, **hooks}))
    [result] = check_task(task, properties=["numbers-count"], cases=cases).results
    assert result.status == status, result.why


@pytest.mark.slow
def test_what_the_oracle_calls_right_is_no_failure(write_sum):
    oracle = HOOKS["oracle"].replace("answer ==", "True or answer ==")
    path = write_sum(score=CLOSE, oracle=oracle)
    assert check_task(load_task(path), properties=["numbers-count"], cases=[]).passed


@pytest.mark.slow
def test_the_last_line_says_what_is_not_known_without_an_oracle(run, write_sum):
    words = ("--only", "gold-scores-full", "--only", "correct-means-right", "--examples", "3")
    _, out, _ = run("check", write_sum(oracle=None), *words)
    assert out.splitlines()[-1].startswith("not known without an oracle: ")
    assert "the hook `oracle` settles it, or labelled cases" in out.splitlines()[-1]
    assert "not known" not in run("check", write_sum(), *words)[1]
