"""Ground truths with other numbers: still JSON, still of their form, and the one that was given stays as it was."""

import copy
import json
import random

from hypothesis import given
from hypothesis import strategies as st

from tinyzero_sdk.testing.ground_truth_mutation import coincides, entries, fit, integers, nudge, with_number, without

LEAVES = st.none() | st.booleans() | st.integers(-(10**6), 10**6) | st.text(max_size=3)
TRUTHS = st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(max_size=3), inner), max_leaves=8)


def form(value):
    """A value without its numbers."""
    if isinstance(value, dict):
        return {key: form(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [form(entry) for entry in value]
    return "n" if isinstance(value, int) and not isinstance(value, bool) else value


@given(TRUTHS, st.integers())
def test_what_is_given_stays_as_it_was(truth, seed):
    before = copy.deepcopy(truth)
    choose = random.Random(seed).randrange
    for made in (nudge(truth, choose), fit(truth, "1 + 2", 3, choose)):
        json.dumps(made)
    for path, number in integers(truth):
        changed = with_number(truth, path, number + 1)
        assert (path, number + 1) in list(integers(changed))
        assert form(changed) == form(truth)
    for path, _ in entries(truth):
        assert len(list(integers(without(truth, path)))) == len(list(integers(truth))) - 1
    assert truth == before


@given(st.lists(st.integers(1, 99), min_size=1), st.integers(1, 99), st.integers())
def test_other_numbers_keep_the_form_and_stay_positive(numbers, target, seed):
    choose = random.Random(seed).randrange
    made = nudge({"target": target, "numbers": numbers}, choose)
    assert made["numbers"]
    assert all(isinstance(number, int) and number > 0 for number in [made["target"], *made["numbers"]])


def test_values_coincide_across_fields_only():
    assert coincides({"target": 8, "numbers": [3, 8]})
    assert coincides({"amount": 3, "count": 3})
    assert not coincides({"target": 24, "numbers": [8, 8]})
    assert not coincides([1, 1])


def test_a_number_that_the_answer_names_is_not_replaced():
    truth = {"target": 24, "numbers": [3, 8]}
    assert fit(truth, "3 * 8.", 7, random.Random(0).randrange) == {"target": 7, "numbers": [3, 8]}
    assert fit(truth, "3 8 24", 7, random.Random(0).randrange) is None
