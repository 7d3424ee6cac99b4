"""The row format: our rows and those of TinyZero, written and read without loss."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given

from tests.sdk.rows import JSON
from tinyzero_sdk import Item, TaskInfo
from tinyzero_sdk.data.rows import item_to_row, plain, row_to_item
from tinyzero_sdk.errors import DataError


def make_task(prompt="How much?"):
    """Stands in for a Task."""
    return SimpleNamespace(
        name="sums",
        version="1.2",
        info=TaskInfo(ability="logic"),
        make_prompt=lambda item, template: prompt,
        difficulty=lambda item: 2.5,
        item_key=lambda item: "k",
    )


def test_row_has_the_columns_that_tinyzero_and_verl_read():
    row = item_to_row(make_task(), Item({"n": 3}, {"nums": [1, 2]}), index=7, split="test")
    assert row == {
        "data_source": "sums",
        "prompt": [{"role": "user", "content": "How much?"}],
        "ability": "logic",
        "reward_model": {"style": "rule", "ground_truth": {"n": 3}},
        "extra_info": {"index": 7, "split": "test", "difficulty": 2.5, "key": "k", "task_version": "1.2"},
        "nums": [1, 2],
    }


@given(truth=JSON.filter(lambda value: value is not None), data=JSON)
def test_item_survives_its_row(truth, data):
    item = Item(truth, {"own": data})
    assert row_to_item(item_to_row(make_task(), item, index=0, split="train")) == item


def test_task_column_must_not_hide_one_of_the_format():
    with pytest.raises(DataError, match=r"its own column 'prompt'.*rename"):
        item_to_row(make_task(), Item(1, {"prompt": "mine"}), index=0, split="train")


@pytest.mark.parametrize(
    "value", [b"bytes", {1: "a"}, {2, 3}, np.datetime64("2026-01-01"), np.array([1 + 2j]), object()]
)
def test_what_json_lacks_is_refused(value):
    with pytest.raises(DataError, match="expected plain JSON"):
        plain(value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float32(0.5), 0.5),
        (np.bool_(True), True),
        (np.str_("a"), "a"),
        (np.array([[1, 2], [3, 4]]), [[1, 2], [3, 4]]),
        (np.array([{"a": np.array([1])}], dtype=object), [{"a": [1]}]),
        ((1, "b"), [1, "b"]),
    ],
)
def test_numpy_becomes_plain(value, expected):
    assert plain(value) == expected
    assert type(plain(value)) is type(expected)
