"""Columns of a block: the same of JSON objects and of typed columns."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.sdk.rows import JSON
from tinyzero_sdk.data.arrow import to_array, to_list, to_texts
from tinyzero_sdk.data.column_hash import hash_array, hash_values
from tinyzero_sdk.data.table import UNKNOWN_FLAG, Block

ROWS = [
    {"finished": True, "token_count": 3, "extra_info": {"key": "a", "difficulty": 1}, "ground_truth": {"n": [1]}},
    {"finished": None, "tokens": [7, 8], "extra_info": {"key": None, "difficulty": 2.5}},
    {"finished": False, "reward_model": {"ground_truth": {"n": []}}},
]


@pytest.fixture(params=["objects", "typed"])
def block(request):
    names = dict.fromkeys(name for row in ROWS for name in row)
    table = pa.table({name: pa.array([row.get(name) for row in ROWS]) for name in names})
    return Block([1, 2, 3], ROWS if request.param == "objects" else table, [], 1.0)


def test_columns_are_the_same_of_objects_and_of_types(block):
    assert block.cells("extra_info.key") == ["a", None, None]
    assert block.column("extra_info.key").null_count == 2
    assert block.first_cells("ground_truth") == to_list(block.first("ground_truth")) == [{"n": [1]}, None, {"n": []}]
    assert to_texts(block.first("ground_truth")).to_pylist() == ['{"n": [1]}', None, '{"n": []}']
    assert block.cells("none") == block.cells("finished.x") == [None] * 3
    np.testing.assert_array_equal(block.floats("num_tokens"), [3, 2, np.nan])
    np.testing.assert_array_equal(block.floats("difficulty"), [1, 2.5, np.nan])


def test_a_flag_that_is_missing_or_no_flag_is_unknown(block):
    assert block.flags("finished").tolist() == [1, UNKNOWN_FLAG, 0]
    assert block.flags("extra_info").tolist() == block.flags("none").tolist() == [UNKNOWN_FLAG] * 3
    assert Block([1, 2], [{"finished": "no"}, {"finished": True}], [], 1.0).flags("finished").tolist() == [2, 1]


def test_rows_are_moved_renamed_and_given_columns(block):
    block.drop({1: "bad"})
    assert ([row.number for row in block.bad], block.numbers) == ([2], [1, 3])
    changed = block.mapped({"done": "finished"}, Path("f"))
    changed = changed.without("finished").with_columns({"by": ("me", pa.string()), "n": ([1, 2], pa.int64())})
    assert [(row["done"], row["by"], row["n"]) for row in changed.rows()] == [(True, "me", 1), (False, "me", 2)]
    assert "finished" not in changed.names
    first, second = changed.split(1)
    assert first.joined(second).rows() == changed.rows()


@given(st.lists(JSON, max_size=5))
def test_cells_of_any_kind_are_a_column_and_come_back(cells):
    array = to_array(cells)
    assert repr(to_list(array)) == repr(cells)
    assert hash_array(array).tolist() == hash_values(cells).tolist()
