"""What the loop has in the actors' place: policy, critic, rollout engine and reward pool, each a line to them."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self, TypeVar

from torch import Tensor

from tinyzero_sdk import Completion, Score
from tinyzero_sdk.records import Json
from tinyzero_trainer.experience import Experience
from tinyzero_trainer.lost import WorkerLost
from tinyzero_trainer.ray.asking import Member, answers
from tinyzero_trainer.ray.cluster import import_ray
from tinyzero_trainer.records import Rollout, Sample
from tinyzero_trainer.rollout import SamplingParams
from tinyzero_trainer.schedules import StepSettings

Result = TypeVar("Result")


class LearnerRanks:
    """Those that learn: each is called with the whole batch, and the first says what all have found."""

    def __init__(self, members: Sequence[Member]) -> None:
        self.members = members

    def do(self, role: str, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call a method of every rank's policy or critic."""
        given = import_ray().put((args, kwargs))  # once for each machine
        return answers([(member, member.actor.do.remote(role, method, given)) for member in self.members])[0]

    def send_weights(self, engines: Sequence[Member]) -> None:
        """Bring the policy's weights to engines, a parcel at a time."""
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
                answers([(engine, engine.actor.take.remote(parcel)) for engine in engines])
            except Exception as error:  # whatever it is, the ranks must not wait for someone to take the rest
                failed = error
        with suppress(Exception):
            for _ in parcels:
                pass
        answers([(first, sending.completed()), *helping])  # if a rank has died, that is the reason
        if failed is not None:
            raise failed
        answers([(engine, engine.actor.load_weights.remote()) for engine in engines])


class RemotePolicy:
    """See `PolicyRole`."""

    def __init__(self, group: LearnerRanks) -> None:
        self._group = group

    @property
    def ranks(self) -> int:
        """See `PolicyRole`."""
        return len(self._group.members)

    def logprobs(self, samples: Sequence[Sample], temperature: float) -> Tensor:
        """See `PolicyRole`."""
        found: Tensor = self._group.do("policy", "logprobs", samples, temperature)
        return found

    def reference_logprobs(self, samples: Sequence[Sample], temperature: float) -> Tensor:
        """See `PolicyRole`."""
        found: Tensor = self._group.do("policy", "reference_logprobs", samples, temperature)
        return found

    def update(self, experience: Experience, *, group_size: int, now: StepSettings) -> dict[str, float]:
        """See `PolicyRole`."""
        metrics: dict[str, float] = self._group.do("policy", "update", experience, group_size=group_size, now=now)
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

    def __init__(self, group: LearnerRanks, parameters: int) -> None:
        self._group, self._parameters = group, parameters

    @property
    def parameters(self) -> int:
        """See `CriticRole`."""
        return self._parameters

    def values(self, samples: Sequence[Sample]) -> Tensor:
        """See `CriticRole`."""
        found: Tensor = self._group.do("critic", "values", samples)
        return found

    def update(self, experience: Experience, *, group_size: int) -> dict[str, float]:
        """See `CriticRole`."""
        metrics: dict[str, float] = self._group.do("critic", "update", experience, group_size=group_size)
        return metrics

    def save(self, directory: Path) -> None:
        """See `CriticRole`."""
        self._group.do("critic", "save", directory.absolute())

    def load(self, directory: Path) -> None:
        """See `CriticRole`."""
        self._group.do("critic", "load", directory.absolute())


class Replaceable:
    """A member that can die: another takes its place, so often, and does again what it was at."""

    def __init__(self, member: Member, replace: Callable[[Member, str], Member], restarts: int) -> None:
        """
        Args:
            member: the first.
            replace: starts another like the one that is given, ready for work, and tells the user the line given.
            restarts: how often.
        """
        self.member, self._replace, self._left = member, replace, restarts

    def do(self, work: Callable[[], Result]) -> Result:
        """Work that asks the member, from its beginning for each.

        Raises:
            WorkerLost: the last has died, or another that it takes.
        """
        while True:
            dead = self.member
            try:
                return work()
            except WorkerLost as lost:
                if not self._left or lost.which != dead.name:
                    raise
                self._left -= 1
                told = str(lost)
            self.member = self._replace(dead, told)


class RemoteEngine:
    """See `RolloutEngine`."""

    def __init__(self, group: LearnerRanks, engine: Replaceable) -> None:
        """
        Args:
            group: those whose weights it takes.
            engine: an `EngineWorker`.
        """
        self._group, self._engine = group, engine

    def load_weights(self) -> None:
        """See `RolloutEngine`."""
        self._engine.do(lambda: self._group.send_weights([self._engine.member]))

    def sleep(self) -> None:
        """See `RolloutEngine`."""
        answers([(self._engine.member, self._engine.member.actor.sleep.remote())], whole=True)

    def close(self) -> None:
        """See `RolloutEngine`."""
        with suppress(Exception):  # it may be what has died
            answers([(self._engine.member, self._engine.member.actor.close.remote())])

    def generate(
        self,
        prompts: Sequence[list[int]],
        samples: int,
        params: SamplingParams,
        *,
        seed: int,
        on_progress: Callable[[int], None] | None = None,
    ) -> list[list[Rollout]]:
        """See `RolloutEngine`."""
        told = 0

        def meanwhile() -> None:
            nonlocal told
            member = self._engine.member
            (finished,) = answers([(member, member.actor.finished.remote())], whole=True)
            if on_progress is not None:
                on_progress(finished - told)  # below 0 once, where another has begun anew
            told = finished

        def work() -> list[list[Rollout]]:
            member = self._engine.member
            call = (member, member.actor.generate.remote(prompts, samples, params, seed))
            groups: list[list[Rollout]]
            (groups,) = answers([call], meanwhile=meanwhile, whole=True)
            return groups

        return self._engine.do(work)


class RemotePool:
    """See `RewardPool`; a context manager as `ScoringPool` is."""

    def __init__(self, scorer: Replaceable) -> None:
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
            answers([(self._scorer.member, self._scorer.member.actor.close.remote())])

    def score(self, completions: Sequence[Completion], ground_truths: Sequence[Json]) -> list[Score]:
        """See `RewardPool`."""

        def work() -> tuple[list[Score], str | None]:
            member = self._scorer.member
            call = (member, member.actor.score.remote(list(completions), list(ground_truths)))
            found: tuple[list[Score], str | None]
            (found,) = answers([call], whole=True)
            return found

        verdicts, self.first_error = self._scorer.do(work)
        return verdicts
