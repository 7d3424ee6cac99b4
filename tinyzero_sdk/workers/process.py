"""A worker process: `WorkerProcess` for the parent, `main` for the child. What watches it is in `supervisor.py`.

The child runs `python -m tinyzero_sdk.workers.process` with its own socket, so it starts from any thread, needs no
`if __name__ == "__main__"` in a user's script, and discards what a task prints. It dies with a kill of its group and,
on Linux, with its parent. The caller decides what it serves.
"""

import contextlib
import fcntl
import glob
import mmap
import os
import pickle
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any, BinaryIO, Self

from tinyzero_sdk.errors import BrokenTaskError, TinyZeroError, describe_error
from tinyzero_sdk.tasks.unsafe_scorers import enter_worker

Service = Callable[[Any, Connection, "SharedTimer"], None]
"""What a worker runs, given what it has loaded (a task, as a rule): a module-level function, or a partial of one. The
worker exits when it returns."""

# There is one process per core, so libraries must not start a thread per core.
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class ClosesOnExit(ABC):
    """A context manager that closes with its block."""

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class SharedTimer:
    """What the child works on and since when, in 16 bytes of shared memory that the parent can read at any time."""

    SIZE = 16

    def __init__(self, fd: int) -> None:
        self._cells = memoryview(mmap.mmap(fd, self.SIZE)).cast("d")

    @classmethod
    def make_file(cls) -> BinaryIO:
        """The file of a timer, written so that a full disk is an error here and does not end the process later."""
        file = tempfile.TemporaryFile()  # noqa: SIM115
        file.write(bytes(cls.SIZE))
        file.flush()
        return file

    def start(self, index: int) -> float:
        """Start work on entry `index` of the job; return the start time, by `time.monotonic`."""
        # The time first: a parent that reads in between sees the old entry as new, never the new one as late.
        now = self._cells[0] = time.monotonic()
        self._cells[1] = index
        return now

    def stop(self) -> None:
        self._cells[1] = -1

    @property
    def started(self) -> float:
        """When work on the newest entry began."""
        return self._cells[0]

    @property
    def index(self) -> int | None:
        """The entry being worked on, or None."""
        return None if self._cells[1] < 0 else int(self._cells[1])

    @property
    def seconds(self) -> float:
        """Seconds since work on the entry began; 0 if there is none."""
        return 0.0 if self._cells[1] < 0 else time.monotonic() - self._cells[0]


class WorkerProcess:
    """The parent's handle of a worker. The first message is None (ready) or the error that prevented the start."""

    def __init__(
        self,
        loaded: bytes,
        service: Service,
        environment: Mapping[str, str] | None = None,
        *,
        outlives_parent: bool = False,
    ) -> None:
        """Start a worker that unpickles `loaded` and runs `service`, with further environment variables.

        `outlives_parent` is whether it goes on, with its connection closed, when this process is killed.
        """
        self.connection, theirs = Pipe()
        watchdog, self._watchdog = os.pipe()
        with theirs, SharedTimer.make_file() as shared:
            self.timer = SharedTimer(shared.fileno())
            self.timer.stop()
            descriptors = (theirs.fileno(), shared.fileno(), *(() if outlives_parent else (watchdog,)))
            self._process = subprocess.Popen(
                # -P: a file in the current directory must not stand in for a module of the library.
                [sys.executable, "-P", "-m", "tinyzero_sdk.workers.process", *map(str, descriptors)],
                pass_fds=descriptors,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,  # a process group to kill, and no Ctrl-C from the terminal
                env={**os.environ, **_ONE_THREAD, **(environment or {})},
            )
        os.close(watchdog)
        with contextlib.suppress(BrokenPipeError):  # it died at once, which the first `recv` notices
            self.connection.send(sys.path)
            self.connection.send_bytes(pickle.dumps(service))
            self.connection.send_bytes(loaded)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """The exit code after `kill`: its own if it had ended before, or minus the signal that ended it."""
        return self._process.returncode

    def has_ended(self) -> bool:
        """Whether the process is dead; it stays a zombie, so that its group id is not reused."""
        return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def kill(self) -> None:
        """End the process and every process it left in its group. What it sent can still be received."""
        if self._process.returncode is None:  # afterwards its group's id may be another's
            with contextlib.suppress(ProcessLookupError):  # another thread was faster
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def close(self) -> None:
        self.kill()
        self.connection.close()
        os.close(self._watchdog)


