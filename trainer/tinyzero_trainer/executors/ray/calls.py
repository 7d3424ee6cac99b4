"""Calls of actors: many at once, results in order, and one line about an actor that has died or hangs."""

import os
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from tinyzero_sdk.errors import TinyZeroError
from tinyzero_trainer.errors import EngineDiedError, WorkerDiedError, first_line
from tinyzero_trainer.executors.ray.cluster import import_ray
from tinyzero_trainer.executors.ray.deaths import describe_death
from tinyzero_trainer.executors.ray.servers import PING_SECONDS, STOP_SECONDS, check_servers
from tinyzero_trainer.utils.signals import stop_requested

GRACE_SECONDS = 15.0
"""After an error, to look for the death that caused it: other ranks first notice a broken connection."""

TICK_SECONDS = 0.2
"""Between two calls of `meanwhile` while actors work."""

START_SECONDS = 600.0
"""For an actor's process to start: on a shared file system all of them import PyTorch at the same time."""

KILL_SECONDS = 30.0
"""For a process on another machine to be killed."""


LOST = ("DistBackendError", "DistNetworkError")
"""PyTorch's errors of a connection to another rank; gloo's own are RuntimeErrors that name it."""


@dataclass(frozen=True, slots=True)
class ActorHandle:
    """An actor of the run."""

    name: str
    """For messages: policy rank 1 of 2."""

    handle: Any
    """Ray's."""

    trains: bool
    """Whether only a checkpoint could restore its state."""

    timeout: float = float("inf")
    """Seconds without an answer to a ping, after which it counts as hanging."""

    process: Any = None
    """Ray's reference to its process id and the id of its node."""


Call = tuple[ActorHandle, Any]
"""The actor called, and Ray's reference to the result."""


def gather(
    calls: Sequence[Call],
    *,
    meanwhile: Callable[[], None] | None = None,
    policy_intact: bool = False,
    returned: tuple[type[TinyZeroError], ...] = (),
) -> list[Any]:
    """The results in order.

    Args:
        calls: under way.
        meanwhile: called now and then; may raise to stop waiting.
        policy_intact: whether the training ranks are as they were before the step.
        returned: errors that take the place of a result, once all actors have answered.

    Raises:
        WorkerDiedError: an actor or a server of Ray has died; an actor hangs, and was killed; ranks lost each other.
        TinyZeroError: raised by an actor. Other exceptions are raised as Ray wraps them.
    """
    ray = import_ray()
    actors, results = {reference: actor for actor, reference in calls}, dict[Any, Any]()
    pending, failed, deadline = list(actors), list[tuple[ActorHandle, Any]](), float("inf")
    pings = _Pings(ray, actors)
    while pending and time.monotonic() < deadline:
        done, pending = ray.wait(pending, timeout=TICK_SECONDS)
        check_servers(ray)
        hung = pings.unanswered(pending)
        pending = [reference for reference in pending if reference not in hung]
        for reference in [*done, *hung]:
            try:
                if reference in hung:
                    raise _hang(actors[reference], hung[reference], policy_intact)
                results[reference] = _result(ray, reference, actors[reference], policy_intact)
            except returned as error:
                results[reference] = error
            except ray.exceptions.RayTaskError as error:
                failed.append((actors[reference], error))
                deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
        if meanwhile is not None:
            meanwhile()
    if failed:
        actor, failure = failed[0]
        if "gloo" in str(failure.cause) or type(failure.cause).__name__ in LOST:
            end = f"has lost its connection to another rank ({first_line(failure.cause)})"
            raise WorkerDiedError(actor.name, end, policy_intact=False) from failure
        raise failure
    return [results[reference] for _, reference in calls]


class _Pings:
    """Pings of actors that work: their other threads answer, unless the whole process hangs."""

    def __init__(self, ray: Any, actors: Mapping[Any, ActorHandle]) -> None:
        self._ray, self._actors, self._next = ray, actors, time.monotonic() + PING_SECONDS
        # By call: the ping, and how often it was looked for in vain. The first ping is the one of the actor's start.
        self._sent = {reference: (actor.process, 0) for reference, actor in actors.items()}

    def unanswered(self, pending: Sequence[Any]) -> dict[Any, float]:
        """Those of the pending calls whose actor hangs, and for how many seconds it has not answered."""
        if time.monotonic() < self._next:
            return {}
        self._next = time.monotonic() + PING_SECONDS
        pings, hung = list({ping for ping, _ in self._sent.values()}), dict[Any, float]()
        answered = self._ray.wait(pings, num_returns=len(pings), timeout=0)[0]
        for reference in pending:
            actor, (ping, missed) = self._actors[reference], self._sent[reference]
            if ping in answered:
                self._sent[reference] = (actor.handle.host.remote(), 0)
                continue
            self._sent[reference] = (ping, missed + 1)
            seconds = (missed + 1) * PING_SECONDS
            timeout = max(actor.timeout, START_SECONDS) if ping is actor.process else actor.timeout
            if seconds >= (min(timeout, STOP_SECONDS) if stop_requested() else timeout):
                hung[reference] = seconds
        return hung


def _hang(actor: ActorHandle, seconds: float, policy_intact: bool) -> WorkerDiedError:
    process = kill_process(actor)
    name = "" if process is None else f"(process {process}) "
    end = f"{name}hangs: it has not answered for {seconds:g} s, and was killed; ray.timeout sets how long it may"
    return WorkerDiedError(actor.name, end, policy_intact=policy_intact and not actor.trains)


def kill_process(actor: ActorHandle) -> int | None:
    """Kill the process of an actor that hangs, which Ray would ask to exit; returns its id, if that is known."""
    ray, process = import_ray(), None
    with suppress(Exception):  # it hung before it could tell its id, or its machine is gone
        process, node = ray.get(actor.process, timeout=TICK_SECONDS)
        if node == ray.get_runtime_context().get_node_id():
            os.kill(process, signal.SIGKILL)
        else:
            from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

            on_node: Any = NodeAffinitySchedulingStrategy(node, soft=False)
            task = ray.remote(_kill).options(num_cpus=0, max_retries=0, scheduling_strategy=on_node)
            ray.get(task.remote(process), timeout=KILL_SECONDS)
    return process


def _kill(process: int) -> None:
    os.kill(process, signal.SIGKILL)


def _result(ray: Any, reference: Any, actor: ActorHandle, policy_intact: bool) -> Any:
    try:
        return ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, EngineDiedError):
            error.cause.worker = actor.name
        if isinstance(error.cause, TinyZeroError):
            raise error.cause from None  # Ray's own error is of the cause's type too, but has a message of many lines
        raise
    except ray.exceptions.RayError as error:
        raise WorkerDiedError(
            actor.name, describe_death(error), policy_intact=policy_intact and not actor.trains
        ) from error
