"""What the task writes itself: prompts, gold completions and traces."""

import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinyzero_countdown.demonstrations import GIVE_UP, LARGEST, PATIENT, PATIENT_GIVE_UP, demonstrate
from tinyzero_countdown.scoring import RULE
from tinyzero_sdk import Item, load_task

task = load_task("countdown")
item = Item({"target": 15, "numbers": [17, 5, 3]}, {"nums": [17, 5, 3], "target": 15})

TOKEN = re.compile(r"(\d+)([-+*/])(\d+)=(\d+)|([(),!])")


def test_prompts_state_the_puzzle_and_the_rule():
    base, chat = task.make_prompt(item, "base"), task.make_prompt(item, "chat")
    assert base.endswith("<think>")
    assert [message["role"] for message in chat] == ["system", "user"]
    for text in (base, chat[1]["content"]):
        assert "17, 5, 3" in text
        assert "Target: 15." in text
        assert RULE in text
        assert "<answer>" in text
    assert task.make_prompt(item, "compact") == "17 5 3=15\n"


def test_a_gold_completion_works_the_simplest_solution_out():
    assert task.solve(item) == "<think>17 + 3 = 20, 20 - 5 = 15</think>\n<answer>17 + 3 - 5</answer>"
    assert task.solve(Item({"target": 7, "numbers": [2, 2]})) is None
    gold = task.solve(Item({"target": 24, "numbers": [8, 3, 3, 8]}))
    assert gold.startswith("<think>8 / 3 = (8/3), 3 - (8/3) = (1/3), 8 / (1/3) = 24</think>")


@given(st.lists(st.integers(0, 99), min_size=2, max_size=5), st.integers(1, 100), st.integers(0, 2**64 - 1))
def test_traces_compute_rightly_and_answer_with_their_last_step(numbers, target, seed):
    search, _, answer = demonstrate(numbers, target, seed).removesuffix("</answer>").partition("<answer>")
    states = [Counter(numbers)]  # numbers left, before each open bracket and inside it
    after, value, end = states[0], None, 0
    for token in TOKEN.finditer(search):
        assert token.start() == end
        end = token.end()
        left, operator, right, result, mark = token.groups()
        if mark == "(":
            states.append(after)
            assert after.total() > 1
        elif mark == ")":
            states.pop()
        elif mark == "!":
            assert (after.total(), value, end) == (1, target, len(search))
        elif mark is None:
            a, b, value = int(left), int(right), int(result)
            assert {"+": a + b == value, "-": a - b == value, "*": a * b == value, "/": b * value == a}[operator]
            assert operator in "-/" or value <= LARGEST
            used = Counter([a]) + Counter([b])
            assert used <= states[-1]
            after = states[-1] - used + Counter([value])
    assert end == len(search)
    score = task.score(answer, {"target": target, "numbers": numbers})
    assert score.reason == ("ok" if search[-1] == "!" else "wrong")
    assert task.score(answer, {"target": value, "numbers": numbers}).correct


def test_traces_have_no_brackets_they_could_do_without():
    numbers = [9, 4, 7, 2]
    for seed in range(300):
        trace = demonstrate(numbers, 24, seed)
        answer, ground_truth = (
            task.extract_answer(trace),
            {"target": int(re.findall(r"=(\d+)", trace)[-1]), "numbers": numbers},
        )
        assert task.score(answer, ground_truth).correct
        for pair in re.finditer(r"\(([^()]*)\)", answer):
            bare = answer[: pair.start()] + pair[1] + answer[pair.end() :]
            assert not task.score(bare, ground_truth).correct


def test_traces_depend_on_the_seed():
    traces = [task.demonstrate(item, seed) for seed in range(1000)]
    assert task.demonstrate(item, 7) == traces[7]
    assert len(set(traces)) > 500
    assert 0.5 < sum("!" in trace for trace in traces) / len(traces) < 0.99


def test_traces_give_up_at_a_constant_rate_of_which_there_are_two():
    """After k misses a trace goes on with the share of those that are left; patient ones are what is left at last."""
    unsolvable = [demonstrate([2, 4, 6], 997, seed) for seed in range(500)]
    misses = [trace.partition("<")[0].count("(") for trace in unsolvable]
    for count in (1, 2, 5, 20, 50):
        left = PATIENT * (1 - PATIENT_GIVE_UP) ** count + (1 - PATIENT) * (1 - GIVE_UP) ** count
        assert sum(miss > count for miss in misses) / len(misses) == pytest.approx(left, abs=0.06)


def test_traces_try_all_steps_before_one_is_tried_again():
    firsts = [re.findall(r"(?:^|[,)])(\d+.\d+)=", demonstrate([9, 5, 2], 997, seed)) for seed in range(200)]
    tried = [found[:9] for found in firsts if len(found) >= 9]
    assert len(tried) > 50
    assert all(len(set(found)) == 9 for found in tried)
