"""Hypothesis strategies for the completions of `sampling.py`, for tests of your own: near misses, malformed, hostile …

Each gives a `TestCompletion`: the text, the ground truth to score it against, and how it was made.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec

from tinyzero_sdk.errors import TinyZeroError
from tinyzero_sdk.testing import sampling
from tinyzero_sdk.testing.gold import TestCompletion

try:
    from hypothesis import strategies as st
    from hypothesis.strategies import SearchStrategy
except ImportError as error:
    raise TinyZeroError("these strategies need hypothesis: pip install 'tinyzero-sdk[testing]'") from error

P = ParamSpec("P")


@st.composite
def _drawn_by(draw: Callable[[Any], Any], make: sampling.Draw) -> TestCompletion:
    return make(lambda count: draw(st.integers(0, count - 1)) if count > 1 else 0)


def _strategy(make: Callable[P, sampling.Draw]) -> Callable[P, SearchStrategy[TestCompletion]]:
    @wraps(make)
    def strategy(*args: P.args, **kwargs: P.kwargs) -> SearchStrategy[TestCompletion]:
        return _drawn_by(make(*args, **kwargs))

    return strategy


gold = _strategy(sampling.gold)
near_miss = _strategy(sampling.near_miss)
malformed = _strategy(sampling.malformed)
hostile = _strategy(sampling.hostile)
grammatical = _strategy(sampling.grammatical)
