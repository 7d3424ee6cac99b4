"""Calls of an engine that may die or hang meanwhile: each has a time limit, and can be left behind.

Nothing of vLLM in here. Its own client waits for ever for an answer that a killed process still owed.
"""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from time import monotonic
from typing import Any, TypeVar

Result = TypeVar("Result")

POLL = 0.1
"""Seconds between looks at the engine's process, and calls of `meanwhile`."""

GRACE = 2.0
"""Seconds in which a call may still say itself that the process has ended: its reason is better than ours."""

CANCEL_LIMIT = 30.0
"""Seconds in which a call has to end that was asked to."""


class EngineFault(Exception):
    """The engine died, hangs, or gave less than it was asked for; another one may do better."""


class Cancelled(Exception):
    """Raised within a call that is to end before it is done."""


class Caller:
    """Makes calls one after another in a thread of its own."""

    def __init__(self, alive: Callable[[], bool]) -> None:
        """
        Args:
            alive: whether the engine's process runs; before it does, True.
        """
        self._alive = alive
        self.stuck = False
        """Whether a call was left behind that still goes on."""
        self._jobs: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=_work, args=(self._jobs,), name="vllm-calls", daemon=True)
        self._thread.start()

    def call(
        self,
        function: Callable[[], Result],
        *,
        limit: float,
        meanwhile: Callable[[], None] | None = None,
        cancel: Callable[[], None] | None = None,
    ) -> Result:
        """What `function` returns or raises.

        Args:
            function: called in the thread.
            limit: seconds; then the engine counts as hanging.
            meanwhile: called now and then in this thread; if it raises, the call is cancelled and its end awaited.
            cancel: makes `function` end soon.

        Raises:
            EngineFault: the process ended, or the time is over; the call is left behind, and the caller of no more use.
        """
        future: Future[Result] = Future()
        self._jobs.put((future, function))
        end = monotonic() + limit
        try:
            while not _done(future, POLL):
                if meanwhile is not None:
                    meanwhile()
                if not self._alive():
                    if _done(future, GRACE):
                        break
                    raise EngineFault("its process ended")
                if monotonic() > end:
                    raise EngineFault(f"it did not answer within {limit:g} s")
        except EngineFault:
            raise
        except BaseException:
            if cancel is not None:
                cancel()
            self.stuck = not _done(future, CANCEL_LIMIT if cancel is not None else 0)
            raise
        try:
            return future.result()
        finally:
            del future  # or its exception would hold itself, and the weights of a call with it, by this frame

    def end(self) -> None:
        """End the thread once the present call has returned."""
        self._jobs.put(None)


def _done(future: Future[Any], seconds: float) -> bool:
    return bool(wait([future], seconds).done)


def _work(jobs: "queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]") -> None:
    while (job := jobs.get()) is not None:
        future, function = job
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)
        del job, future, function  # or the thread would keep an engine alive that nobody has any more
