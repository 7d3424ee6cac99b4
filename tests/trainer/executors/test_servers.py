"""Servers of a Ray that hang end what waits for them, with a Ray that is made up; the real ones are in test_ray.py."""

import os
import signal
from threading import Event
from threading import enumerate as threads
from types import SimpleNamespace
from typing import Any

import pytest

from tinyzero_trainer.errors import WorkerDiedError
from tinyzero_trainer.executors.ray import servers
from tinyzero_trainer.executors.ray.servers import SERVERS, check_servers, end_with_gcs_server, watched_servers


class FakeRay:
    """Its servers answer pings, unless they hang; where one is killed, what waits for it raises."""

    def __init__(self) -> None:
        self.alive = {kind: Event() for kind in SERVERS}
        self.hangs, self.killed, self.pings = dict.fromkeys(SERVERS, False), list[str](), 0
        processes = {
            kind: [SimpleNamespace(process=SimpleNamespace(pid=number, kill=lambda kind=kind: self._kill(kind)))]
            for number, kind in enumerate(SERVERS, 1)
        }
        node = SimpleNamespace(all_processes=processes, dead_processes=self._dead)
        self.shutdown = lambda: None
        self._private = SimpleNamespace(worker=SimpleNamespace(_global_node=node))
        kv = SimpleNamespace(_internal_kv_get=lambda _: self._answer("gcs_server"))
        self.experimental = SimpleNamespace(internal_kv=kv)

    def put(self, _: None) -> None:
        self._answer("raylet")
        self.pings += 1

    def _answer(self, kind: str) -> None:
        if self.hangs[kind]:
            self.alive[kind].wait()
            raise RuntimeError("Broken pipe")

    def _kill(self, kind: str) -> None:
        self.killed.append(kind)
        self.alive[kind].set()

    def _dead(self) -> list[tuple[str, Any]]:
        return [(kind, SimpleNamespace(pid=[*SERVERS, "log_monitor"].index(kind) + 1)) for kind in self.killed]


class Node:
    """Of a Ray, which only its own frames refer to while it is started."""

    def __init__(self, all_processes: Any, dead_processes: Any) -> None:
        self.all_processes, self.dead_processes = all_processes, dead_processes

    def start(self, wait: Any) -> None:
        wait()


def wait_until(condition: Any) -> None:
    pause = Event()
    for _ in range(10_000):
        if condition():
            return
        pause.wait(0.001)
    pytest.fail("not within 10 s")


@pytest.fixture(autouse=True)
def codes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """With which the process was ended; everything is quick."""
    codes = list[int]()
    servers._hung.clear()
    for name, seconds in (("PING", 0.005), ("STOP", 0.02), ("GRACE", 0.2), ("GCS", 0.02), ("POLL", 0.005)):
        monkeypatch.setattr(servers, f"{name}_SECONDS", seconds)
    monkeypatch.setattr(os, "_exit", codes.append)
    return codes


@pytest.mark.slow
@pytest.mark.parametrize("kind", SERVERS)
def test_a_server_that_hangs_is_named_and_what_waits_for_it_is_ended(
    kind: str, codes: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    ray: Any = FakeRay()
    before = len(threads())
    with watched_servers(ray, timeout=0.05):
        wait_until(lambda: ray.pings > 3)
        check_servers(ray)
        ray.hangs[kind] = True
        wait_until(lambda: servers._hung)
        with pytest.raises(
            WorkerDiedError, match=rf"^Ray's {kind} \(process \d\) hangs: .* [\d.]+ s; ray\.timeout sets"
        ):
            check_servers(ray)
        assert not ray.killed
        wait_until(lambda: codes)
    assert (ray.killed, codes) == (list(SERVERS), [2])
    assert "--resume resumes what is saved" in capsys.readouterr().err
    assert len(threads()) == before


@pytest.mark.slow
def test_once_a_signal_asks_the_run_to_stop_a_server_has_less_time(codes: list[int]) -> None:
    ray: Any = FakeRay()
    ray.hangs["raylet"] = True
    with watched_servers(ray, timeout=1e9):
        Event().wait(0.05)
        assert not codes
        former = signal.signal(signal.SIGTERM, lambda *_: None)
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            wait_until(lambda: codes)
        finally:
            signal.signal(signal.SIGTERM, former)
    assert codes == [143]
    assert signal.set_wakeup_fd(-1) == -1


@pytest.mark.parametrize("seconds_before", [0.0, 0.02])  # in which no ping, or one, begins
def test_one_that_hangs_at_the_end_does_not_keep_the_run(seconds_before: float, codes: list[int]) -> None:
    ray: Any = FakeRay()
    with watched_servers(ray, timeout=1e9):
        ray.hangs["gcs_server"] = True
        Event().wait(seconds_before)
    assert (ray.killed, codes) == (list(SERVERS), [2])


@pytest.mark.slow
def test_a_slow_end_of_servers_that_answer_is_no_hang_nor_is_the_death_of_another_process(codes: list[int]) -> None:
    ray: Any = FakeRay()
    ray.killed.append("log_monitor")
    ray.shutdown = lambda: Event().wait(0.5)
    with watched_servers(ray, timeout=0.05):
        Event().wait(0.2)
        check_servers(ray)
    assert (ray.killed, codes) == (["log_monitor"], [])


def test_a_run_that_waits_inside_ray_for_a_dead_gcs_server_is_ended(
    codes: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    ray: Any = FakeRay()
    stop = end_with_gcs_server(ray)
    ray._kill("gcs_server")
    wait_until(lambda: codes)
    stop()
    assert (ray.killed, codes) == (["gcs_server", *SERVERS], [2])
    assert "error: Ray's gcs_server (process 1) has died; what waits for it was ended; --res" in capsys.readouterr().err


def test_a_ray_that_loses_its_gcs_server_while_it_starts_is_ended(codes: list[int]) -> None:
    ray: Any = FakeRay()
    node, ray._private.worker._global_node = ray._private.worker._global_node, None
    ray._private.node = SimpleNamespace(Node=Node)
    stop = end_with_gcs_server(ray)
    ray._kill("gcs_server")
    Event().wait(0.05)
    assert not codes  # nothing is known of it
    Node(node.all_processes, node.dead_processes).start(lambda: wait_until(lambda: codes))
    stop()
    assert codes == [2]


@pytest.mark.parametrize("server", ["raylet", None])
def test_a_run_that_ends_by_itself_is_left_alone(server: str | None, codes: list[int]) -> None:
    ray: Any = FakeRay()
    before = len(threads())
    stop = end_with_gcs_server(ray)
    if server is not None:
        ray._kill(server)
    Event().wait(0.05)
    stop()
    assert (codes, len(threads())) == ([], before)


def test_the_servers_of_a_cluster_are_not_this_runs_to_end() -> None:
    shut_down = list[bool]()
    worker = SimpleNamespace(_global_node=None)
    ray: Any = SimpleNamespace(_private=SimpleNamespace(worker=worker), shutdown=lambda: shut_down.append(True))
    before = len(threads())
    with watched_servers(ray, timeout=0.01):
        assert len(threads()) == before
        check_servers(ray)
    assert shut_down == [True]
