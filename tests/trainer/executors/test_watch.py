"""What is told of an actor that died, from its own log on its own machine; and of a server of Ray that did."""

import ctypes
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from tests.trainer.processes import in_own_process
from tinyzero_trainer.errors import WorkerDiedError
from tinyzero_trainer.executors.ray import watch
from tinyzero_trainer.executors.ray.base_actor import ActorHandle, BaseActor
from tinyzero_trainer.executors.ray.calls import gather
from tinyzero_trainer.executors.ray.cluster import import_ray
from tinyzero_trainer.executors.ray.watch import check_servers, describe_death, reason_in

BEFORE = "processes killed by the kernel for memory: 3\n"
CRASH = """:actor_name:TrainerActor
[2026-11-23 06:26:58,486 E 25203 25289] logging.cc:474: *** SIGSEGV received at time=1795415218 on cpu 1 ***
Fatal Python error: Segmentation fault

Stack (most recent call first):
  File "/usr/lib/python3.11/ctypes/__init__.py", line 519 in string_at
  File "/home/a/train.py", line 8 in die
"""


@pytest.mark.parametrize(
    ("log", "kills", "cause", "words"),
    [
        (BEFORE, 4, f"the kernel's OOM killer ended it, since its machine ran out of memory; {watch.HOST_ADVICE}", ""),
        (BEFORE + CRASH, 3, "Segmentation fault in string_at, __init__.py:519", ""),
        (BEFORE + "terminate called\nNCCL error: unhandled\n\n", 3, None, "its log ends with: NCCL error: unhandled"),
        (":job_id:01000000\n:actor_name:A\n" + BEFORE, 3, None, ""),
        ("", 9, None, ""),
    ],
)
def test_the_reason_is_what_the_log_shows(log: str, kills: int, cause: str | None, words: str) -> None:
    assert reason_in(log, kills) == (cause, words)


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


@pytest.mark.parametrize("name", sorted(watch.SERVERS))
def test_a_server_that_has_died_ends_the_run(name: str, started: dict[str, "subprocess.Popen[bytes]"]) -> None:
    check_servers()
    process = started[name]
    process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # nobody has asked for its end
    for _ in range(2):
        with pytest.raises(WorkerDiedError, match=rf"^Ray's {name} \(process {process.pid}\) has died$") as error:
            check_servers()
        assert not error.value.policy_intact
        process.wait()


def test_all_but_the_servers_are_killed_before_ray_is_shut_down(started: dict[str, "subprocess.Popen[bytes]"]) -> None:
    shut_down = []
    started["log_monitor"].kill()
    started["log_monitor"].wait()
    check_servers()  # it is none
    watch.shut_down(SimpleNamespace(shutdown=lambda: shut_down.append(started["raylet"].poll())))
    assert shut_down == [None]
    started["raylet"].kill()
    started["raylet"].wait()
    check_servers()  # of a Ray that is over


class Actor(BaseActor):
    """It dies as it is told to."""

    def __init__(self) -> None:
        watch.log_oom_kills()

    def die(self, how: str) -> None:
        ways: dict[str, Callable[[], object]] = {
            "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
            "segfault": lambda: ctypes.string_at(0),
            "exit": lambda: sys.exit(3),
            "words": lambda: (print("the GPU is lost", file=sys.stderr, flush=True), os._exit(1)),
        }
        ways[how]()


def deaths_of(ways: tuple[str, ...]) -> list[str]:
    ray, said = import_ray(), list[str]()
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=2**28)
    try:
        for how in ways:
            handle = ray.remote(Actor).remote()
            actor = ActorHandle("policy rank 0 of 2", handle, trains=True, process=handle.process.remote())
            ray.get(actor.process)  # else it may die before it has told
            with pytest.raises(WorkerDiedError) as raised:
                gather([(actor, actor.handle.die.remote(how))])
            said.append(str(raised.value))
    finally:
        ray.shutdown()
    return said


@pytest.mark.nightly(reason="starts Ray for each kind of death; what its logs say is tested with every change")
def test_a_real_death_is_told_with_its_reason(tmp_path: Path) -> None:
    expected = {
        "killed": "it was killed from outside, or exited at once",
        "segfault": r"Segmentation fault in string_at, __init__.py:\d+",
        "exit": "it exited with code 3",
        "words": r"it was killed from outside, or exited at once \(its log ends with: the GPU is lost\)",
    }
    for said, reason in zip(in_own_process(deaths_of, tmp_path, tuple(expected)), expected.values(), strict=True):
        assert re.fullmatch(rf"policy rank 0 of 2 \(process \d+ on \S+\) has died: {reason}", said)
