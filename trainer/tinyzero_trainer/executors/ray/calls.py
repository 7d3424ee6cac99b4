"""Calls of actors: many at once, results in order, and one line about an actor that has died."""

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tinyzero_sdk.errors import TinyZeroError
from tinyzero_trainer.errors import EngineDiedError, WorkerDiedError
from tinyzero_trainer.executors.ray.cluster import import_ray

GRACE_SECONDS = 15.0
"""After an error, to look for the death that caused it: other ranks first notice a broken connection."""

TICK_SECONDS = 0.2
"""Between two calls of `meanwhile` while actors work."""

_DETAILS = {"process": r"\bpid: (\d+)", "machine": r"\bip: (\S+)", "kind": r"Worker exit type: (\w+)"}
"""Where Ray's message has them."""


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
    calls: Sequence[Call], *, meanwhile: Callable[[], None] | None = None, policy_intact: bool = False
) -> list[Any]:
    """The results in order.

    Args:
        calls: under way.
        meanwhile: called now and then; may raise to stop waiting.
        policy_intact: whether the training ranks are as they were before the step.

    Raises:
        WorkerDiedError: an actor has died.
        TinyZeroError: raised by an actor. Other exceptions are raised as Ray wraps them.
    """
    ray = import_ray()
    actors = {reference: actor for actor, reference in calls}
    pending, failed, deadline = list(actors), list[BaseException](), float("inf")
    while pending and time.monotonic() < deadline:
        done, pending = ray.wait(pending, timeout=TICK_SECONDS if meanwhile or failed else None)
        for reference in done:
            error = _error_of(ray, reference, actors[reference], policy_intact)
            if isinstance(error, TinyZeroError):
                raise error
            if error is not None:
                failed.append(error)
                deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
        if meanwhile is not None:
            meanwhile()
    if failed:
        raise failed[0]
    return [ray.get(reference) for _, reference in calls]


def _error_of(ray: Any, reference: Any, actor: ActorHandle, policy_intact: bool) -> BaseException | None:
    try:
        ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        # Ray's own error is of the cause's type too, but has a message of many lines.
        cause = error.cause
        if isinstance(cause, EngineDiedError):
            cause.worker = actor.name
        return cause if isinstance(cause, TinyZeroError) else error
    except ray.exceptions.RayError as error:
        died = WorkerDiedError(actor.name, _end_of(error), policy_intact=policy_intact and not actor.trains)
        died.__cause__ = error
        return died
    return None


def _end_of(error: Exception) -> str:
    """Which process an actor was and how it ended, in a few words taken from Ray's long message."""
    text = str(error).strip()
    if "creation task" in text:
        return f"could not start: {text.splitlines()[-1]}"
    matches = {key: re.search(pattern, text) for key, pattern in _DETAILS.items()}
    process, machine, kind = ((matches[key] or [None, None])[1] for key in _DETAILS)
    where = f" on {machine}" if machine else ""
    ended = "was ended, since its machine's memory had run out" if kind == "NODE_OUT_OF_MEMORY" else "has died"
    return f"(process {process}{where}) {ended}" if process else ended
