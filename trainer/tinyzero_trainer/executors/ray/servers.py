"""Servers of a Ray that this process has started: whether they have died, and an end for one that hangs."""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread
from traceback import walk_stack
from types import FrameType
from typing import Any

from tinyzero_trainer.errors import WorkerDiedError
from tinyzero_trainer.utils.signals import SIGNALS, stop_requested

SERVERS = ("gcs_server", "raylet")

PING_SECONDS = 5.0
"""Between two pings; a trainer that was suspended itself counts at most one as missed."""

STOP_SECONDS = 20.0
"""Takes the place of `ray.timeout` once a signal has asked the run to stop: a scheduler soon kills it."""

GRACE_SECONDS = 15.0
"""For a run to end by itself once a server hangs."""

GCS_SECONDS = 8.0
"""For a run to end by itself once its `gcs_server` has died: after 10, Ray ends it without a word of ours."""

POLL_SECONDS = 0.5
"""Between two looks at the `gcs_server`."""

_hung: dict[int, float] = {}
"""By process, for how many seconds a server that hangs has not answered."""


def check_servers(ray: Any) -> None:
    """Raise a WorkerDiedError if a server of the Ray that this process started has died or hangs.

    Ray's client gives up its `gcs_server` after 10 seconds, and then ends this process by itself.
    """
    node = ray._private.worker._global_node  # None: not connected; without processes: another one's Ray
    for kind, process in [] if node is None else node.dead_processes():
        if kind in SERVERS and process.pid not in _hung:
            raise WorkerDiedError(f"Ray's {kind} (process {process.pid})", "has died", policy_intact=False)
    for kind, process in [] if node is None else _processes(node):
        if (seconds := _hung.get(process.pid)) is not None:
            raise WorkerDiedError(f"Ray's {kind} (process {process.pid})", _end(seconds), policy_intact=False)


def end_with_gcs_server(ray: Any) -> Callable[[], None]:
    """End this process with a last line if it has not ended by itself `GCS_SECONDS` after its `gcs_server` died.

    To be called before this thread starts Ray. Returns a call that ends the watch.
    """
    starting, over = threading.get_ident(), Event()

    def watch() -> None:
        polls = 0
        while not over.wait(POLL_SECONDS):
            dead = _dead_gcs_server(ray, starting)
            polls = 0 if dead is None else polls + 1
            if dead is not None and polls * POLL_SECONDS >= GCS_SECONDS:
                node, process = dead
                _end_process(node, f"Ray's gcs_server (process {process.pid}) has died", 2)
                return

    thread = Thread(target=watch, daemon=True)
    thread.start()

    def stop() -> None:
        over.set()
        thread.join()

    return stop


def _dead_gcs_server(ray: Any, starting: int) -> tuple[Any, Any] | None:
    """The node and the process, where the Ray that this thread has started, or is starting, has lost it."""
    node = ray._private.worker._global_node
    if node is None and (frame := sys._current_frames().get(starting)) is not None:
        node = node_in(ray, (frame for frame, _ in walk_stack(frame)))
    for kind, process in [] if node is None else node.dead_processes():
        if kind == "gcs_server" and process.pid not in _hung:
            return node, process
    return None


def node_in(ray: Any, frames: Iterable[FrameType]) -> Any:
    """What is being started of a Ray: it has no other reference to it than in these frames; None if nothing is."""
    nodes = (frame.f_locals.get("self") for frame in frames)
    return next((node for node in nodes if isinstance(node, ray._private.node.Node)), None)


def _end_process(node: Any, why: str, code: int) -> None:
    """End this process and what it has started of Ray, as by a kill but with a last line."""
    sys.stderr.write(f"error: {why}; what waits for it was ended; --resume resumes what is saved\n")
    sys.stderr.flush()
    for processes in node.all_processes.values():
        for info in processes:
            info.process.kill()
    os._exit(code)


