"""Calls with a timeout, to an engine whose process may die or hang meanwhile. Nothing of vLLM in here.

vLLM's own client waits forever for an answer that a killed process still owes.
"""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from time import monotonic
from typing import Any, TypeVar

from tinyzero_trainer.errors import EngineDiedError

Result = TypeVar("Result")

POLL_SECONDS = 0.1
"""Between looks at the engine's process, and calls of `meanwhile`."""

GRACE_SECONDS = 2.0
"""For a call to report by itself that the process has ended: its reason is better than ours."""

CANCEL_SECONDS = 30.0
"""For the present call to return once nobody wants its result."""


class CallThread:
    """Makes calls one after another, in a thread of its own."""

    def __init__(self, alive: Callable[[], bool]) -> None:
        """
        Args:
            alive: whether the engine's process runs; before it does, True.
        """
        self._alive = alive
        self.stuck = False
        """Whether an abandoned call has not returned."""
        self._jobs: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=_work, args=(self._jobs,), name="vllm-calls", daemon=True)
        self._thread.start()

    def call(
        self,
        function: Callable[[], Result],
        *,
        timeout: float,
        since: float | None = None,
        meanwhile: Callable[[], None] | None = None,
    ) -> Result:
        """What `function` returns or raises.

        Args:
            function: called in the thread.
            timeout: seconds, after which the engine counts as hanging.
            since: the `monotonic` time from which these count; None = now.
            meanwhile: called now and then in this thread; if it raises, the call is awaited briefly and abandoned.

        Raises:
            EngineDiedError: the process ended, or the time is up. The call is abandoned and the thread of no more use.
        """
        future: Future[Result] = Future()
        self._jobs.put((future, function))
        end = (monotonic() if since is None else since) + timeout
        try:
            while not _done(future, POLL_SECONDS):
                if meanwhile is not None:
                    meanwhile()
                if not self._alive():
                    if _done(future, GRACE_SECONDS):
                        break
                    raise EngineDiedError("its process ended")
                if monotonic() > end:
                    raise EngineDiedError(f"it did not answer within {timeout:g} s")
        except EngineDiedError:
            raise
        except BaseException:
            self.stuck = not _done(future, 0 if meanwhile is None else CANCEL_SECONDS)
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
        del job, future, function  # or the thread would keep an abandoned engine alive
