"""Servers of a Ray that this process has started: whether they have died, and an end for one that hangs."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread
from typing import Any

from tinyzero_trainer.errors import WorkerDiedError
from tinyzero_trainer.utils.signals import stop_requested

SERVERS = ("gcs_server", "raylet")

PING_SECONDS = 5.0
"""Between two pings; a trainer that was suspended itself counts at most one as missed."""

STOP_SECONDS = 20.0
"""Takes the place of `ray.timeout` once a signal has asked the run to stop: a scheduler soon kills it."""

_hung: dict[int, float] = {}
"""By process, for how many seconds a server that was killed had not answered."""


def check_servers(ray: Any) -> None:
    """Raise a WorkerDiedError if a server of the Ray that this process started has died, or was killed as it hung.

    Ray's client gives up its `gcs_server` after 10 seconds, and then ends this process by itself.
    """
    node = ray._private.worker._global_node  # None: not connected; without processes: another one's Ray
    for kind, process in [] if node is None else node.dead_processes():
        if kind in SERVERS:
            end = "has died"
            if (seconds := _hung.get(process.pid)) is not None:
                end = f"hangs: it has not answered for {seconds:g} s, and was killed; ray.timeout sets how long it may"
            raise WorkerDiedError(f"Ray's {kind} (process {process.pid})", end, policy_intact=False)


@contextmanager
def watched_servers(ray: Any, timeout: float) -> Iterator[None]:
    """Kill a server that does not answer for so many seconds.

    Calls that wait for it do so inside Ray, for ever; they end as where it has died.
    """
    node = ray._private.worker._global_node
    if node is None or not any(node.all_processes.get(kind) for kind in SERVERS):
        yield
        return
    watch = _Watch(ray, node, timeout)
    watch.start()
    try:
        yield
    finally:
        watch.end()


class _Watch:
    """One thread pings, and may have to wait for ever; another one counts what is not answered."""

    def __init__(self, ray: Any, node: Any, timeout: float) -> None:
        self._ray, self._node, self._timeout, self._over = ray, node, timeout, Event()
        self._answers, self._pinged = 0, SERVERS[0]
        self._pinging, self._counting = (Thread(target=each, daemon=True) for each in (self._ping, self._count))

    def start(self) -> None:
        self._pinging.start()
        self._counting.start()

    def end(self) -> None:
        """End the pings, and with them a server that hangs now: Ray is not shut down while a thread is inside it."""
        self._over.set()
        self._pinging.join(STOP_SECONDS)
        if self._pinging.is_alive():
            self._kill(STOP_SECONDS)
            self._pinging.join(STOP_SECONDS)
        self._counting.join()

    def _ping(self) -> None:
        while not self._over.wait(PING_SECONDS):
            with suppress(Exception):  # one that has died is found elsewhere
                self._pinged = "gcs_server"
                self._ray.experimental.internal_kv._internal_kv_get(b"tinyzero")
                self._pinged = "raylet"
                self._ray.put(None)  # what it holds is in the raylet's memory
                self._answers += 1

    def _count(self) -> None:
        missed, before = 0, -1
        while not self._over.wait(PING_SECONDS):
            missed = missed + 1 if self._answers == before else 0
            before, seconds = self._answers, missed * PING_SECONDS
            if seconds >= (min(self._timeout, STOP_SECONDS) if stop_requested() else self._timeout):
                self._kill(seconds)
                return

    def _kill(self, seconds: float) -> None:
        for process in self._node.all_processes.get(self._pinged, ()):
            _hung[process.process.pid] = seconds
            process.process.kill()
