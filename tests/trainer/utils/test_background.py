"""Work in a background thread is over when its block is left."""

import itertools
import time
from typing import Any

import pytest

from tinyzero_trainer.utils.background import run_in_background


def test_it_is_over_when_the_block_is_left() -> None:
    numbers = itertools.count()

    def work(stop: Any) -> int:
        while not stop.requested:
            time.sleep(0.001)
            if next(numbers) == 5:
                return 42
        return 0

    with run_in_background(work) as result:
        pass
    assert result.result() == 42
    with pytest.raises(ValueError, match="of the block"), run_in_background(work) as result:
        raise ValueError("of the block")
    assert result.result() == 0
