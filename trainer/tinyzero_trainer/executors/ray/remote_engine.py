"""The Ray proxy of the rollout engine: several engines in actors, which share each batch.

They are either colocated with the training ranks, in whose processes they time-share the GPUs with the update; or
dedicated, in processes of their own, to which the weights are sent.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import pairwise
from threading import Event, Lock
from typing import Any

from tinyzero_trainer.errors import EngineDiedError, EngineError, WorkerDiedError
from tinyzero_trainer.executors.ray.base_actor import ActorHandle
from tinyzero_trainer.executors.ray.calls import TICK_SECONDS, gather
from tinyzero_trainer.executors.ray.cluster import import_ray
from tinyzero_trainer.executors.ray.remote_workers import TrainerActors
from tinyzero_trainer.executors.restart import Restartable, RestartingEngine
from tinyzero_trainer.rollout.engine import Completions, Group, OnProgress, PromptBatch, RolloutEngine, SamplingParams

CLOSE_SECONDS = 60.0

PROGRESS_SECONDS = 5.0
"""For engines to count what they have finished; meanwhile the trainer cannot stop."""


class RemoteEngine(RolloutEngine):
    """All engines of a run as one; how they get the weights is up to the subclass."""

    def __init__(self, engines: Sequence[Restartable[ActorHandle]], chunks_per_engine: int) -> None:
        """`engines` are `EngineActor`s; a batch has `chunks_per_engine` chunks for each."""
        self.engines, self._chunks_per_engine = engines, chunks_per_engine
        self._streams = [RestartingEngine(engine, ActorEngine) for engine in engines]
        self._complete = list[Group]()  # not returned yet
        self._threads = ThreadPoolExecutor(len(engines))
        # One thread may wait for groups while another passes weights, and each may have to restart an engine.
        self._one_at_a_time, self._may_advance = Lock(), Event()
        self._may_advance.set()
        self._failed = False  # where one thread has noticed it, another that waits to pass weights need not

    def submit(self, groups: Sequence[Group]) -> None:
        """Give each group to the engine that has the fewest."""
        for group in groups:
            min(self._streams, key=lambda stream: len(stream.groups)).submit([group])

    def advance(self, params: SamplingParams, on_progress: OnProgress) -> list[Group]:
        def poll(stream: RestartingEngine[ActorHandle]) -> int:
            finished = list[int]()
            self._complete += stream.advance(params, finished.append)
            return sum(finished)

        with self._as_the_only_one():
            polls = [self._threads.submit(poll, stream) for stream in self._streams]
            wait(polls)  # also if one fails: none may use an engine after this
            finished = sum(poll.result() for poll in polls)
        on_progress(finished)
        complete, self._complete = self._complete, []
        return complete

    def unfinished(self) -> list[Group]:
        """The unfinished groups of all engines; those of an engine that has died as they were submitted."""
        with self._one_at_a_time:
            return [*self._complete, *(group for stream in self._streams for group in stream.unfinished())]

    @contextmanager
    def _as_the_only_one(self) -> Iterator[None]:
        self._may_advance.wait()
        with self._one_at_a_time:
            try:
                yield
            except (WorkerDiedError, EngineError):
                self._failed = True
                raise

    @contextmanager
    def _while_none_advances(self) -> Iterator[None]:
        self._may_advance.clear()  # a lock alone would go to the thread that polls, again and again
        try:
            with self._one_at_a_time:
                yield
        finally:
            self._may_advance.set()

    def sleep(self) -> None:
        """Let all engines sleep; one that fails is restarted."""
        calls = [(engine.worker, engine.worker.handle.sleep.remote()) for engine in self.engines]
        failures = gather(calls, policy_intact=True, returned=(WorkerDiedError, EngineDiedError))
        for engine, failure in zip(self.engines, failures, strict=True):
            if failure is not None:
                engine.restart(failure)
                engine.do(lambda actor: gather([(actor, actor.handle.sleep.remote())], policy_intact=True))

    def close(self) -> None:
        with suppress(Exception):  # one may have died, or wait for another rank
            closing = [engine.worker.handle.close.remote() for engine in self.engines]
            import_ray().wait(closing, num_returns=len(closing), timeout=CLOSE_SECONDS)
        self._threads.shutdown(wait=False)

    def generate_batch(self, batch: PromptBatch, on_progress: OnProgress) -> Completions:
        """Generate the batch in chunks; each engine takes one after another until none is left."""
        with self._as_the_only_one():
            return self._generate_batch(batch, on_progress)

    def _generate_batch(self, batch: PromptBatch, on_progress: OnProgress) -> Completions:
        pending = iter(chunks(len(batch.prompts), len(self.engines) * self._chunks_per_engine))
        results: dict[int, Completions] = {}  # by the index of a chunk's first prompt
        stopped = Event()
        reported = 0

        def serve(engine: Restartable[ActorHandle]) -> None:
            for chunk in pending:  # which all engines share
                part = replace(batch, prompts=batch.prompts[chunk], first=chunk.start)

                def work(actor: ActorHandle, part: PromptBatch = part) -> Completions:
                    if stopped.is_set():  # perhaps while the engine was restarted
                        return []
                    call = (actor, actor.handle.generate.remote(part))
                    completions: Completions = gather([call], policy_intact=True)[0]
                    return completions

                results[chunk.start] = engine.do(work)

        def report() -> None:
            nonlocal reported
            finished = batch.samples * sum(map(len, results.values())) + self._unfinished_progress()
            on_progress(finished - reported)
            reported = finished

        with ThreadPoolExecutor(len(self.engines)) as pool:
            serving = [pool.submit(serve, engine) for engine in self.engines]
            try:
                while wait(serving, TICK_SECONDS, FIRST_EXCEPTION).not_done and not _failure(serving):
                    report()
            finally:
                failed = _failure(serving)  # before the others fail because they are stopped
                stopped.set()
                for future, engine in zip(serving, self.engines, strict=True):
                    if not future.done():
                        engine.worker.handle.stop.remote()
        if failed:
            raise failed
        report()
        return [completions for start in sorted(results) for completions in results[start]]

    def _unfinished_progress(self) -> int:
        """Finished completions of unfinished chunks."""
        with suppress(Exception):  # the thread that serves an engine raises its death
            counts = [engine.worker.handle.finished.remote() for engine in self.engines]
            return sum(import_ray().get(counts, timeout=PROGRESS_SECONDS))
        return 0


class ActorEngine(RolloutEngine):
    """The rollout engine of an `EngineActor`."""

    def __init__(self, actor: ActorHandle) -> None:
        self._actor = actor

    def submit(self, groups: Sequence[Group]) -> None:
        self._call("submit", groups)

    def advance(self, params: SamplingParams, on_progress: OnProgress) -> list[Group]:
        complete, finished = self._call("advance", params)
        on_progress(finished)
        return list(complete)

    def unfinished(self) -> list[Group]:
        return list(self._call("unfinished"))

    def generate_batch(self, batch: PromptBatch, on_progress: OnProgress) -> Completions:
        completions: Completions = self._call("generate", batch)
        return completions

    def _call(self, method: str, *args: Any) -> Any:
        return gather([(self._actor, getattr(self._actor.handle, method).remote(*args))], policy_intact=True)[0]


class ColocatedEngines(RemoteEngine):
    """Engines in the processes of ranks; with tensor parallelism each also uses the GPUs of the ranks that follow.

    They sample between updates only.
    """

    def __init__(
        self,
        ranks: TrainerActors,
        engine_ranks: Sequence[int],
        chunks_per_engine: int,
        max_restarts: int,
        report: Callable[[str], None],
        *,
        check_sync: bool = False,
    ) -> None:
        """Start them on the ranks `engine_ranks`, with the current weights.

        With `check_sync`, each engine's log-probabilities are compared with the policy's after each weight sync.

        Raises:
            EngineError: one does not start, or has other weights than the policy.
        """
        self._ranks, self._engine_ranks, self._report, self._check_sync = ranks, engine_ranks, report, check_sync
        self._build(engine_ranks)

        def restart(actor: ActorHandle) -> ActorHandle:
            self._build([ranks.actors.index(actor)])
            return actor

        limits = {EngineDiedError: max_restarts}
        actors = [ranks.actors[rank] for rank in engine_ranks]
        engines = [Restartable(actor.name, actor, restart, limits, report) for actor in actors]
        super().__init__(engines, chunks_per_engine)

    def load_weights(self, version: int = 0) -> None:
        """Load the ranks' current weights into all engines; an engine that cannot load them is restarted."""
        self._ranks.version = version
        self._free_memory()
        failures = self._ranks.pass_weights("load_weights", self._engine_ranks, returned=(EngineDiedError,))
        for engine, rank in zip(self.engines, self._engine_ranks, strict=True):
            if failures[rank] is not None:
                engine.restart(failures[rank])
            elif self._check_sync:
                self._ranks.check_engine(rank)

    def _build(self, engine_ranks: Sequence[int]) -> None:
        self._free_memory()
        for notes in self._ranks.pass_weights("build_engine", engine_ranks):
            for note in notes or ():
                self._report(note)
        if self._check_sync:
            for rank in engine_ranks:
                self._ranks.check_engine(rank)

    def _free_memory(self) -> None:
        if len(self._engine_ranks) < len(self._ranks.actors):
            self._ranks.gather(lambda actor: actor.free_memory.remote())


class DedicatedEngines(RemoteEngine):
    """Engines in processes of their own, which may sample on while the ranks train."""

    concurrent = True

    def __init__(
        self, ranks: TrainerActors, engines: Sequence[Restartable[ActorHandle]], chunks_per_engine: int
    ) -> None:
        """Send the current weights to `engines`: `RolloutActor`s that are built."""
        super().__init__(engines, chunks_per_engine)
        self._ranks = ranks
        self.load_weights()

    def load_weights(self, version: int = 0) -> None:
        """Send the current weights to all engines; an engine that dies meanwhile is restarted."""
        with self._while_none_advances():
            self._ranks.version = version
            if not self._failed:
                self._send_weights()

    def _send_weights(self) -> None:
        while True:
            try:
                return self._ranks.send_weights([engine.worker for engine in self.engines])
            except (WorkerDiedError, EngineDiedError) as error:
                failure = error
            died = next((engine for engine in self.engines if engine.name == failure.worker), None)
            try:
                if died is None:
                    raise failure
                died.restart(failure)
            except WorkerDiedError as error:
                error.policy_intact = False  # it has been updated since its last checkpoint
                raise


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
