"""What the loop has in the place of a rollout engine: several, which share each batch.

They are either beside the ranks, in their processes, and take turns with them; or apart, in processes of their own, to
which the weights are sent.
"""

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from threading import Event
from typing import Protocol

from tinyzero_sdk.errors import TinyZeroError
from tinyzero_trainer.errors import WorkerDiedError
from tinyzero_trainer.executors.ray.calls import TICK_SECONDS, ActorHandle, Call, RestartableActor, gather
from tinyzero_trainer.executors.ray.remote_workers import TrainerActors
from tinyzero_trainer.rollout import SamplingParams
from tinyzero_trainer.types import Generation

Groups = list[list[Generation]]


class EngineGroup(Protocol):
    """The engines of a run."""

    @property
    def engines(self) -> Sequence[RestartableActor]:
        """`Generating` actors."""

    def load_weights(self) -> None:
        """Give all of them the policy's weights."""


class ColocatedEngines:
    """Engines in the processes of ranks: with tensor parallelism each has the GPUs of the ranks behind it too."""

    def __init__(
        self,
        ranks: TrainerActors,
        places: Sequence[int],
        restarts: int,
        note: Callable[[str], None],
        *,
        check_sync: bool = False,
    ) -> None:
        """Start them, with the present weights.

        Args:
            ranks: all of them.
            places: those that have an engine.
            restarts: times that each is replaced if vLLM fails.
            note: is told of what the user should know.
            check_sync: after each sync compare each engine's log-probabilities with the policy's.

        Raises:
            VllmError: one does not start, or has other weights than the policy.
        """
        from tinyzero_trainer.rollout.vllm.client import VllmError

        self._ranks, self._places, self._note, self._checks = ranks, places, note, check_sync
        self._build(places)
        self.engines = [
            RestartableActor(ranks.members[place], self._replace, restarts, (VllmError,)) for place in places
        ]

    def load_weights(self) -> None:
        """See `EngineGroup`; one that cannot take them is replaced."""
        self._free_memory()
        faults = self._ranks.go_through_weights("load_weights", self._places)
        whole = [place for place in self._places if faults[place] is None]
        for engine, place in zip(self.engines, self._places, strict=True):
            if faults[place] is not None and not engine.mend(faults[place]):
                raise faults[place]
        self._check(whole)

    def _build(self, places: Sequence[int]) -> None:
        self._free_memory()
        for notes in self._ranks.go_through_weights("build_engine", places):
            for note in notes or ():
                self._note(note)
        self._check(places)

    def _check(self, places: Sequence[int]) -> None:
        if self._checks:
            for place in places:
                self._ranks.check_engine(place)

    def _replace(self, failed: ActorHandle, told: str) -> ActorHandle:
        self._note(f"{failed.name}: {told}; its engine is started anew and repeats what it was doing")
        self._build([self._ranks.members.index(failed)])
        return failed

    def _free_memory(self) -> None:
        if len(self._places) < len(self._ranks.members):
            gather([(member, member.actor.free_memory.remote()) for member in self._ranks.members], whole=True)


class DedicatedEngines:
    """Engines in processes of their own."""

    def __init__(self, ranks: TrainerActors, engines: Sequence[RestartableActor]) -> None:
        """Send them the present weights.

        Args:
            ranks: who have the weights.
            engines: `EngineWorker`s that are built.
        """
        self._ranks, self.engines = ranks, engines
        self.load_weights()

    def load_weights(self) -> None:
        """See `EngineGroup`; one that dies meanwhile is replaced."""
        while True:
            try:
                return self._ranks.send_weights([engine.member for engine in self.engines])
            except WorkerDiedError as lost:
                if not any(engine.mend(lost) for engine in self.engines):
                    raise


@dataclass
class _Batch:
    """A batch that engines share."""

    prompts: Sequence[list[int]]
    samples: int
    params: SamplingParams
    seed: int
    parts: "deque[slice]"
    """Those that nobody has taken."""

    found: dict[int, Groups] = field(default_factory=dict)
    """By the number of a part's first prompt."""

    stopped: Event = field(default_factory=Event)
    """Nobody wants it any more."""


