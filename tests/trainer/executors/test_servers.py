"""Servers of a Ray that hang are killed, with a Ray that is made up; the real ones are in test_ray.py."""

from threading import Event, enumerate as threads
from types import SimpleNamespace
from typing import Any

import pytest

from tinyzero_trainer.errors import WorkerDiedError
from tinyzero_trainer.executors.ray import servers
from tinyzero_trainer.executors.ray.servers import SERVERS, check_servers, watched_servers


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
        return [(kind, SimpleNamespace(pid=SERVERS.index(kind) + 1)) for kind in self.killed]


def wait_until(condition: Any) -> None:
    pause = Event()
    for _ in range(10_000):
        if condition():
            return
        pause.wait(0.001)
    pytest.fail("not within 10 s")


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "PING_SECONDS", 0.005)
    monkeypatch.setattr(servers, "STOP_SECONDS", 0.02)


@pytest.mark.parametrize("kind", SERVERS)
def test_a_server_that_hangs_is_killed_and_named(kind: str) -> None:
    ray: Any = FakeRay()
    before = len(threads())
    with watched_servers(ray, timeout=0.05):
        wait_until(lambda: ray.pings > 3)
        check_servers(ray)
        ray.hangs[kind] = True
        wait_until(lambda: ray.killed)
        with pytest.raises(WorkerDiedError, match=rf"^Ray's {kind} \(process \d\) hangs: .* [\d.]+ s, and was killed; ray"):
            check_servers(ray)
    assert ray.killed == [kind]
    assert len(threads()) == before


@pytest.mark.parametrize("kind", SERVERS)
def test_once_a_signal_asks_the_run_to_stop_a_server_has_less_time(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ray: Any = FakeRay()
    ray.hangs[kind] = True
    with watched_servers(ray, timeout=1e9):
        Event().wait(0.05)
        assert not ray.killed
        monkeypatch.setattr(servers, "stop_requested", lambda: True)
        wait_until(lambda: ray.killed)


def test_one_that_hangs_at_the_end_does_not_keep_the_run() -> None:
    ray: Any = FakeRay()
    before = len(threads())
    with watched_servers(ray, timeout=1e9):
        ray.hangs["raylet"] = True
        Event().wait(0.02)
    assert ray.killed == ["raylet"]
    assert len(threads()) == before


def test_the_servers_of_a_cluster_are_not_this_runs_to_kill() -> None:
    ray: Any = SimpleNamespace(_private=SimpleNamespace(worker=SimpleNamespace(_global_node=None)))
    before = len(threads())
    with watched_servers(ray, timeout=0.01):
        assert len(threads()) == before
        check_servers(ray)
