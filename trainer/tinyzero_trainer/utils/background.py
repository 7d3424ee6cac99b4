"""Work in a thread beside the one that goes on: both are over at the end, whichever fails. No torch in here."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from threading import Event
from typing import TypeVar

from tinyzero_trainer.utils.signals import Stop

Result = TypeVar("Result")


class Unwanted:
    """Whether nobody waits for the result any more; a `Stop`."""

    def __init__(self) -> None:
        self._event = Event()

    @property
    def requested(self) -> bool:
        """See `Stop`."""
        return self._event.is_set()

    def request(self) -> None:
        """Nobody does."""
        self._event.set()


@contextmanager
def run_in_background(work: Callable[[Stop], Result]) -> Iterator["Future[Result]"]:
    """Do work in a thread while the block runs; it is done, or has failed, once the block is left.

    What it raises is in the future, for whoever wants its result. If the block raises, the result is unwanted: the
    work is told to stop, and waited for.

    Args:
        work: polls what it is given, and ends soon after a stop is requested.

    Example:
        >>> with run_in_background(lambda stop: 6 * 7) as answer:
        ...     question = "?"
        >>> answer.result()
        42
    """
    unwanted = Unwanted()
    with ThreadPoolExecutor(1, thread_name_prefix="beside") as pool:
        under_way = pool.submit(work, unwanted)
        try:
            yield under_way
            wait([under_way])
        except BaseException:
            unwanted.request()
            raise
