"""Calls to actors: all at once, answers in order, and one line about the one that has died."""

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from tinyzero_sdk.errors import TinyZeroError
from tinyzero_trainer.errors import WorkerDiedError
from tinyzero_trainer.executors.ray.cluster import import_ray

GRACE_SECONDS = 15.0
"""After an error to look for the death that is behind it: what a rank's neighbours notice first is a broken line."""

_TOLD = {"process": r"\bpid: (\d+)", "machine": r"\bip: (\S+)", "kind": r"Worker exit type: (\w+)"}
"""Where Ray's message tells what."""

Result = TypeVar("Result")

TICK_SECONDS = 0.2
"""Between two looks at whatever else is to be done while actors work."""


@dataclass(frozen=True, slots=True)
class ActorHandle:
    """An actor of the run."""

    name: str
    """For messages: policy rank 1 of 2."""

    actor: Any
    """Ray's handle."""

    learns: bool
    """Whether what it holds cannot be had again without a checkpoint."""


class NoCapacityError(WorkerDiedError):
    """Nothing can be started where one has died, as where its machine is gone: it is not tried again."""


Call = tuple[ActorHandle, Any]
"""Who was asked, and Ray's reference to the answer."""


def gather(calls: Sequence[Call], *, meanwhile: Callable[[], None] | None = None, whole: bool = False) -> list[Any]:
    """The answers in order.

    Args:
        calls: under way.
        meanwhile: called now and then; may raise to stop waiting.
        whole: whether those that learn are as they were before the step.

    Raises:
        WorkerLost: an actor has died.
        TinyZeroError: whatever one of them raised; what is none of these is raised as Ray does.
    """
    ray = import_ray()
    members = {answer: member for member, answer in calls}
    pending, failed, deadline = list(members), list[BaseException](), float("inf")
    while pending and time.monotonic() < deadline:
        done, pending = ray.wait(pending, timeout=TICK_SECONDS if meanwhile or failed else None)
        for answer in done:
            error = _error_of(ray, answer, members[answer], whole)
            if isinstance(error, TinyZeroError):
                raise error
            if error is not None:
                failed.append(error)
                deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
        if meanwhile is not None:
            meanwhile()
    if failed:
        raise failed[0]
    return [ray.get(answer) for _, answer in calls]


class RestartableActor:
    """A member that can fail: another takes its place, so often, and does again what it was at."""

    def __init__(
        self,
        member: ActorHandle,
        replace: Callable[[ActorHandle, str], ActorHandle],
        restarts: int,
        failures: tuple[type[TinyZeroError], ...] = (WorkerDiedError,),
    ) -> None:
        """
        Args:
            member: the first.
            replace: starts another like the one that is given, ready for work, and tells the user the line given.
            restarts: how often.
            failures: errors after which it is to be replaced.
        """
        self.member, self._replace, self._left, self._failures = member, replace, restarts, failures

    def do(self, work: Callable[[ActorHandle], Result]) -> Result:
        """Work that asks the member, from its beginning for each.

        Raises:
            TinyZeroError: the last has failed, or another that it takes has died.
        """
        while True:
            try:
                return work(self.member)
            except self._failures as failure:
                if not self.mend(failure):
                    raise

    def mend(self, failure: TinyZeroError) -> bool:
        """Replace the member, if it is what has failed and may be replaced.

        Raises:
            TinyZeroError: none that took its place got ready for work.
        """
        if not self._may_replace(failure):
            return False
        while True:
            self._left -= 1
            try:
                self.member = self._replace(self.member, str(failure))
                return True
            except self._failures as again:
                if not self._may_replace(again):
                    raise
                failure = again

    def _may_replace(self, failure: TinyZeroError) -> bool:
        someone_else = isinstance(failure, WorkerDiedError) and failure.which != self.member.name
        return (
            bool(self._left)
            and isinstance(failure, self._failures)
            and not (someone_else or isinstance(failure, NoCapacityError))
        )


def _error_of(ray: Any, answer: Any, member: ActorHandle, whole: bool) -> BaseException | None:
    try:
        ray.get(answer)
    except ray.exceptions.RayTaskError as error:
        # Ray's own error is of the cause's type too, but has a message of many lines.
        return error.cause if isinstance(error.cause, TinyZeroError) else error
    except ray.exceptions.RayError as error:
        lost = WorkerDiedError(member.name, _end_of(error), policy_is_whole=whole and not member.learns)
        lost.__cause__ = error
        return lost
    return None


def _end_of(error: Exception) -> str:
    """Which process an actor was and how it ended, in a few words out of Ray's many."""
    text = str(error).strip()
    if "creation task" in text:
        return f"could not start: {text.splitlines()[-1]}"
    found = {key: re.search(pattern, text) for key, pattern in _TOLD.items()}
    process, machine, kind = ((found[key] or [None, None])[1] for key in _TOLD)
    where = f" on {machine}" if machine else ""
    ended = "was ended, since its machine's memory had run out" if kind == "NODE_OUT_OF_MEMORY" else "has died"
    return f"(process {process}{where}) {ended}" if process else ended
