"""Ray proxies of policy, critic and reward pool; that of the rollout engine is in remote_engine.py."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from shutil import rmtree
from threading import Lock
from typing import Any, Literal
from uuid import uuid4

from tinyzero_sdk import Completion, Score
from tinyzero_sdk.errors import TinyZeroError
from tinyzero_sdk.records import Json
from tinyzero_trainer.algorithms.batch import TrainingBatch
from tinyzero_trainer.errors import WorkerDiedError
from tinyzero_trainer.executors.micro_batch_halving import PASSES, MicroBatchHalving
from tinyzero_trainer.executors.ray.calls import ActorHandle, gather
from tinyzero_trainer.executors.ray.cluster import import_ray
from tinyzero_trainer.executors.ray.columns import SentRollouts
from tinyzero_trainer.executors.restart import Restartable
from tinyzero_trainer.monitoring.performance import GpuMemoryUsage
from tinyzero_trainer.types import Rollout

ABORT_SECONDS = 60.0
"""For actors to return from a weight group that was aborted."""

HAND_OVER_SECONDS = 600.0
"""For all ranks to write their state: it is that of a checkpoint."""

Replace = Callable[[Sequence[ActorHandle], int, bool], Sequence[ActorHandle]]
"""Start other actors with a micro-batch of so many tokens; whether they are about to take over what was trained."""


class TrainerActors:
    """The training ranks: each is called with the whole batch, and the first returns the result."""

    generation = 0
    """How often all of them were replaced."""

    version = 0
    """Training steps completed by the weights, or fewer while a step is being completed."""

    def __init__(self, actors: Sequence[ActorHandle], replace: Replace | None = None, output: Path = Path()) -> None:
        """`replace` starts others in their place, `output` is the run's directory: without them none is replaced."""
        self.actors, self._replace, self._output, self._trained = actors, replace, output, False
        self._receivers: list[ActorHandle] = []  # engines in the current weight group
        self._lock = Lock()  # with calls of two threads at once, ranks would wait for each other in different ones

    def do(self, role: str, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of every rank's policy, critic or teacher, or read a property."""
        args = tuple(arg.absolute() if isinstance(arg, Path) else arg for arg in args)  # of the trainer's directory
        self._trained |= method in ("update", "load")
        arguments = import_ray().put((args, kwargs))  # once for each machine
        return self.gather(lambda actor: actor.do.remote(role, method, arguments))[0]

    def gather(self, call: Callable[[Any], Any]) -> list[Any]:
        """The results of the same call of every rank."""
        with self._lock:
            return gather([(actor, call(actor.handle)) for actor in self.actors])

    def restart(self, micro_batch_tokens: int) -> None:
        """Replace all ranks, some of which wait in a pass for one that failed, by others with the same state.

        Raises:
            WorkerDiedError: a rank does not hand over its state, or they disagree on what is done.
        """
        assert self._replace is not None
        directory = (self._output / f"checkpoints/step_0.tmp-{uuid4().hex}").absolute()  # swept if the run is killed
        with self._lock:
            leaving = [engine.handle.leave_group.remote() for engine in self._receivers]
            if leaving:
                import_ray().wait(leaving, num_returns=len(leaving), timeout=ABORT_SECONDS)
            try:
                done = self._hand_over(directory) if self._trained else None
                self.actors = self._replace(self.actors, micro_batch_tokens, self._trained)
                if done is not None:
                    gather(
                        [
                            (actor, actor.handle.take_over.remote(directory, each))
                            for actor, each in zip(self.actors, done, strict=True)
                        ]
                    )
            finally:
                rmtree(directory, ignore_errors=True)
            self._receivers, self.generation = [], self.generation + 1

    def _hand_over(self, directory: Path) -> list[Any]:
        directory.mkdir(parents=True)
        calls = [(actor, actor.handle.hand_over.remote(directory)) for actor in self.actors]
        references = [reference for _, reference in calls]
        _, late = import_ray().wait(references, num_returns=len(references), timeout=HAND_OVER_SECONDS)
        if late:
            name = self.actors[references.index(late[0])].name
            raise WorkerDiedError(name, "did not hand over its state after memory ran out", policy_intact=False)
        done = gather(calls)
        if len({tuple(metrics.mini_batches for metrics in each) for each in done}) > 1:
            end = "has made an update that another had no memory for (memory.cpu_offload=always takes less)"
            raise WorkerDiedError("one rank", end, policy_intact=False)
        return done

    def pass_weights(
        self, method: str, ranks: Sequence[int], returned: tuple[type[TinyZeroError], ...] = ()
    ) -> list[Any]:
        """Call a method that iterates over the full weights on these ranks, while the others help to gather them.

        Errors of the types `returned` take the place of a result.
        """
        with self._lock:
            calls = [
                (actor, getattr(actor.handle, method).remote(self.version))
                if rank in ranks
                else (actor, actor.handle.help_with_weights.remote())
                for rank, actor in enumerate(self.actors)
            ]
            return gather(calls, returned=returned)

    def check_engine(self, rank: int) -> None:
        """Compare the engine of a rank with the policy, whose log-probabilities all ranks compute together.

        Raises:
            VllmError: the engine has other weights.
        """
        actor = self.actors[rank]
        with self._lock:
            (probes,) = gather([(actor, actor.handle.probe_engine.remote())])
            gather([(actor, actor.handle.check_engine.remote(probes)) for actor in self.actors])

    def send_weights(self, engines: Sequence[ActorHandle]) -> None:
        """Broadcast the policy's weights to dedicated engines, once the ranks' current call has returned."""
        first, *others = self.actors
        with self._lock:
            if self._receivers != list(engines):
                members = (first, *engines)
                (address,) = gather([(first, first.handle.open_store.remote(len(members)))])
                joining = [actor.handle.join_group.remote(address, i, len(members)) for i, actor in enumerate(members)]
                gather(list(zip(members, joining, strict=True)))
                self._receivers = list(engines)
            sending = [(first, first.handle.broadcast.remote())]
            sending += [(actor, actor.handle.help_with_weights.remote(True)) for actor in others]
            try:
                shapes = gather(
                    [*sending, *((engine, engine.handle.receive.remote(self.version)) for engine in engines)]
                )
                received = shapes[len(sending) :]
                assert received == [shapes[0]] * len(engines), "engines have the policy's weights, in its order"
            except BaseException as error:
                self._receivers = []
                leaving = [actor.handle.leave_group.remote() for actor in (first, *engines)]
                over = isinstance(error, WorkerDiedError) and error.worker not in [engine.name for engine in engines]
                # By a second signal, a dead server of Ray, or as other ranks wait for a dead one in their group.
                if isinstance(error, Exception) and not over:
                    waited = [*leaving, *(call for _, call in sending)]
                    import_ray().wait(waited, num_returns=len(waited), timeout=ABORT_SECONDS)
                raise


class RemoteLearner:
    """The `PolicyWorker`, `CriticWorker` or `TeacherWorker` of all ranks: what is not here is called on every rank."""

    def __init__(
        self, ranks: TrainerActors, role: Literal["policy", "critic", "teacher"], halving: MicroBatchHalving
    ) -> None:
        self._ranks, self._role, self._halving, self.world_size = ranks, role, halving, len(ranks.actors)

    def __getattr__(self, method: str) -> Callable[..., Any]:
        call = partial(self._ranks.do, self._role, method)
        if method not in PASSES:
            return call

        def sent(batch: TrainingBatch | Sequence[Rollout], *args: Any) -> Any:
            if isinstance(batch, TrainingBatch):
                return call(replace(batch, rollouts=SentRollouts(batch.rollouts)), *args)
            return call(SentRollouts(batch), *args)

        return self._halving.repeating(sent)

    @property
    def micro_batch_tokens(self) -> int:
        return self._halving.tokens

    @cached_property
    def parameters(self) -> int:
        return int(self._ranks.do(self._role, "parameters"))

    def gpu_memory(self) -> list[GpuMemoryUsage]:
        return [gpu for gpu in self._ranks.gather(lambda actor: actor.gpu_memory.remote()) if gpu is not None]


class RemotePool:
    """The `RewardPool` of a `RewardActor` that is started."""

    def __init__(self, scorer: Restartable[ActorHandle]) -> None:
        self._scorer = scorer
        self.first_error: str | None = None

    def close(self) -> None:
        with suppress(Exception):  # it may have died
            gather([(self._scorer.worker, self._scorer.worker.handle.close.remote())])

    def score(
        self, completions: Sequence[Completion], ground_truths: Sequence[Json], groups: Sequence[int] = ()
    ) -> list[Score]:

        def work(actor: ActorHandle) -> tuple[list[Score], str | None]:
            call = (actor, actor.handle.score.remote(list(completions), list(ground_truths), list(groups)))
            result: tuple[list[Score], str | None]
            (result,) = gather([call], policy_intact=True)
            return result

        scores, self.first_error = self._scorer.do(work)
        return scores
