"""The border to reasoning-gym: importing it, making its datasets, and drawing entries from them.

Some of its generators print, warn, or use the random numbers of the whole process; none of that gets out.
"""

import io
import random
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from functools import cache
from typing import Any

_lock = threading.Lock()


@cache
def find_classes(name: str) -> tuple[type, type]:
    """The classes of a dataset and of its configuration."""
    with _contained():
        from reasoning_gym.factory import DATASETS
    return DATASETS[name]


def make_dataset(name: str, config: Any) -> Any:
    """A dataset; some read a file of words for it."""
    with _contained():
        return find_classes(name)[0](config=config)


def draw_entry(dataset: Any, index: int) -> dict[str, Any]:
    """Entry number `index`, which depends on the seed of the dataset and the index alone."""
    import numpy as np

    with _lock, _contained():
        before, before_numpy = random.getstate(), np.random.get_state()
        random.seed(dataset.seed + index)
        np.random.seed((dataset.seed + index) % 2**32)
        try:
            return dataset[index]
        finally:
            random.setstate(before)
            np.random.set_state(before_numpy)


@contextmanager
def _contained() -> Iterator[None]:
    with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield
