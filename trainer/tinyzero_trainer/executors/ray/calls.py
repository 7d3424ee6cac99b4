"""Calls of actors: many at once, results in order, and one line about an actor that has died."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tinyzero_sdk.errors import TinyZeroError
from tinyzero_trainer.errors import EngineDiedError, WorkerDiedError
from tinyzero_trainer.executors.ray.cluster import import_ray
from tinyzero_trainer.executors.ray.deaths import describe_death

GRACE_SECONDS = 15.0
"""After an error, to look for the death that caused it: other ranks first notice a broken connection."""

TICK_SECONDS = 0.2
"""Between two calls of `meanwhile` while actors work."""


@dataclass(frozen=True, slots=True)
class ActorHandle:
    """An actor of the run."""

    name: str
    """For messages: policy rank 1 of 2."""

    handle: Any
    """Ray's."""

    trains: bool
    """Whether only a checkpoint could restore its state."""


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
        WorkerDiedError: an actor has died.
        TinyZeroError: raised by an actor. Other exceptions are raised as Ray wraps them.
    """
    ray = import_ray()
    actors, results = {reference: actor for actor, reference in calls}, dict[Any, Any]()
    pending, failed, deadline = list(actors), list[BaseException](), float("inf")
    while pending and time.monotonic() < deadline:
        done, pending = ray.wait(pending, timeout=TICK_SECONDS if meanwhile or failed else None)
        for reference in done:
            try:
                results[reference] = _result(ray, reference, actors[reference], policy_intact)
            except returned as error:
                results[reference] = error
            except ray.exceptions.RayTaskError as error:
                failed.append(error)
                deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
        if meanwhile is not None:
            meanwhile()
    if failed:
        raise failed[0]
    return [results[reference] for _, reference in calls]


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
