"""What is told of an actor that died, and how a Ray that was started for the run is ended."""

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from tinyzero_trainer.executors.ray import watch
from tinyzero_trainer.executors.ray.base_actor import ActorHandle
from tinyzero_trainer.executors.ray.watch import describe_death


@pytest.mark.parametrize("text", ["Worker exit type: NODE_OUT_OF_MEMORY", "due to the node running low on memory."])
def test_a_death_for_memory_by_ray_says_what_to_change(text: str) -> None:
    ray = SimpleNamespace(get=lambda place, timeout: place, exceptions=SimpleNamespace(RayError=RuntimeError))
    actor = ActorHandle("engine", None, False, process=(7, "node", "10.0.0.2"))
    expected = f"was killed by Ray, since its machine ran out of memory; {watch.HOST_ADVICE}"
    assert describe_death(ray, actor, RuntimeError(text)) == f"(process 7 on 10.0.0.2) {expected}"


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, "subprocess.Popen[bytes]"]]:
    """Processes with the names of Ray's, and one of its helpers."""
    monkeypatch.setattr(watch, "_started", [])
    processes = dict[str, "subprocess.Popen[bytes]"]()
    for name in (*watch.SERVERS, "log_monitor"):
        shutil.copy("/bin/sleep", tmp_path / name)
        processes[name] = subprocess.Popen([tmp_path / name, "100"])
    watch.look_after(map(psutil.Process, (process.pid for process in processes.values())))
    yield processes
    for process in processes.values():
        process.kill()
        process.wait()


def test_all_but_the_servers_are_killed_before_ray_is_shut_down(started: dict[str, "subprocess.Popen[bytes]"]) -> None:
    shut_down = []
    started["log_monitor"].kill()
    started["log_monitor"].wait()
    watch.shut_down(SimpleNamespace(shutdown=lambda: shut_down.append(started["raylet"].poll())))
    assert shut_down == [None]
