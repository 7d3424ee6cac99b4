"""What a scorer can read besides its arguments: the clock, which can be moved, and what must not be read at all.

It replaces functions of Python's modules and is in place before a task is imported, so that any way to import them gets
the replacement. What C code asks of the system itself, such as `numpy.datetime64("now")`, it does not see; nor what a
module reads while it is imported.
"""

import ctypes
import gc
import locale
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from random import Random
from typing import Any, Self

READS = "tinyzero.reads"
"""The audit event of a read, with its name."""

_READERS = {
    os: (
        *("getpid", "getppid", "getcwd", "getcwdb", "getuid", "geteuid", "getlogin", "getloadavg", "cpu_count"),
        *("sched_getaffinity", "times", "stat", "lstat", "access"),
    ),
    platform: ("uname",),
    locale: ("getlocale", "setlocale", "localeconv", "getpreferredencoding", "getencoding"),
}
_HARMLESS = {"logging", "linecache", "_strptime"}
"""Modules whose reads change nothing that they return to a scorer."""

_DECADES = 30 * 365 * 86400.0  # seconds
_CLOCKS = ("time", "monotonic", "perf_counter", "process_time", "thread_time", "clock_gettime")


class Surroundings:
    """Unpickling it puts it in place in a process that scores, which keeps it for good."""

    def __init__(self, *, moves_clock: bool) -> None:
        self._chance = Random(0) if moves_clock else None
        self._ahead = 0.0  # seconds, of every clock

    @contextmanager
    def at_another_time(self) -> Iterator[None]:
        """Let every clock stand at a moment of the coming decades in the block, if it moves clocks."""
        self._ahead = self._chance.uniform(0, _DECADES) if self._chance else 0.0
        try:
            yield
        finally:
            self._ahead = 0.0

    def __reduce__(self) -> tuple[Callable[[bool], Self], tuple[bool]]:
        return type(self)._in_place, (self._chance is not None,)

    @classmethod
    def _in_place(cls, moves_clock: bool) -> Self:
        place = cls(moves_clock=moves_clock)
        for module, names in _READERS.items():
            for name in filter(lambda name: hasattr(module, name), names):
                setattr(module, name, _announced(getattr(module, name), f"{module.__name__}.{name}"))
        environment: Any = type(os.environ)
        environment.__getitem__ = _announced(environment.__getitem__, "os.environ")
        place._replace_clocks()
        return place

    def _replace_clocks(self) -> None:
        def moved(clock: Callable[..., Any], seconds: Callable[[], Any]) -> Callable[..., Any]:
            return lambda *which: clock(*which) + seconds()

        def given_now(function: Callable[..., Any]) -> Callable[..., Any]:
            return lambda seconds=None: function(time.time() if seconds is None else seconds)

        for name in _CLOCKS:
            setattr(time, name, moved(getattr(time, name), lambda: self._ahead))
            setattr(time, f"{name}_ns", moved(getattr(time, f"{name}_ns"), lambda: int(self._ahead * 1e9)))
        local, strftime, asctime = given_now(time.localtime), time.strftime, time.asctime
        time.localtime, time.gmtime, time.ctime = local, given_now(time.gmtime), given_now(time.ctime)
        time.strftime = lambda form, moment=None: strftime(form, moment or local())
        time.asctime = lambda moment=None: asctime(moment or local())
        # A subclass would not do: what was imported before, and C code, make values of the class itself.
        attributes = gc.get_referents(datetime.__dict__)[0]
        attributes["now"] = classmethod(lambda cls, tz=None: cls.fromtimestamp(time.time(), tz))
        attributes["utcnow"] = classmethod(lambda cls: cls.fromtimestamp(time.time(), UTC).replace(tzinfo=None))
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(datetime))


def _announced(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    def call(*arguments: Any, **named: Any) -> Any:
        if sys._getframe(1).f_globals.get("__name__") not in _HARMLESS:
            sys.audit(READS, name, *arguments)
        return function(*arguments, **named)

    return call
