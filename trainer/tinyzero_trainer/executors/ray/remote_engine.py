"""The Ray proxy of the rollout engine: several engines in actors, which share each batch.

They are either colocated with the training ranks, in whose processes they time-share the GPUs with the update; or
dedicated, in processes of their own, to which the weights are sent.
"""

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from itertools import pairwise
from threading import Event
from typing import Any, Protocol

from tinyzero_sdk.errors import TinyZeroError
from tinyzero_trainer.errors import EngineDiedError, WorkerDiedError
from tinyzero_trainer.executors.ray.calls import TICK_SECONDS, ActorHandle, gather
from tinyzero_trainer.executors.ray.remote_workers import TrainerActors
from tinyzero_trainer.executors.restart import Restartable
from tinyzero_trainer.rollout import SamplingParams
from tinyzero_trainer.types import Generation

Groups = list[list[Generation]]


class EngineGroup(Protocol):
    """The engines of a run."""

    @property
    def engines(self) -> Sequence[Restartable[ActorHandle]]:
        """Actors of the class `EngineActor`."""

    def load_weights(self) -> None:
        """Give all of them the policy's weights."""


class ColocatedEngines:
    """Engines in the processes of ranks; with tensor parallelism each also uses the GPUs of the ranks that follow."""

    def __init__(
        self,
        ranks: TrainerActors,
        engine_ranks: Sequence[int],
        max_restarts: int,
        report: Callable[[str], None],
        *,
        check_sync: bool = False,
    ) -> None:
        """Start them, with the present weights.

        Args:
            ranks: all of them.
            engine_ranks: those that have an engine.
            max_restarts: times that each engine is restarted if it fails.
            report: receives messages for the user.
            check_sync: after each weight sync compare each engine's log-probabilities with the policy's.

        Raises:
            VllmError: one does not start, or has other weights than the policy.
        """
        self._ranks, self._engine_ranks, self._report, self._checks = ranks, engine_ranks, report, check_sync
        self._build(engine_ranks)

        def restart(actor: ActorHandle) -> ActorHandle:
            self._build([ranks.actors.index(actor)])
            return actor

        limits = {EngineDiedError: max_restarts}
        self.engines = [
            Restartable(actor.name, actor, restart, limits, report)
            for actor in (ranks.actors[rank] for rank in engine_ranks)
        ]

    def load_weights(self) -> None:
        """See `EngineGroup`; an engine that cannot load them is restarted."""
        self._free_memory()
        failures = self._ranks.pass_weights("load_weights", self._engine_ranks)
        loaded = [rank for rank in self._engine_ranks if failures[rank] is None]
        for engine, rank in zip(self.engines, self._engine_ranks, strict=True):
            if failures[rank] is not None:
                engine.restart(failures[rank])
        self._check(loaded)

    def _build(self, engine_ranks: Sequence[int]) -> None:
        self._free_memory()
        for notes in self._ranks.pass_weights("build_engine", engine_ranks):
            for note in notes or ():
                self._report(note)
        self._check(engine_ranks)

    def _check(self, engine_ranks: Sequence[int]) -> None:
        if self._checks:
            for rank in engine_ranks:
                self._ranks.check_engine(rank)

    def _free_memory(self) -> None:
        if len(self._engine_ranks) < len(self._ranks.actors):
            gather([(actor, actor.handle.free_memory.remote()) for actor in self._ranks.actors], policy_intact=True)


class DedicatedEngines:
    """Engines in processes of their own."""

    def __init__(self, ranks: TrainerActors, engines: Sequence[Restartable[ActorHandle]]) -> None:
        """Send them the present weights.

        Args:
            ranks: the training ranks.
            engines: `RolloutActor`s that are built.
        """
        self._ranks, self.engines = ranks, engines
        self.load_weights()

    def load_weights(self) -> None:
        """See `EngineGroup`; an engine that dies meanwhile is restarted."""
        while True:
            try:
                return self._ranks.send_weights([engine.worker for engine in self.engines])
            except (WorkerDiedError, EngineDiedError) as error:
                failure = error
            engine = next((engine for engine in self.engines if engine.name == failure.worker), None)
            if engine is None:
                raise failure
            engine.restart(failure)


