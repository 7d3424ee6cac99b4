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
from collections.abc import Callable
from datetime import UTC, datetime
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

_CLOCKS = ("time", "monotonic", "perf_counter", "process_time", "thread_time", "clock_gettime")


class Surroundings:
    """Unpickling it puts it in place in a process that scores, which keeps it for good."""

    ahead = 0.0
    """Seconds by which every clock is ahead."""

    def __reduce__(self) -> tuple[Callable[[], Self], tuple[()]]:
        return type(self)._in_place, ()

    @classmethod
    def _in_place(cls) -> Self:
        place = cls()
        for module, names in _READERS.items():
            for name in filter(lambda name: hasattr(module, name), names):
                setattr(module, name, _announced(getattr(module, name), f"{module.__name__}.{name}"))
        environment: Any = type(os.environ)
        environment.__getitem__ = _announced(environment.__getitem__, "os.environ")
        for name in _CLOCKS:
            setattr(time, name, _sum_of(getattr(time, name), lambda: place.ahead))
            setattr(time, f"{name}_ns", _sum_of(getattr(time, f"{name}_ns"), lambda: int(place.ahead * 1e9)))
        for name in ("localtime", "gmtime", "ctime"):
            setattr(time, name, _of_now(getattr(time, name), time.time))
        for name, arguments in (("strftime", 2), ("asctime", 1)):
            setattr(time, name, _of_now(getattr(time, name), time.localtime, arguments))
        # A subclass would not do: what was imported before, and C code, make values of the class itself.
        attributes = gc.get_referents(datetime.__dict__)[0]
        attributes["now"] = classmethod(lambda cls, tz=None: cls.fromtimestamp(time.time(), tz))
        attributes["utcnow"] = classmethod(lambda cls: cls.fromtimestamp(time.time(), UTC).replace(tzinfo=None))
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(datetime))
        return place


def _sum_of(clock: Callable[..., Any], seconds: Callable[[], Any]) -> Callable[..., Any]:
    return lambda *which: clock(*which) + seconds()


def _of_now(function: Callable[..., Any], now: Callable[[], Any], arguments: int = 1) -> Callable[..., Any]:
    """The function with the present time as its last argument, if that is not given."""
    return lambda *given: function(*given) if len(given) == arguments else function(*given, now())


def _announced(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    def call(*arguments: Any, **named: Any) -> Any:
        if sys._getframe(1).f_globals.get("__name__") not in _HARMLESS:
            sys.audit(READS, name, *arguments)
        return function(*arguments, **named)

    return call
