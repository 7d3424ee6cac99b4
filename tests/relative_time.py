"""Time as a multiple of a loop in the same process, so that no test depends on the machine's speed."""

import time
from collections.abc import Callable


def relative_time(call: Callable[[], object], *, attempts: int = 3) -> float:
    """Processor time of a call in units of a loop of 100,000 additions (about 5 ms); the least of several each."""
    units, times = [], []
    for _ in range(attempts):
        begin = time.process_time()
        total = 0
        for number in range(100_000):
            total += number
        middle = time.process_time()
        call()
        units.append(middle - begin)
        times.append(time.process_time() - middle)
    return min(times) / min(units)
