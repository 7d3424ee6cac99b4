"""Work in a thread, concurrent with a block: both are over at its end, whichever fails. No torch in here."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import TypeVar

from tinyzero_trainer.utils.signals import Stop

Result = TypeVar("Result")


class _Stop:
    requested = False


@contextmanager
def run_in_background(work: Callable[[Stop], Result]) -> Iterator["Future[Result]"]:
    """Work in a thread while the block runs; it is done, or has failed, once the block is left.

    The future holds its result or exception. If the block raises, the work is asked to stop, and waited for.

    Example:
        >>> with run_in_background(lambda stop: 6 * 7) as answer:
        ...     question = "?"
        >>> answer.result()
        42
    """
    stop = _Stop()
    with ThreadPoolExecutor(1, thread_name_prefix="background") as pool:
        future = pool.submit(work, stop)
        try:
            yield future
            wait([future])
        except BaseException:
            stop.requested = True
            raise
