"""Ray proxies of policy, critic and reward pool; that of the rollout engine is in remote_engine.py."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any, Self

from torch import Tensor

from tinyzero_sdk import Completion, Score
from tinyzero_sdk.records import Json
from tinyzero_trainer.algorithms.batch import TrainingBatch
from tinyzero_trainer.algorithms.schedules import StepSettings
from tinyzero_trainer.errors import WorkerDiedError
from tinyzero_trainer.executors.ray.calls import ActorHandle, gather
from tinyzero_trainer.executors.ray.cluster import import_ray
from tinyzero_trainer.executors.restart import Restartable
from tinyzero_trainer.monitoring.performance import GpuMemoryUsage
from tinyzero_trainer.types import Rollout

ABORT_SECONDS = 60.0
"""For actors to return from a weight group that was aborted."""


class TrainerActors:
    """The training ranks: each is called with the whole batch, and the first returns the result."""

    def __init__(self, actors: Sequence[ActorHandle], device: str) -> None:
        """
        Args:
            actors: `TrainerActor`s, one for each rank.
            device: that they are on: `cpu` or `cuda`.
        """
        self.actors, self._device = actors, device
        self._receivers: list[ActorHandle] = []  # engines in the present weight group
        self._lock = Lock()  # with calls of two threads at once, ranks would wait for each other in different ones

    def do(self, role: str, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of every rank's policy or critic."""
        arguments = import_ray().put((args, kwargs))  # once for each machine
        with self._lock:
            return gather([(actor, actor.handle.do.remote(role, method, arguments)) for actor in self.actors])[0]

    def pass_weights(self, method: str, ranks: Sequence[int]) -> list[Any]:
        """Call a method that iterates over the full weights on some ranks, while the others help to gather them."""
        with self._lock:
            return gather(
                [
                    (actor, getattr(actor.handle, method if rank in ranks else "help_with_weights").remote())
                    for rank, actor in enumerate(self.actors)
                ],
                policy_intact=True,
            )

    def check_engine(self, rank: int) -> None:
        """Compare the engine of a rank with the policy, whose log-probabilities all ranks compute together.

        Raises:
            VllmError: the engine has other weights.
        """
        with self._lock:
            actor = self.actors[rank]
            (probes,) = gather([(actor, actor.handle.probe_engine.remote())], policy_intact=True)
            gather([(actor, actor.handle.check_engine.remote(probes)) for actor in self.actors], policy_intact=True)

    def cards(self) -> list[GpuMemoryUsage]:
        """GPUs of all ranks."""
        with self._lock:
            gpus = gather([(actor, actor.handle.gpu_memory.remote()) for actor in self.actors])
        return [gpu for gpu in gpus if gpu is not None]

    def send_weights(self, engines: Sequence[ActorHandle]) -> None:
        """Send the policy's weights to engines, a bucket at a time, once the ranks' present call has returned."""
        with self._lock:
            if self._device == "cuda":
                self._broadcast(engines)
            else:
                self._through_object_store(engines)

    def _broadcast(self, engines: Sequence[ActorHandle]) -> None:
        """From GPU to GPU."""
        first, *others = self.actors
        if self._receivers != list(engines):
            count = 1 + len(engines)
            (host,) = gather([(first, first.handle.host.remote())])
            (port,) = gather([(first, first.handle.open_group.remote(host, count))])
            ends = enumerate((first, *engines))
            gather([(actor, actor.handle.join_group.remote(host, port, index, count)) for index, actor in ends])
            self._receivers = list(engines)
        sending = [(first, first.handle.broadcast.remote())]
        sending += [(actor, actor.handle.help_with_weights.remote()) for actor in others]
        try:
            sent, *_ = gather([*sending, *((engine, engine.handle.receive.remote()) for engine in engines)])
            received = gather([(engine, engine.handle.shapes.remote()) for engine in engines])
            assert all(sent == shapes for shapes in received), "engines take the policy's weights, in its order"
        except BaseException as error:
            self._receivers = []
            leaving = [actor.handle.leave_group.remote() for actor in (first, *engines)]
            rank_died = isinstance(error, WorkerDiedError) and error.worker in [actor.name for actor in self.actors]
            if not rank_died:  # else the run is over, and the other ranks wait for it in a group of their own
                waited = [*leaving, *(call for _, call in sending)]
                import_ray().wait(waited, num_returns=len(waited), timeout=ABORT_SECONDS)
            raise

    def _through_object_store(self, engines: Sequence[ActorHandle]) -> None:
        """Through the machines' shared memory."""
        first, *others = self.actors
        helping = [(actor, actor.handle.help_with_weights.remote()) for actor in others]
        sending = first.handle.weights.options(num_returns="streaming", _generator_backpressure_num_objects=2).remote()
        failed: Exception | None = None
        buckets = iter(sending)
        while failed is None:
            try:
                bucket = next(buckets, None)
                if bucket is None:
                    break
                gather([(engine, engine.handle.load_bucket.remote(bucket)) for engine in engines])
            except Exception as error:  # of any type: the ranks would wait until the rest is taken
                failed = error
        with suppress(Exception):
            for _ in buckets:
                pass
        gather([(first, sending.completed()), *helping])  # if a rank has died, that is the reason
        if failed is not None:
            raise failed
        gather([(engine, engine.handle.load_weights.remote()) for engine in engines])


