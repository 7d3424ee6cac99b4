"""Signals as a flag that the training loop polls, so that a run saves before it ends; and exit codes.

Work that cannot be saved ends at once.
"""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Protocol

from tinyzero_sdk.errors import TinyZeroError

SIGNALS = (
    *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT),
    *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU),
)
"""Ctrl-C, of service managers and schedulers, of a terminal that closes, Ctrl-\\, and warnings: Slurm's, Grid Engine's
and LSF's, and that of a limit of CPU time, which is repeated each second."""

_ECHO_SECONDS = 0.5
"""A repeat within this time is the same request: `timeout` and service managers signal a process, then its group."""


class StopRequested(Exception):
    """A phase ended because a stop was requested; the policy is as the last whole step left it."""


class Stopped(TinyZeroError):
    """A signal ended the work."""

    def __init__(self, stopped_by: signal.Signals, outcome: str) -> None:
        self.exit_code, self.stopped_by = 128 + stopped_by, stopped_by  # the code as in a shell
        super().__init__(f"stopped by {stopped_by.name} {outcome}")


class Interrupted(Stopped):
    def __init__(self, stopped_by: signal.Signals, step: int, command: str) -> None:
        super().__init__(stopped_by, f"after step {step:,}, which is saved; resume with: {command}")


class Stop(Protocol):
    @property
    def requested(self) -> bool:
        """Whether it is to end; once true, it stays true."""


class AnyStop:
    """Requested once one of several is."""

    def __init__(self, *stops: Stop) -> None:
        self._stops = stops

    @property
    def requested(self) -> bool:
        return any(stop.requested for stop in self._stops)


class StopFlag:
    """A `Stop` that is requested by a signal, which `report` is told of once."""

    def __init__(self, report: Callable[[str], None] | None = None) -> None:
        self.signal: signal.Signals | None = None
        self.ended_by: signal.Signals | None = None
        """The second signal, which did not wait for what the first asked for."""
        self._report = report
        self._first_seen: dict[signal.Signals, float] = {}

    @property
    def requested(self) -> bool:
        return self.signal is not None

    def handle(self, number: int, frame: FrameType | None = None) -> None:
        """The signal handler: raises the flag; a second signal of the same kind, or a Ctrl-C, ends the process at once.

        Not one of another kind: Slurm's warning is followed by SIGTERM, and some time later by SIGKILL; and no SIGXCPU.
        """
        received, now = signal.Signals(number), time.monotonic()
        if self.signal is None:
            self.signal = received
            if self._report is not None:
                with suppress(RuntimeError):  # the signal may have come while stderr was written to
                    self._report(f"{received.name}: stopping once all is saved; another one stops at once")
        self._first_seen.setdefault(received, now)
        first = min(self._first_seen.values()) if received is signal.SIGINT else self._first_seen[received]
        if now - first >= _ECHO_SECONDS and received is not signal.SIGXCPU:
            self.ended_by = received
            raise KeyboardInterrupt if received is signal.SIGINT else SystemExit(128 + received)


_flags: list[StopFlag] = []
"""The flags of each `catch_signals` that this process is in."""


@contextmanager
def catch_signals(
    report: Callable[[str], None] | None = None, how_to_resume: Callable[[], str] | None = None
) -> Iterator[StopFlag]:
    """Route `SIGNALS` to a `StopFlag`, and restore the former handlers at the end.

    With `how_to_resume`, a second signal ends the block with `Stopped`, which says so. Python delivers signals to the
    main thread only; in any other the flag stays down. Libraries that install handlers themselves, as Ray does, must
    be started first.
    """
    stop = StopFlag(report)
    _flags.append(stop)
    try:
        with _handled_by(stop.handle):
            yield stop
    except (SystemExit, KeyboardInterrupt):  # within a call of Ray the exit code would be another one
        if stop.ended_by is None or how_to_resume is None:
            raise
        raise Stopped(stop.ended_by, f"at once; {how_to_resume()}") from None
    finally:
        _flags.remove(stop)


def stop_requested() -> signal.Signals | None:
    """The signal that has asked the run of this process to stop, if one has: for what waits far below its loop."""
    return next((flag.signal for flag in _flags if flag.signal is not None), None)


@contextmanager
def left_at_once(outcome: str) -> Iterator[None]:
    """End the work in the block at once on one of `SIGNALS`, with `Stopped`: for work that cannot be saved."""
    stop = StopFlag()

    def leave(number: int, frame: FrameType | None) -> None:
        again = stop.requested
        stop.handle(number, frame)
        if not again:
            raise KeyboardInterrupt  # the guards around a task's code would take SystemExit for the task's

    with _handled_by(leave):
        try:
            yield
        except BaseException:  # transformers reports an interrupted import as one that failed
            if stop.signal is None:
                raise
            raise Stopped(stop.signal, outcome) from None


@contextmanager
def _handled_by(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    caught = [number for number in SIGNALS if (number, signal.getsignal(number)) != (signal.SIGHUP, signal.SIG_IGN)]
    former = {number: signal.signal(number, handler) for number in caught}  # nohup ignores SIGHUP, and that stays
    try:
        yield
    finally:
        for number, before in former.items():
            # None: a handler that C code installed, which Python cannot put back.
            signal.signal(number, signal.SIG_DFL if before is None else before)