def kill_marked(variable: str) -> None:
    """End the processes with `NAME=VALUE` in their environment: what a task started outside of its group; on Linux."""
    for file in glob.glob("/proc/[0-9]*/environ"):
        with contextlib.suppress(OSError), open(file, "rb") as environment:  # it is gone, or another user's
            if variable.encode() in environment.read().split(b"\0"):
                os.kill(int(file.split("/")[2]), signal.SIGKILL)


def main() -> None:
    """Run the child; the arguments are the descriptors of its socket, its timer and, if it has one, its watchdog."""
    descriptors = [int(word) for word in sys.argv[1:]]
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    socket, shared, *watchdog = descriptors
    if watchdog:
        _die_with_parent(watchdog[0])
    enter_worker()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    try:
        connection = Connection(socket)  # open until the process has its exit code
        _serve(connection, SharedTimer(shared))
    except (EOFError, KeyboardInterrupt):
        pass  # the parent closed the connection; or the task raised it, since no signal does here
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)  # without waiting for threads or exit handlers of the task


def _die_with_parent(watchdog: int) -> None:
    # When the parent goes, however it goes, its end of the pipe closes and the kernel sends SIGIO, which ends the
    # group even amid a C call that holds the GIL. (Elsewhere than on Linux the next message ends it.)
    fcntl.fcntl(watchdog, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(watchdog, fcntl.F_SETFL, fcntl.fcntl(watchdog, fcntl.F_GETFL) | os.O_ASYNC)


def _serve(connection: Connection, timer: SharedTimer) -> None:
    sys.path[:] = connection.recv()
    service_bytes, loaded_bytes = connection.recv_bytes(), connection.recv_bytes()
    try:
        service: Service = pickle.loads(service_bytes)
        loaded = pickle.loads(loaded_bytes)
    except BaseException as error:  # importing a plugin may raise anything
        connection.send(to_picklable_error(error))
        return
    connection.send(None)
    service(loaded, connection, timer)


def address_space() -> int:
    """Bytes of address space that this process has in use; 0 if unknown, as elsewhere than on Linux."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[0]) * os.sysconf("SC_PAGESIZE")
    except OSError:
        return 0


def memory_allowed(limit: int) -> int:
    """Bytes of address space: the limit, or the system's own (`ulimit -v`) if that is lower."""
    _, allowed = resource.getrlimit(resource.RLIMIT_AS)
    return limit if allowed == resource.RLIM_INFINITY else min(limit, allowed)


def limit_memory(limit: int) -> None:
    """Limit this process's address space."""
    limit = memory_allowed(limit)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def to_picklable_error(error: BaseException) -> TinyZeroError:
    """`error` if it is a TinyZeroError, or else a BrokenTaskError that describes it, since it may not pickle."""
    if type(error).__module__ == TinyZeroError.__module__ and isinstance(error, TinyZeroError):
        return type(error)(str(error))
    return BrokenTaskError(f"the task raised {describe_error(error)}")


def count_cores() -> int:
    """Number of cores this process may use: a good number of workers."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def host_memory() -> tuple[int, int]:
    """Bytes of memory, total and free, within a container's limit."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    free = total
    for line in _read("/proc/meminfo").splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            free = int(value.split()[0]) * 1024
    limit, used = _read("/sys/fs/cgroup/memory.max"), _read("/sys/fs/cgroup/memory.current")
    if limit.isdigit():
        total = min(total, int(limit))
        free = min(free, max(0, int(limit) - int(used or 0)))
    return total, free


def _read(path: str) -> str:
    return Path(path).read_text(encoding="utf-8").strip() if Path(path).is_file() else ""


if __name__ == "__main__":
    main()
