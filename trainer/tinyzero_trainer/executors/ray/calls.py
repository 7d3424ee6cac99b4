"""Calls of actors: many at once, results in order, and one line about an actor that has died or hangs."""

import time
from collections.abc import Sequence
from typing import Any

from tinyzero_sdk.errors import TinyZeroError
from tinyzero_trainer.errors import EngineDiedError, WorkerDiedError, first_line
from tinyzero_trainer.executors.ray.base_actor import ActorHandle
from tinyzero_trainer.executors.ray.cluster import import_ray
from tinyzero_trainer.executors.ray.watch import PING_SECONDS, Pings, check_servers, describe_death, kill_process

GRACE_SECONDS = 15.0
"""After an error, to look for the death that caused it: other ranks first notice a broken connection."""

TICK_SECONDS = 0.2
"""Between two looks at actors that work."""

HANGS = "{}hangs: it has not answered for {:g} s, and was killed; ray.timeout sets how long it may"

LOST = ("DistBackendError", "DistNetworkError")
"""PyTorch's errors of a connection to another rank; gloo's own are RuntimeErrors that name it."""


Call = tuple[ActorHandle, Any]
"""The actor called, and Ray's reference to the result."""


def gather(
    calls: Sequence[Call],
    *,
    policy_intact: bool = False,
    returned: tuple[type[TinyZeroError], ...] = (),
) -> list[Any]:
    """The results in order.

    Args:
        calls: under way.
        policy_intact: whether the training ranks are as they were before the step.
        returned: errors that take the place of a result, once all actors have answered.

    Raises:
        WorkerDiedError: an actor has died; an actor hangs, and was killed; ranks lost each other.
        TinyZeroError: raised by an actor. Other exceptions are raised as Ray wraps them.
    """
    ray = import_ray()
    actors, results = {reference: actor for actor, reference in calls}, dict[Any, Any]()
    pending, failed, deadline = list(actors), list[tuple[ActorHandle, Any]](), float("inf")
    pings, next_ping = Pings(ray, actors), time.monotonic() + PING_SECONDS
    while pending and time.monotonic() < deadline:
        done, pending = ray.wait(pending, timeout=TICK_SECONDS)
        check_servers()
        hung = dict[Any, float]()
        if time.monotonic() >= next_ping:
            hung, next_ping = pings.unanswered(pending), time.monotonic() + PING_SECONDS
            pending = [reference for reference in pending if reference not in hung]
        for reference in [*done, *hung]:
            actor = actors[reference]
            if reference in hung:
                end = HANGS.format(kill_process(ray, actor), hung[reference])
                outcome: Any = WorkerDiedError(actor.name, end, policy_intact=policy_intact and not actor.trains)
            else:
                outcome = _outcome(ray, reference, actor, policy_intact)
            if isinstance(outcome, ray.exceptions.RayTaskError):
                failed.append((actor, outcome))
                deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
            elif isinstance(outcome, TinyZeroError) and not isinstance(outcome, returned):
                raise outcome
            else:
                results[reference] = outcome
    if failed:
        actor, failure = failed[0]
        if "gloo" in str(failure.cause) or type(failure.cause).__name__ in LOST:
            end = f"has lost its connection to another rank ({first_line(failure.cause)})"
            raise WorkerDiedError(actor.name, end, policy_intact=False) from failure
        failure.policy_intact = policy_intact and not actor.trains  # other ranks may still wait for this one
        raise failure
    return [results[reference] for _, reference in calls]


def _outcome(ray: Any, reference: Any, actor: ActorHandle, policy_intact: bool) -> Any:
    """The result of a call that is done, or the error in its place."""
    try:
        return ray.get(reference)
    except ray.exceptions.RayError as error:
        if not isinstance(error, ray.exceptions.RayTaskError):
            end = describe_death(ray, actor, error)
            return WorkerDiedError(actor.name, end, policy_intact=policy_intact and not actor.trains)
        if isinstance(error.cause, EngineDiedError):
            error.cause.worker = actor.name
        # Ray's own error is of the cause's type too, but has a message of many lines.
        return error.cause if isinstance(error.cause, TinyZeroError) else error
