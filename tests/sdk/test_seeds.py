"""Seeds and splits: independent of each other, the same everywhere, evenly spread."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinyzero_sdk.seeds import derive_seed, integers_from_bits, random_bits, split_of_key

PARTS = st.lists(st.text() | st.integers(), max_size=4)


def test_seeds_are_the_same_on_every_machine_and_in_every_version():
    assert derive_seed("countdown", "train", 0) == 9569796338557401981
    assert split_of_key("1,2,3=6") == "test"
    assert random_bits(7, np.array([0, 5]), 2).tolist() == [
        [9879153190347316257, 16950153463417400392],
        [13986020579637561500, 4596328005723202252],
    ]


@given(PARTS, PARTS)
def test_unlike_parts_give_unlike_seeds(first, second):
    assert (derive_seed(*first) == derive_seed(*second)) == (repr(first) == repr(second))


@given(st.integers(0, 2**64 - 1), st.lists(st.integers(0, 2**40), min_size=1, max_size=20), st.integers(1, 5))
def test_an_items_bits_depend_on_its_index_alone(seed, indices, draws):
    together = random_bits(seed, np.array(indices), draws)
    alone = [random_bits(seed, np.array([index]), draws)[0] for index in indices]
    assert together.tolist() == np.array(alone).tolist()
    assert together.shape == (len(indices), draws)


def test_integers_are_evenly_spread_and_reach_both_ends():
    counts = np.bincount(integers_from_bits(random_bits(3, np.arange(60_000), 1)[:, 0], 0, 5), minlength=6)
    assert len(counts) == 6
    assert abs(counts - 10_000).max() < 500  # five standard deviations


@pytest.mark.parametrize("share", [1 / 16, 0.5])
def test_the_test_split_has_its_share(share):
    tests = sum(split_of_key(f"key {number}", share) == "test" for number in range(20_000))
    assert abs(tests / 20_000 - share) < 0.02