class RemoteEngine:
    """See `RolloutEngine`."""

    def __init__(self, fleet: EngineGroup, rounds: int) -> None:
        """
        Args:
            fleet: with the present weights.
            rounds: parts of a batch for each engine.
        """
        self._fleet, self._rounds = fleet, rounds

    def load_weights(self) -> None:
        """See `RolloutEngine`; whoever is lost meanwhile, the policy has been updated since its last checkpoint."""
        try:
            self._fleet.load_weights()
        except WorkerDiedError as lost:
            lost.policy_is_whole = False
            raise

    def sleep(self) -> None:
        """See `RolloutEngine`; one that fails is replaced."""
        calls = [(member, member.actor.sleep.remote()) for member in self._members()]
        faults = [_fault_of(call) for call in calls]  # of all, before the ranks are asked for anything else
        for engine, fault in zip(self._fleet.engines, faults, strict=True):
            if fault is not None:
                if not engine.mend(fault):
                    raise fault
                engine.do(lambda member: gather([(member, member.actor.sleep.remote())], whole=True))

    def close(self) -> None:
        """See `RolloutEngine`."""
        for member in self._members():
            with suppress(Exception):  # it may be what has died
                gather([(member, member.actor.close.remote())])

    def generate(
        self,
        prompts: Sequence[list[int]],
        samples: int,
        params: SamplingParams,
        *,
        seed: int,
        first: int = 0,
        on_progress: Callable[[int], None] | None = None,
    ) -> Groups:
        """See `RolloutEngine`."""
        assert first == 0, "a whole batch"
        engines = self._fleet.engines
        batch = _Batch(prompts, samples, params, seed, deque(parts(len(prompts), len(engines) * self._rounds)))
        told = 0

        def show() -> None:
            nonlocal told
            if on_progress is not None:
                finished = samples * sum(map(len, batch.found.values())) + self._under_way(serving)
                on_progress(finished - told)  # below 0 where a part is done again
                told = finished

        with ThreadPoolExecutor(len(engines)) as pool:
            serving = [pool.submit(_serve, engine, batch) for engine in engines]
            try:
                while wait(serving, TICK_SECONDS, FIRST_EXCEPTION).not_done and not _failure(serving):
                    show()
            finally:
                failed = _failure(serving)  # before the others fail, since they are stopped
                batch.stopped.set()
                for each, member in zip(serving, self._members(), strict=True):
                    if not each.done():
                        member.actor.stop.remote()
        if failed:
            raise failed
        show()
        return [group for start in sorted(batch.found) for group in batch.found[start]]

    def _under_way(self, serving: Sequence[Future[None]]) -> int:
        """Completions that are finished, of parts that are not; whoever does not say so keeps nobody from a failure."""

        def look() -> None:
            if failed := _failure(serving):
                raise failed

        with suppress(Exception):  # of whoever has died its own thread is told
            asked = [(member, member.actor.finished.remote()) for member in self._members()]
            return sum(gather(asked, meanwhile=look))
        return 0

    def _members(self) -> list[ActorHandle]:
        return [engine.member for engine in self._fleet.engines]


def _fault_of(call: Call) -> TinyZeroError | None:
    try:
        gather([call], whole=True)
    except TinyZeroError as fault:
        return fault
    return None


def _failure(serving: Sequence[Future[None]]) -> BaseException | None:
    return next((error for each in serving if each.done() and (error := each.exception())), None)


def _serve(engine: RestartableActor, batch: _Batch) -> None:
    """Have an engine do one part after another, until there is none left."""
    while not batch.stopped.is_set():
        try:
            part = batch.parts.popleft()
        except IndexError:
            return
        batch.found[part.start] = engine.do(lambda member: _ask(member, batch, part))  # noqa: B023  # called at once


def _ask(member: ActorHandle, batch: _Batch, part: slice) -> Groups:
    if batch.stopped.is_set():  # while a member was replaced
        return []
    call = member.actor.generate.remote(batch.prompts[part], batch.samples, batch.params, batch.seed, part.start)
    (groups,) = gather([(member, call)], whole=True)
    found: Groups = groups
    return found


def parts(count: int, wanted: int) -> list[slice]:
    """So many parts of about the same size, none of them empty.

    Example:
        >>> parts(7, 3)
        [slice(0, 3, None), slice(3, 5, None), slice(5, 7, None)]
    """
    wanted = min(count, wanted)
    size, more = divmod(count, max(wanted, 1))
    ends = [part * size + min(part, more) for part in range(wanted + 1)]
    return [slice(start, end) for start, end in pairwise(ends)]
