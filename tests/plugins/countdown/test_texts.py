"""What the task writes itself: prompts, gold completions and traces."""

import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinyzero_countdown.demonstrations import LARGEST, demonstrate
from tinyzero_countdown.scoring import RULE
from tinyzero_sdk import Item, load_task

task = load_task("countdown")
item = Item({"target": 15, "numbers": [17, 5, 3]}, {"nums": [17, 5, 3], "target": 15})

STEP = r"(\d+)([-+*/])(\d+)=(\d+)"
WANTED = re.compile(r"(\d+):(\S+ \S+ \S+ [^=]+)=")


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


def results_of(one, other, target):
    larger, smaller = max(one, other), min(one, other)
    found = [larger - smaller, larger + smaller, larger * smaller, larger / smaller if smaller else 0.5]
    small_enough = [found[0], *(value if value <= max(LARGEST, 3 * target) else 0.5 for value in found[1:3]), found[3]]
    return " ".join("-" if value % 1 else str(int(value)) for value in small_enough)


@given(st.lists(st.integers(0, 99), min_size=2, max_size=5), st.integers(1, 400), st.integers(0, 2**64 - 1))
def test_traces_compute_rightly_and_answer_with_their_last_step(numbers, target, seed):
    search, _, answer = demonstrate(numbers, target, seed).removesuffix("</answer>").partition("<answer>")
    tried, mark, last_steps = re.fullmatch(r"([^!?]+)([!?])(.+)", search).groups()
    left = [Counter(numbers)]  # before each open bracket, and inside it
    at = 0
    while at < len(tried):
        if (found := re.compile(rf"{STEP}\(").match(tried, at)) is not None:
            left.append(after_step(left[-1], *found.groups()))
        elif tried[at] == ")":
            found = re.compile(r"\)").match(tried, at)
            left.pop()
        else:
            rest = Counter()
            if (found := WANTED.match(tried, at)) is not None:
                rest = Counter([int(found[1])])
                assert found[2] == results_of(target, int(found[1]), target)
                at = found.end()
            found = re.compile(r"(\d+) (\d+):([-\d ]+);?").match(tried, at)
            one, other = int(found[1]), int(found[2])
            assert left[-1] == Counter([one]) + Counter([other]) + rest
            whole = results_of(one, other, target)
            assert whole == found[3] if found[0].endswith(";") else whole.startswith(found[3])
        at = found.end()
    ends = left[-1]
    for step in last_steps.split(","):
        ends = after_step(ends, *re.fullmatch(STEP, step).groups())
    assert ends.total() == 1
    value = ends.popitem()[0]
    assert (mark == "!") == (value == target)
    assert task.score(answer, {"target": target, "numbers": numbers}).reason == ("ok" if mark == "!" else "wrong")
    assert task.score(answer, {"target": value, "numbers": numbers}).correct


def after_step(left, one, operator, other, result):
    a, b, value = int(one), int(other), int(result)
    assert {"+": a + b == value, "-": a - b == value, "*": a * b == value, "/": b * value == a}[operator]
    used = Counter([a]) + Counter([b])
    assert used <= left
    return left - used + Counter([value])


def test_traces_depend_on_the_seed():
    puzzle = Item({"target": 99, "numbers": [17, 5, 3, 8]}, {})
    traces = [task.demonstrate(puzzle, seed) for seed in range(400)]
    assert task.demonstrate(puzzle, 7) == traces[7]
    assert len(set(traces)) > 100
    assert 0.3 < sum("!" in trace for trace in traces) / len(traces) < 0.9


def test_a_share_of_traces_only_guesses():
    numbers, guessing = [17, 5, 3], load_task("countdown", options={"guess_rate": 0.6})
    traces = [guessing.demonstrate(item, seed) for seed in range(400)]
    guesses = [trace for trace in traces if trace.startswith("?")]
    assert len(guesses) / len(traces) == pytest.approx(0.6, abs=0.1)
    for trace in guesses:
        steps = re.fullmatch(rf"\?{STEP},{STEP}<answer>.+</answer>", trace)
        assert task.score(task.extract_answer(trace), {"target": int(steps[8]), "numbers": numbers}).correct
    right = [task.score_completion(trace, item.ground_truth).correct for trace in traces]
    assert 0.3 < sum(right) / len(right) < 0.5  # nearly all of the searches, and few of the guesses