@contextmanager
def watched_servers(ray: Any, timeout: float) -> Iterator[None]:
    """Shut Ray down at the end; end what waits for a server that does not answer for so many seconds.

    It would wait for ever, inside Ray.

    The run first gets time to end by itself (`check_servers`). If it waits for the server, too, this process is ended,
    as by a kill but with a last line: to kill the server instead would end it as well, by Ray and without one.
    """
    node = ray._private.worker._global_node
    if node is None or not any(_processes(node)):
        try:
            yield
        finally:
            ray.shutdown()
        return
    with _arriving_signals() as arrived:
        watch = _Watch(ray, node, timeout, arrived)
        watch.start()
        try:
            yield
        finally:
            watch.shut_down()


@contextmanager
def _arriving_signals() -> Iterator[Callable[[], int | None]]:
    """The first signal that asks the run to stop, also while the main thread is inside Ray, where no handler runs."""
    if threading.current_thread() is not threading.main_thread():
        yield stop_requested
        return
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    former = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    seen = list[int]()

    def arrived() -> int | None:
        with suppress(BlockingIOError):
            seen.extend(number for number in os.read(reader, 4096) if number in SIGNALS)
        return next(iter(seen), stop_requested())

    try:
        yield arrived
    finally:
        signal.set_wakeup_fd(former)
        os.close(reader)
        os.close(writer)


def _processes(node: Any) -> Iterator[tuple[str, Any]]:
    return ((kind, info.process) for kind in SERVERS for info in node.all_processes.get(kind, ()))


def _end(seconds: float) -> str:
    return f"hangs: it has not answered for {seconds:g} s; ray.timeout sets how long it may"


class _Watch:
    """One thread pings, and may have to wait for ever; another one counts what is not answered."""

    def __init__(self, ray: Any, node: Any, timeout: float, arrived: Callable[[], int | None]) -> None:
        self._ray, self._node, self._timeout, self._arrived = ray, node, timeout, arrived
        self._is_ending, self._over = Event(), Event()
        self._answers, self._pinged = 0, SERVERS[0]
        self._pinging, self._counting = (Thread(target=each, daemon=True) for each in (self._ping, self._count))

    def start(self) -> None:
        self._pinging.start()
        self._counting.start()

    def shut_down(self) -> None:
        """Shut Ray down, once a last ping has told that its servers answer, and end the threads."""
        self._is_ending.set()
        self._pinging.join()
        # Ray would wait a second for each: it sends SIGTERM, which is blocked in them.
        for info in (info for kind, each in self._node.all_processes.items() if kind not in SERVERS for info in each):
            info.process.kill()
        try:
            self._ray.shutdown()
        finally:
            self._over.set()
            self._counting.join()

    def _ping(self) -> None:
        is_last = False
        while not is_last:
            is_last = self._is_ending.wait(PING_SECONDS)
            # Found elsewhere; a put into a raylet that has died would end this process.
            if any(kind in SERVERS for kind, _ in self._node.dead_processes()):
                continue
            with suppress(Exception):
                self._pinged = "gcs_server"
                self._ray.experimental.internal_kv._internal_kv_get(b"tinyzero")
                self._pinged = "raylet"
                self._ray.put(None)  # what it holds is in the raylet's memory
                self._answers += 1

    def _count(self) -> None:
        missed, before = 0, -1
        while not self._over.wait(PING_SECONDS):
            missed = missed + 1 if self._answers == before and self._pinging.is_alive() else 0
            before, seconds = self._answers, missed * PING_SECONDS
            is_short = self._arrived() is not None or self._is_ending.is_set()
            if seconds >= (min(self._timeout, STOP_SECONDS) if is_short else self._timeout):
                self._end_what_waits(seconds)
                return

    def _end_what_waits(self, seconds: float) -> None:
        hung = [process for kind, process in _processes(self._node) if kind == self._pinged]
        _hung.update((process.pid, seconds) for process in hung)
        if self._over.wait(GRACE_SECONDS):
            return
        name = f"Ray's {self._pinged} (process {', '.join(str(process.pid) for process in hung)})"
        number = self._arrived()
        _end_process(self._node, f"{name} {_end(seconds)}", 2 if number is None else 128 + number)
