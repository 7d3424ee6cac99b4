"""Notices what goes wrong below a run: actors that die or hang.

Restarts are in executors/restart.py; how a run ends is in controller/ending.py.
"""

import os
import re
import signal
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from tinyzero_trainer.executors.ray.base_actor import ActorHandle
from tinyzero_trainer.utils.signals import stop_requested

SERVERS = {"gcs_server", "raylet"}

PING_SECONDS = 5.0
"""Between two pings; a trainer that was suspended itself counts at most one as missed."""

STOP_SECONDS = 20.0
"""Takes the place of `ray.timeout` once a signal has asked the run to stop: a scheduler soon kills it."""

KILL_SECONDS = 30.0
"""To kill a process on a machine of the cluster."""

HOST_ADVICE = "memory.cpu_offload=none, a lower reward.num_workers or fewer ranks on a machine take less of it"

_started = list[tuple[str, Any]]()  # Ray's processes that are children of this one, with their names


def look_after(processes: Iterable[Any]) -> None:
    """Remember the processes of a Ray that this one has started, for `shut_down`."""
    _started.extend((process.name(), process) for process in processes)


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
        # By call: the ping, and how often it was looked for in vain. The first ping is the one of the actor's start.
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


def kill_process(ray: Any, actor: ActorHandle) -> str:
    """Kill the process of an actor that hangs, which Ray would ask to exit; returns it for a message, if known."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    if (place := place_of(ray, actor)) is None:
        return ""
    process, node, _ = place
    there: Any = NodeAffinitySchedulingStrategy(node, soft=False)
    with suppress(ray.exceptions.RayError):  # the node is gone, and Ray with it
        task = ray.remote(os.kill).options(num_cpus=0, max_retries=0, scheduling_strategy=there)
        ray.get(task.remote(process, signal.SIGKILL), timeout=KILL_SECONDS)
    return f"(process {process}) "


def describe_death(ray: Any, actor: ActorHandle, error: Exception) -> str:
    """What follows an actor's name in an error: its process, and how it ended, as far as Ray knows."""
    text, place = str(error).strip(), place_of(ray, actor)
    if "creation task" in text:
        return f"could not start: {text.splitlines()[-1]}"
    where = "" if place is None else f"(process {place[0]} on {place[2]})"
    if "NODE_OUT_OF_MEMORY" in text or "running low on memory" in text:
        return f"{where} was killed by Ray, since its machine ran out of memory; {HOST_ADVICE}".strip()
    if place is None:
        return "has died"
    code, by = re.search(r"exit code (\d+)", text), re.search(r"receives a (SIG\w+)", text)
    silent = "it was killed from outside, or exited at once"
    cause = f"it got a {by[1]}" if by else f"it exited with code {code[1]}" if code else silent
    return f"{where} has died: {cause}"
