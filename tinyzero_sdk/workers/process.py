"""A worker process, seen from both ends: `WorkerProcess` for the parent, `main` for the child.

It is `python -m tinyzero_sdk.workers.process` with a socket of its own, so it starts from any thread, needs no
`if __name__ == "__main__"` in a user's script, and what a task prints cannot get into our output. It
outlives neither a kill of its group nor, on Linux, its parent. What it serves is up to the caller.
"""

import contextlib
import fcntl
import mmap
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection, Pipe
from typing import TYPE_CHECKING

from tinyzero_sdk.errors import BrokenTaskError, TinyZeroError, describe_error
from tinyzero_sdk.tasks.unsafe_scorers import enter_worker

if TYPE_CHECKING:
    from tinyzero_sdk.tasks.task import Task

Service = Callable[["Task", Connection, "SharedTimer"], None]
"""What a worker does: a module-level function (or a partial of one) that returns when the worker shall end."""

# One process per core is the plan, so libraries that would start a thread per core must not.
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class SharedTimer:
    """What the child works on and since when, in 16 bytes that its parent can read at any moment."""

    SIZE = 16

    def __init__(self, fd: int) -> None:
        self._cells = memoryview(mmap.mmap(fd, self.SIZE)).cast("d")

    def start(self, index: int) -> float:
        """Work on entry `index` of the job begins now: by `time.monotonic`, at the time returned."""
        # The time first: a parent that looks in between sees the old entry as just begun, never the new one as late.
        now = self._cells[0] = time.monotonic()
        self._cells[1] = index
        return now

    def stop(self) -> None:
        """No entry is being worked on."""
        self._cells[1] = -1

    @property
    def index(self) -> int | None:
        """The entry being worked on."""
        return None if self._cells[1] < 0 else int(self._cells[1])

    @property
    def seconds(self) -> float:
        """For how long it has been worked on; 0 if none is."""
        return 0.0 if self._cells[1] < 0 else time.monotonic() - self._cells[0]


class WorkerProcess:
    """The parent's handle of a worker. The first message received is None (ready) or the error that stopped it."""

    def __init__(self, task: bytes, service: Service, environment: Mapping[str, str] | None = None) -> None:
        """
        Args:
            task: the pickled task; the worker loads it by name or path and refuses another version.
            service: what it shall do.
            environment: variables that it gets beside ours.
        """
        self.connection, theirs = Pipe()
        lifeline, self._lifeline = os.pipe()
        with theirs, tempfile.TemporaryFile() as shared:
            shared.truncate(SharedTimer.SIZE)
            self.timer = SharedTimer(shared.fileno())
            self.timer.stop()
            descriptors = (theirs.fileno(), lifeline, shared.fileno())
            self._process = subprocess.Popen(
                # -P: a file in the current directory must not stand in for a module of the library.
                [sys.executable, "-P", "-m", "tinyzero_sdk.workers.process", *map(str, descriptors)],
                pass_fds=descriptors,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                start_new_session=True,  # a process group to kill, and no Ctrl-C from the terminal
                env={**os.environ, **_ONE_THREAD, **(environment or {})},
            )
        os.close(lifeline)
        with contextlib.suppress(BrokenPipeError):  # it died at once; whoever waits for it will see
            self.connection.send(sys.path)
            self.connection.send_bytes(pickle.dumps(service))
            self.connection.send_bytes(task)

    def has_ended(self) -> bool:
        """Whether the process is dead; it stays a zombie, so that its group's number is not given away."""
        return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def kill(self) -> None:
        """End the process and every process it left in its group. What it sent can still be received."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def close(self) -> None:
        """Kill, and give back every resource."""
        self.kill()
        self.connection.close()
        os.close(self._lifeline)


def main() -> None:
    """The child's whole life; the arguments are the descriptors of its socket, its lifeline and its timer."""
    descriptors = [int(word) for word in sys.argv[1:]]
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    socket, lifeline, shared = descriptors
    _die_with_parent(lifeline)
    enter_worker()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    try:
        _serve(Connection(socket), SharedTimer(shared))
    except EOFError:
        pass  # the parent is done with us
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)  # without waiting for threads or exit handlers of the task


def _die_with_parent(lifeline: int) -> None:
    # When the parent goes, however it goes, its end of the pipe closes and the kernel sends SIGIO, which ends the
    # group even amid a C call that holds the GIL. (Elsewhere than on Linux the next message ends it.)
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)


def _serve(connection: Connection, timer: SharedTimer) -> None:
    sys.path[:] = connection.recv()
    service_bytes, task_bytes = connection.recv_bytes(), connection.recv_bytes()
    try:
        service: Service = pickle.loads(service_bytes)
        task = pickle.loads(task_bytes)
    except BaseException as error:  # importing a plugin may raise anything
        connection.send(to_picklable_error(error))
        return
    connection.send(None)
    service(task, connection, timer)


def to_picklable_error(error: BaseException) -> TinyZeroError:
    """`error`, if it is one of the family, else a BrokenTaskError that tells of it: a plugin's may not pickle."""
    if type(error).__module__ == TinyZeroError.__module__ and isinstance(error, TinyZeroError):
        return type(error)(str(error))
    return BrokenTaskError(f"the task raised {describe_error(error)}")


def count_cores() -> int:
    """How many cores this process may use: a good number of workers."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


if __name__ == "__main__":
    main()
