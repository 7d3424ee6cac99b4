"""Ctrl-C and SIGTERM as a flag that the loop polls, so that a run saves before it ends.

What is saved, and when, is the loop's affair; this file only turns signals into a flag and the flag into an exit code.
Work of which nothing can be saved is left at once.
"""

import shlex
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Protocol

from tinyzero_sdk.errors import TinyZeroError

SIGNALS = (signal.SIGINT, signal.SIGTERM)

_ECHO_SECONDS = 0.5
"""A repeat within this time is the same request: `timeout` and service managers signal a process and then its group."""


class StopRequested(Exception):
    """Raised inside a phase that was asked to end; the policy is as it was before the step."""


class Stopped(TinyZeroError):
    """A signal ended the work."""

    def __init__(self, stopped_by: signal.Signals, outcome: str) -> None:
        """
        Args:
            stopped_by: the signal.
            outcome: what is left of the work, and how to go on.
        """
        self.exit_code = exit_code(stopped_by)
        super().__init__(f"stopped by {stopped_by.name} {outcome}")


class Interrupted(Stopped):
    """A signal ended the run, after its state was saved."""

    def __init__(self, stopped_by: signal.Signals, step: int, output: str) -> None:
        """
        Args:
            stopped_by: the signal.
            step: the last step that is in the checkpoint.
            output: the run directory.
        """
        how_to_go_on = f"resume with: tinyzero train --output {shlex.quote(output)} --resume"
        super().__init__(stopped_by, f"after step {step}, which is saved; {how_to_go_on}")


def exit_code(stopped_by: signal.Signals) -> int:
    """The shell's convention: 128 + signal, i.e. 130 for SIGINT and 143 for SIGTERM."""
    return 128 + stopped_by


class Stop(Protocol):
    """What long work polls."""

    @property
    def requested(self) -> bool:
        """Whether it shall end; once it does, for good."""


class StopFlag:
    """Whether a signal asked the run to end. Starts down and never goes down again."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._first_seen: dict[signal.Signals, float] = {}

    @property
    def requested(self) -> bool:
        """True once a signal has come; long phases poll it."""
        return self.signal is not None

    def handle(self, number: int, frame: FrameType | None = None) -> None:
        """The signal handler: raises the flag; a second signal of the same kind leaves at once.

        Raises:
            KeyboardInterrupt: a second SIGINT.
            SystemExit: a second SIGTERM, with code 143.
        """
        received, now = signal.Signals(number), time.monotonic()
        self.signal = self.signal or received
        if now - self._first_seen.setdefault(received, now) >= _ECHO_SECONDS:
            raise KeyboardInterrupt if received is signal.SIGINT else SystemExit(exit_code(received))


@contextmanager
def catch_signals() -> Iterator[StopFlag]:
    """Route SIGINT and SIGTERM to a `StopFlag`, and put the former handlers back at the end.

    Python delivers signals to the main thread only; in any other the flag simply stays down. Libraries that
    install handlers of their own (Ray does) must be started first.
    """
    stop = StopFlag()
    with _handled_by(stop.handle):
        yield stop


@contextmanager
def left_at_once(outcome: str) -> Iterator[None]:
    """Within, SIGINT and SIGTERM end the work there and then: for work of which nothing can be saved.

    Args:
        outcome: see `Stopped`.

    Raises:
        Stopped: a signal came; whoever began something has cleared it away.
    """
    stop = StopFlag()

    def leave(number: int, frame: FrameType | None) -> None:
        again = stop.requested
        stop.handle(number, frame)
        if not again:
            raise KeyboardInterrupt  # not SystemExit, which the guards around a task's code take for the task's

    with _handled_by(leave):
        try:
            yield
        except (KeyboardInterrupt, SystemExit):
            if stop.signal is None:
                raise
            raise Stopped(stop.signal, outcome) from None


@contextmanager
def _handled_by(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Within, a handler has the signals; but in the main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    former = {number: signal.signal(number, handler) for number in SIGNALS}
    try:
        yield
    finally:
        for number, before in former.items():
            # None: a handler that C code installed, which Python cannot put back.
            signal.signal(number, signal.SIG_DFL if before is None else before)