class RemotePolicy:
    """See `PolicyWorker`."""

    def __init__(self, group: TrainerActors) -> None:
        self._group = group

    @property
    def ranks(self) -> int:
        """See `PolicyWorker`."""
        return len(self._group.actors)

    def cards(self) -> list[GpuMemoryUsage]:
        """See `PolicyWorker`."""
        return self._group.cards()

    def logprobs(self, samples: Sequence[Rollout], temperature: float) -> Tensor:
        """See `PolicyWorker`."""
        result: Tensor = self._group.do("policy", "logprobs", samples, temperature)
        return result

    def reference_logprobs(self, samples: Sequence[Rollout], temperature: float) -> Tensor:
        """See `PolicyWorker`."""
        result: Tensor = self._group.do("policy", "reference_logprobs", samples, temperature)
        return result

    def update(self, batch: TrainingBatch, now: StepSettings) -> dict[str, float]:
        """See `PolicyWorker`."""
        metrics: dict[str, float] = self._group.do("policy", "update", batch, now)
        return metrics

    def export(self, directory: Path) -> None:
        """See `PolicyWorker`."""
        self._group.do("policy", "export", directory.absolute())

    def save(self, directory: Path) -> None:
        """See `PolicyWorker`."""
        self._group.do("policy", "save", directory.absolute())

    def load(self, directory: Path) -> None:
        """See `PolicyWorker`."""
        self._group.do("policy", "load", directory.absolute())


class RemoteCritic:
    """See `CriticWorker`."""

    def __init__(self, group: TrainerActors, parameters: int) -> None:
        self._group, self._parameters = group, parameters

    @property
    def parameters(self) -> int:
        """See `CriticWorker`."""
        return self._parameters

    def values(self, samples: Sequence[Rollout]) -> Tensor:
        """See `CriticWorker`."""
        result: Tensor = self._group.do("critic", "values", samples)
        return result

    def update(self, batch: TrainingBatch) -> dict[str, float]:
        """See `CriticWorker`."""
        metrics: dict[str, float] = self._group.do("critic", "update", batch)
        return metrics

    def save(self, directory: Path) -> None:
        """See `CriticWorker`."""
        self._group.do("critic", "save", directory.absolute())

    def load(self, directory: Path) -> None:
        """See `CriticWorker`."""
        self._group.do("critic", "load", directory.absolute())


class RemotePool:
    """See `RewardPool`; a context manager as `ScoringPool` is."""

    def __init__(self, scorer: Restartable[ActorHandle]) -> None:
        """
        Args:
            scorer: a `RewardActor` that is started.
        """
        self._scorer = scorer
        self.first_error: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(Exception):  # it may have died
            gather([(self._scorer.worker, self._scorer.worker.handle.close.remote())])

    def score(self, completions: Sequence[Completion], ground_truths: Sequence[Json]) -> list[Score]:
        """See `RewardPool`."""

        def work(actor: ActorHandle) -> tuple[list[Score], str | None]:
            call = (actor, actor.handle.score.remote(list(completions), list(ground_truths)))
            result: tuple[list[Score], str | None]
            (result,) = gather([call], policy_intact=True)
            return result

        scores, self.first_error = self._scorer.do(work)
        return scores
