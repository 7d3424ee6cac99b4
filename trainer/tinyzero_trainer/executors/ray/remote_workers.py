"""What the loop has in the actors' place: policy, critic and reward pool; remote_engine.py has the rollout engine."""

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
from tinyzero_trainer.executors.ray.calls import ActorHandle, RestartableActor, gather
from tinyzero_trainer.executors.ray.cluster import import_ray
from tinyzero_trainer.monitoring.performance import GpuMemoryUsage
from tinyzero_trainer.types import Rollout

CUT_SECONDS = 60.0
"""For ranks to come back from a group that was cut."""


class TrainerActors:
    """Those that learn: each is called with the whole batch, and the first says what all have found."""

    def __init__(self, members: Sequence[ActorHandle], device: str) -> None:
        """
        Args:
            members: all ranks.
            device: that they are on: `cpu` or `cuda`.
        """
        self.members, self._device = members, device
        self._group_of: list[ActorHandle] = []
        self._asked = Lock()  # asked by two threads, ranks that wait for each other would be at different things

    def do(self, role: str, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of every rank's policy or critic."""
        given = import_ray().put((args, kwargs))  # once for each machine
        with self._asked:
            return gather([(member, member.actor.do.remote(role, method, given)) for member in self.members])[0]

    def go_through_weights(self, method: str, places: Sequence[int]) -> list[Any]:
        """Call a method that goes through the weights, on ranks at some places, while the others help."""
        with self._asked:
            return gather(
                [
                    (member, getattr(member.actor, method if place in places else "help_with_weights").remote())
                    for place, member in enumerate(self.members)
                ],
                whole=True,
            )

    def check_engine(self, place: int) -> None:
        """Refuse the engine of a rank if it has other weights than the policy, which all ranks are asked about.

        Raises:
            VllmError: it has.
        """
        with self._asked:
            member = self.members[place]
            (found,) = gather([(member, member.actor.probe_engine.remote())], whole=True)
            gather([(other, other.actor.check_engine.remote(found)) for other in self.members], whole=True)

    def cards(self) -> list[GpuMemoryUsage]:
        """GPUs of all ranks."""
        with self._asked:
            found = gather([(member, member.actor.card_use.remote()) for member in self.members])
        return [card for card in found if card is not None]

    def send_weights(self, engines: Sequence[ActorHandle]) -> None:
        """Bring the policy's weights to engines, a parcel at a time; after whatever the ranks are at."""
        with self._asked:
            if self._device == "cuda":
                self._broadcast(engines)
            else:
                self._through_object_store(engines)

    def _broadcast(self, engines: Sequence[ActorHandle]) -> None:
        """From GPU to GPU."""
        if self._group_of != list(engines):
            self._make_group(engines)
        first, *others = self.members
        sending = [(first, first.actor.broadcast.remote())]
        sending += [(member, member.actor.help_with_weights.remote()) for member in others]
        try:
            sent, *_ = gather([*sending, *((engine, engine.actor.receive.remote()) for engine in engines)])
            taken = gather([(engine, engine.actor.shapes.remote()) for engine in engines])
            assert all(sent == shapes for shapes in taken), "engines take the policy's weights, in its order"
        except BaseException as error:
            self._group_of = []
            leaving = [member.actor.leave_group.remote() for member in (first, *engines)]
            rank_lost = isinstance(error, WorkerDiedError) and error.which in [member.name for member in self.members]
            if not rank_lost:  # the others would wait for it in a group of theirs that nobody cuts, and the run is over
                waited = [*leaving, *(call for _, call in sending)]
                import_ray().wait(waited, num_returns=len(waited), timeout=CUT_SECONDS)
            raise

    def _make_group(self, engines: Sequence[ActorHandle]) -> None:
        first, count = self.members[0], 1 + len(engines)
        (host,) = gather([(first, first.actor.host.remote())])
        (port,) = gather([(first, first.actor.open_group.remote(host, count))])
        ends = enumerate((first, *engines))
        gather([(member, member.actor.join_group.remote(host, port, index, count)) for index, member in ends])
        self._group_of = list(engines)

    def _through_object_store(self, engines: Sequence[ActorHandle]) -> None:
        """In the memory of the machines."""
        first, *others = self.members
        helping = [(member, member.actor.help_with_weights.remote()) for member in others]
        sending = first.actor.weights.options(num_returns="streaming", _generator_backpressure_num_objects=2).remote()
        failed: Exception | None = None
        parcels = iter(sending)
        while failed is None:
            try:
                parcel = next(parcels, None)
                if parcel is None:
                    break
                gather([(engine, engine.actor.take.remote(parcel)) for engine in engines])
            except Exception as error:  # whatever it is, the ranks must not wait for someone to take the rest
                failed = error
        with suppress(Exception):
            for _ in parcels:
                pass
        gather([(first, sending.completed()), *helping])  # if a rank has died, that is the reason
        if failed is not None:
            raise failed
        gather([(engine, engine.actor.load_weights.remote()) for engine in engines])


class RemotePolicy:
    """See `PolicyRole`."""

    def __init__(self, group: TrainerActors) -> None:
        self._group = group

    @property
    def ranks(self) -> int:
        """See `PolicyRole`."""
        return len(self._group.members)

    def cards(self) -> list[GpuMemoryUsage]:
        """See `PolicyRole`."""
        return self._group.cards()

    def logprobs(self, samples: Sequence[Rollout], temperature: float) -> Tensor:
        """See `PolicyRole`."""
        found: Tensor = self._group.do("policy", "logprobs", samples, temperature)
        return found

    def reference_logprobs(self, samples: Sequence[Rollout], temperature: float) -> Tensor:
        """See `PolicyRole`."""
        found: Tensor = self._group.do("policy", "reference_logprobs", samples, temperature)
        return found

    def update(self, batch: TrainingBatch, now: StepSettings) -> dict[str, float]:
        """See `PolicyRole`."""
        metrics: dict[str, float] = self._group.do("policy", "update", batch, now)
        return metrics

    def export(self, directory: Path) -> None:
        """See `PolicyRole`."""
        self._group.do("policy", "export", directory.absolute())

    def save(self, directory: Path) -> None:
        """See `PolicyRole`."""
        self._group.do("policy", "save", directory.absolute())

    def load(self, directory: Path) -> None:
        """See `PolicyRole`."""
        self._group.do("policy", "load", directory.absolute())


class RemoteCritic:
    """See `CriticRole`."""

    def __init__(self, group: TrainerActors, parameters: int) -> None:
        self._group, self._parameters = group, parameters

    @property
    def parameters(self) -> int:
        """See `CriticRole`."""
        return self._parameters

    def values(self, samples: Sequence[Rollout]) -> Tensor:
        """See `CriticRole`."""
        found: Tensor = self._group.do("critic", "values", samples)
        return found

    def update(self, batch: TrainingBatch) -> dict[str, float]:
        """See `CriticRole`."""
        metrics: dict[str, float] = self._group.do("critic", "update", batch)
        return metrics

    def save(self, directory: Path) -> None:
        """See `CriticRole`."""
        self._group.do("critic", "save", directory.absolute())

    def load(self, directory: Path) -> None:
        """See `CriticRole`."""
        self._group.do("critic", "load", directory.absolute())


class RemotePool:
    """See `RewardPool`; a context manager as `ScoringPool` is."""

    def __init__(self, scorer: RestartableActor) -> None:
        """
        Args:
            scorer: a `Scorer`.
        """
        self._scorer = scorer
        self.first_error: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(Exception):  # it may be what has died
            gather([(self._scorer.member, self._scorer.member.actor.close.remote())])

    def score(self, completions: Sequence[Completion], ground_truths: Sequence[Json]) -> list[Score]:
        """See `RewardPool`."""

        def work(member: ActorHandle) -> tuple[list[Score], str | None]:
            call = (member, member.actor.score.remote(list(completions), list(ground_truths)))
            found: tuple[list[Score], str | None]
            (found,) = gather([call], whole=True)
            return found

        verdicts, self.first_error = self._scorer.do(work)
        return verdicts
