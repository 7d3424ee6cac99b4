"""Completions whose verdict is certain, since they are built from a number: every change tries a sample."""

import pytest

from benchmarks.gsm8k_answers import faults

MANY = pytest.mark.nightly(reason="100,000 cases take a minute; every change tries the first 300")


@pytest.mark.parametrize(("count", "seed"), [(300, 0), pytest.param(100_000, 1, marks=[MANY, pytest.mark.slow])])
def test_no_certain_case_is_scored_otherwise(count, seed):
    assert list(faults(count, seed)) == []
