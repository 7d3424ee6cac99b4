"""Calls with a timeout, to an engine whose process may die or hang during them.

vLLM's own client waits forever for an answer of a killed process.
"""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from time import monotonic
from typing import Any, TypeVar

from tinyzero_trainer.errors import EngineDiedError

Result = TypeVar("Result")
Jobs = queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]

POLL_SECONDS = 0.1

GRACE_SECONDS = 2.0
"""For a call to report by itself that the process has ended: its reason is better than ours."""


class CallThread:
    """Makes calls one after another, in a daemon thread; `alive` says whether the engine's process runs."""

    def __init__(self, alive: Callable[[], bool]) -> None:
        self._alive = alive
        self.interrupted = False
        """Whether a call was abandoned because of an error in the caller's thread, such as Ctrl-C."""
        self._jobs: Jobs = queue.SimpleQueue()
        threading.Thread(target=_work, args=(self._jobs,), name="vllm-calls", daemon=True).start()

    def call(self, function: Callable[[], Result], *, timeout: float, since: float | None = None) -> Result:
        """What `function` returns or raises.

        Args:
            timeout: seconds, after which the engine counts as hanging.
            since: the `monotonic` time from which these count; None = now.

        Raises:
            EngineDiedError: the process ended, or the time is up. The call is abandoned, and the thread unusable.
        """
        future: Future[Result] = Future()
        self._jobs.put((future, function))
        end = (monotonic() if since is None else since) + timeout
        try:
            while not wait([future], POLL_SECONDS).done:
                if not self._alive() and not wait([future], GRACE_SECONDS).done:
                    raise EngineDiedError("its process ended")
                if monotonic() > end:
                    raise EngineDiedError(f"it did not answer within {timeout:g} s")
            return future.result()
        except BaseException:
            self.interrupted = not future.done()
            raise
        finally:
            del future  # or its exception would hold itself, and the weights of a call with it, by this frame

    def end(self) -> None:
        """End the thread once the present call has returned."""
        self._jobs.put(None)


def _work(jobs: Jobs) -> None:
    while (job := jobs.get()) is not None:
        future, function = job
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)
        del job, future, function  # or the thread would keep an abandoned engine alive