class RemoteEngine:
    """See `RolloutEngine`."""

    def __init__(self, group: EngineGroup, chunks_per_engine: int) -> None:
        """
        Args:
            group: with the present weights.
            chunks_per_engine: chunks of a batch for each engine.
        """
        self._group, self._chunks_per_engine = group, chunks_per_engine

    def load_weights(self) -> None:
        """See `RolloutEngine`; if a worker dies meanwhile, the policy has been updated since its last checkpoint."""
        try:
            self._group.load_weights()
        except WorkerDiedError as error:
            error.policy_intact = False
            raise

    def sleep(self) -> None:
        """See `RolloutEngine`; an engine that fails is restarted."""
        engines = self._group.engines
        calls = [(engine.worker, engine.worker.handle.sleep.remote()) for engine in engines]
        failures: list[TinyZeroError | None] = []
        for call in calls:  # all of them, before the ranks get another call
            try:
                gather([call], policy_intact=True)
                failures.append(None)
            except TinyZeroError as error:
                failures.append(error)
        for engine, failure in zip(engines, failures, strict=True):
            if failure is not None:
                engine.restart(failure)
                engine.do(lambda actor: gather([(actor, actor.handle.sleep.remote())], policy_intact=True))

    def close(self) -> None:
        """See `RolloutEngine`."""
        for engine in self._group.engines:
            with suppress(Exception):  # it may have died
                gather([(engine.worker, engine.worker.handle.close.remote())])

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
        """See `RolloutEngine`; each engine takes one chunk after another, until there is none left."""
        assert first == 0, "a whole batch"
        engines = self._group.engines
        pending = deque(chunks(len(prompts), len(engines) * self._chunks_per_engine))
        results: dict[int, Groups] = {}  # by the index of a chunk's first prompt
        stopped = Event()
        reported = 0

        def serve(engine: Restartable[ActorHandle]) -> None:
            while not stopped.is_set():
                try:
                    chunk = pending.popleft()
                except IndexError:
                    return

                def work(actor: ActorHandle, chunk: slice = chunk) -> Groups:
                    if stopped.is_set():  # while the engine was restarted
                        return []
                    call = actor.handle.generate.remote(prompts[chunk], samples, params, seed, chunk.start)
                    groups: Groups = gather([(actor, call)], policy_intact=True)[0]
                    return groups

                results[chunk.start] = engine.do(work)

        def report(serving: Sequence[Future[None]]) -> None:
            nonlocal reported
            if on_progress is not None:
                finished = samples * sum(map(len, results.values())) + self._unfinished_progress(serving)
                on_progress(finished - reported)  # negative when a chunk begins again
                reported = finished

        with ThreadPoolExecutor(len(engines)) as pool:
            serving = [pool.submit(serve, engine) for engine in engines]
            try:
                while wait(serving, TICK_SECONDS, FIRST_EXCEPTION).not_done and not _failure(serving):
                    report(serving)
            finally:
                failed = _failure(serving)  # before the others fail because they are stopped
                stopped.set()
                for future, engine in zip(serving, engines, strict=True):
                    if not future.done():
                        engine.worker.handle.stop.remote()
        if failed:
            raise failed
        report(serving)
        return [group for start in sorted(results) for group in results[start]]

    def _unfinished_progress(self, serving: Sequence[Future[None]]) -> int:
        """Completions that are finished, of chunks that are not; gives up as soon as one of `serving` fails."""

        def raise_failure() -> None:
            if failed := _failure(serving):
                raise failed

        with suppress(Exception):  # the thread that serves an engine raises its death
            actors = [engine.worker for engine in self._group.engines]
            calls: Any = [(actor, actor.handle.finished.remote()) for actor in actors]
            return sum(gather(calls, meanwhile=raise_failure))
        return 0


def _failure(serving: Sequence[Future[None]]) -> BaseException | None:
    return next((error for future in serving if future.done() and (error := future.exception())), None)


def chunks(count: int, requested: int) -> list[slice]:
    """`count` items in `requested` chunks of about the same size, none of them empty.

    Example:
        >>> chunks(7, 3)
        [slice(0, 3, None), slice(3, 5, None), slice(5, 7, None)]
    """
    number = min(count, requested)
    size, more = divmod(count, max(number, 1))
    ends = [index * size + min(index, more) for index in range(number + 1)]
    return [slice(start, end) for start, end in pairwise(ends)]
