"""Gold completions, cut at their answer."""

import pytest

from tinyzero_sdk import Item, load_task
from tinyzero_sdk.errors import BrokenTaskError
from tinyzero_sdk.testing.gold import find_gold, golds

ITEM = Item(7, {"number": 7})


def solve(text):
    return f"@hookimpl\ndef solve(item): return {text}"


def test_another_answer_in_the_place_of_golds(write_task):
    task = load_task(write_task(extra=solve("'7, so <answer>7</answer>.'")))
    gold = find_gold(task, ITEM)
    assert gold.completion == "7, so <answer>7</answer>."
    assert gold.with_answer("8") == "7, so <answer>8</answer>."


def test_a_task_without_solve_has_none(write_task):
    task = load_task(write_task())
    assert find_gold(task, ITEM) is None
    assert list(golds(task, 3)) == []


@pytest.mark.parametrize("text", ["'7'", "'<answer></answer>'"])
def test_gold_without_an_answer_is_a_fault_of_the_task(write_task, text):
    with pytest.raises(BrokenTaskError, match="in the gold completion"):
        find_gold(load_task(write_task(extra=solve(text))), ITEM)
