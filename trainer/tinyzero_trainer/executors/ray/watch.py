"""Notices what goes wrong below a run: actors that die or hang, and servers of a Ray that it has started.

Restarts are in executors/restart.py; how a run ends is in controller/ending.py.
"""

import os
import re
import signal
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tinyzero_trainer.errors import WorkerDiedError
from tinyzero_trainer.executors.ray.base_actor import ActorHandle
from tinyzero_trainer.utils.signals import stop_requested

SERVERS = {"gcs_server", "raylet"}

PING_SECONDS = 5.0
"""Between two pings; a trainer that was suspended itself counts at most one as missed."""

STOP_SECONDS = 20.0
"""Takes the place of `ray.timeout` once a signal has asked the run to stop: a scheduler soon kills it."""

TASK_SECONDS = 30.0  # to read a log, or to kill a process, on a machine of the cluster

HOST_ADVICE = "memory.cpu_offload=none, a lower reward.num_workers or fewer ranks on a machine take less of it"

_KILLS = "processes killed by the kernel for memory:"
_started = list[tuple[str, Any]]()  # Ray's processes that are children of this one, with their names


def look_after(processes: Iterable[Any]) -> None:
    """Remember the processes of a Ray that this one has started, for `check_servers` and `shut_down`."""
    _started.extend((process.name(), process) for process in processes)


def check_servers() -> None:
    """Raise a WorkerDiedError if a server of that Ray has died; one that hangs goes unnoticed."""
    for name, process in _started:
        if name in SERVERS and (not process.is_running() or process.status() == "zombie"):
            raise WorkerDiedError(f"Ray's {name} (process {process.pid})", "has died", policy_intact=False)


def shut_down(ray: Any) -> None:
    """Shut Ray down; all but its servers are killed, for each of which it would wait a second: SIGTERM is blocked."""
    for name, process in _started:
        if name not in SERVERS and process.is_running():
            process.kill()
    _started.clear()
    ray.shutdown()


class Pings:
    """Pings of actors that work: their other threads answer, unless the whole process hangs."""

    def __init__(self, ray: Any, actors: Mapping[Any, ActorHandle]) -> None:
        self._ray, self._actors = ray, actors
        # By call: the ping, and how many times it was not there yet. The first ping is the one of the actor's start.
        self._sent = {reference: (actor.process, 0) for reference, actor in actors.items()}

    def unanswered(self, pending: Sequence[Any]) -> dict[Any, float]:
        """Those of the pending calls whose actor hangs, and for how many seconds; called every `PING_SECONDS`."""
        pings, hung = list({ping for ping, _ in self._sent.values()}), dict[Any, float]()
        answered = self._ray.wait(pings, num_returns=len(pings), timeout=0)[0]
        for reference in pending:
            actor, (ping, missed) = self._actors[reference], self._sent[reference]
            if ping in answered:
                self._sent[reference] = (actor.handle.host.remote(), 0)
            elif ping is not actor.process:  # its process has started
                self._sent[reference] = (ping, missed + 1)
                seconds = (missed + 1) * PING_SECONDS
                if seconds >= (min(actor.timeout, STOP_SECONDS) if stop_requested() else actor.timeout):
                    hung[reference] = seconds
        return hung


def place_of(ray: Any, actor: ActorHandle) -> Any:
    """What `BaseActor.process` returned; None if it died or hung before."""
    with suppress(ray.exceptions.RayError):
        return ray.get(actor.process, timeout=1)


def run_on(ray: Any, node: str, function: Any, *args: Any) -> Any:
    """The result of a function in another process of Ray on a node; None if the node is gone, and Ray with it."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    strategy: Any = NodeAffinitySchedulingStrategy(node, soft=False)
    with suppress(ray.exceptions.RayError):
        task = ray.remote(function).options(num_cpus=0, max_retries=0, scheduling_strategy=strategy)
        return ray.get(task.remote(*args), timeout=TASK_SECONDS)


def kill_process(ray: Any, actor: ActorHandle) -> str:
    """Kill the process of an actor that hangs, which Ray would ask to exit; returns it for a message, if known."""
    if (place := place_of(ray, actor)) is None:
        return ""
    run_on(ray, place[1], lambda: os.kill(place[0], signal.SIGKILL))
    return f"(process {place[0]}) "


def describe_death(ray: Any, actor: ActorHandle, error: Exception) -> str:
    """What follows an actor's name in an error: its process, and how it ended, as far as its machine knows."""
    text, place = str(error).strip(), place_of(ray, actor)
    if "creation task" in text:
        return f"could not start: {text.splitlines()[-1]}"
    name = "" if place is None else f"(process {place[0]} on {place[2]}) "
    if "NODE_OUT_OF_MEMORY" in text or "running low on memory" in text:
        return f"{name}was killed by Ray, since its machine ran out of memory; {HOST_ADVICE}"
    if place is None:
        return "has died"
    cause, last_line = run_on(ray, place[1], find_reason, place[0]) or (None, "its log cannot be read")
    if cause is None:
        code, by = re.search(r"exit code (\d+)", text), re.search(r"receives a (SIG\w+)", text)
        silent = "it was killed from outside, or exited at once"
        cause = f"it got a {by[1]}" if by else f"it exited with code {code[1]}" if code else silent
    return f"(process {place[0]} on {place[2]}) has died: {cause}" + (f" ({last_line})" if last_line else "")


def log_oom_kills() -> None:
    """Write the kernel's OOM kills so far into this process's log; `find_reason` compares with them."""
    print(_KILLS, oom_kills(), file=sys.stderr, flush=True)


def find_reason(process: int) -> tuple[str | None, str]:
    """Why another process of Ray on this machine died, whose log is beside the own one."""
    (log,) = Path(os.readlink("/proc/self/fd/2")).parent.glob(f"worker-*-{process}.err")
    return reason_in(log.read_text(encoding="utf-8", errors="replace"), oom_kills())


def reason_in(log: str, kills: int) -> tuple[str | None, str]:
    """The cause, if the log or the OOM kills by now show it, else the log's last line."""
    if (before := re.search(rf"^{_KILLS} (\d+)$", log, re.MULTILINE)) and kills > int(before[1]):
        return f"the kernel's OOM killer ended it, since its machine ran out of memory; {HOST_ADVICE}", ""
    if crash := re.search(r"^Fatal Python error: (.+)$", log, re.MULTILINE):
        frame = re.search(r'^  File ".*?([^/"]+)", line (\d+) in (\w+)', log[crash.end() :], re.MULTILINE)
        return f"{crash[1]}" + (f" in {frame[3]}, {frame[1]}:{frame[2]}" if frame else ""), ""
    # Ray's own lines name the job and the actor, or have a date.
    lines = [line for line in log.splitlines() if line.strip() and not re.match(rf":\w+:|\[\d{{4}}-|{_KILLS}", line)]
    return None, f"its log ends with: {lines[-1].strip()[:200]}" if lines else ""


def oom_kills() -> int:
    """Processes that the kernel has killed for memory, in this container or else on this machine; 0 if unknown."""
    files = [Path("/sys/fs/cgroup/memory.events"), Path("/sys/fs/cgroup/memory/memory.oom_control")]
    text = next((file.read_text() for file in (*files, Path("/proc/vmstat")) if file.exists()), "")
    count = re.search(r"^oom_kill (\d+)$", text, re.MULTILINE)
    return int(count[1]) if count else 0
