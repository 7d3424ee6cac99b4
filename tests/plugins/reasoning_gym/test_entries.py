"""Entries as JSON and back, for whatever reasoning-gym may put into its metadata."""

import json
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tinyzero_reasoning_gym.entries import decode, encode, known_answers, to_entry, to_ground_truth
from tinyzero_sdk.errors import DataError

HASHABLE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.fractions(),
    lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3),
    max_leaves=5,
)
VALUES = st.recursive(
    HASHABLE | st.sets(HASHABLE, max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(HASHABLE | st.just("!"), inner, max_size=3),
    max_leaves=6,
)


def same(one, other):
    """Equal, and of the same types all through: 1, 1.0 and True are not the same, nor lists and tuples."""
    if type(one) is not type(other) or one != other:
        return False
    if isinstance(one, dict):
        return all(map(same, one, other)) and all(map(same, one.values(), other.values()))
    return not isinstance(one, list | tuple) or all(map(same, one, other))


@pytest.mark.slow
@settings(max_examples=25)
@given(VALUES)
def test_what_is_written_comes_back(value):
    assert same(decode(json.loads(json.dumps(encode(value)))), value)


@given(st.frozensets(st.text()))
def test_a_set_is_written_in_one_order(values):
    assert encode(values) == encode(frozenset(sorted(values, reverse=True)))


def test_numbers_of_numpy_become_numbers():
    assert encode([np.int64(3), np.str_("x"), np.array([[1.5]])]) == [3, "x", [[1.5]]]


def test_what_has_no_form_is_refused():
    with pytest.raises(DataError, match="a value of type object"):
        encode({"a": [object()]})
    with pytest.raises(DataError, match="newer version"):
        decode({"!": "quaternion", "v": [1, 2, 3, 4]})


def test_an_entry_is_three_texts():
    entry = {"question": "q", "answer": None, "metadata": {0: (Fraction(1, 2), {3})}}
    truth = to_ground_truth(entry)
    assert {type(value) for value in truth.values()} <= {str, type(None)}
    assert to_entry(truth) == entry
    with pytest.raises(DataError, match="expected two texts"):
        to_ground_truth({"question": "q", "answer": 7})


def test_where_there_is_no_answer_an_example_stands_in():
    assert list(known_answers({"answer": "a", "metadata": {}})) == ["a"]
    assert list(known_answers({"answer": None, "metadata": {"example_answer": "b"}})) == ["b"]
    assert list(known_answers({"answer": None, "metadata": {"possible_answer": {0: 1}}})) == ['{"0": 1}']
