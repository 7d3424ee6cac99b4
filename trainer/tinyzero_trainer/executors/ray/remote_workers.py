"""Ray proxies of policy, critic and teacher; that of the rollout engine is in remote_engine.py."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any, Literal

from tinyzero_sdk import Item, Score
from tinyzero_sdk.errors import TinyZeroError
from tinyzero_trainer.algorithms.batch import TrainingBatch
from tinyzero_trainer.errors import WorkerDiedError
from tinyzero_trainer.executors.ray.base_actor import ActorHandle
from tinyzero_trainer.executors.ray.calls import gather
from tinyzero_trainer.executors.ray.cluster import import_ray
from tinyzero_trainer.monitoring.performance import GpuMemoryUsage
from tinyzero_trainer.types import Prompt, Rollout

ABORT_SECONDS = 60.0
"""For actors to return from a weight group that was aborted."""


class TrainerActors:
    """The training ranks: each is called with the whole batch, and the first returns the result."""

    version = 0
    """Training steps completed by the weights, or fewer while a step is being completed."""

    def __init__(self, actors: Sequence[ActorHandle]) -> None:
        self.actors = actors
        self._receivers: list[ActorHandle] = []  # engines in the current weight group
        self._lock = Lock()  # with calls of two threads at once, ranks would wait for each other in different ones

    def do(self, role: str, method: str, *args: Any) -> Any:
        """Call a method of every rank's policy, critic or teacher, or read a property."""
        arguments = import_ray().put(args)  # once for each machine
        return self.gather(lambda actor: actor.do.remote(role, method, arguments))[0]

    def gather(self, call: Callable[[Any], Any]) -> list[Any]:
        """The results of the same call of every rank."""
        with self._lock:
            return gather([(actor, call(actor.handle)) for actor in self.actors])

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
            EngineError: the engine has other weights.
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
        self, ranks: TrainerActors, role: Literal["policy", "critic", "teacher"], micro_batch_tokens: int
    ) -> None:
        self._ranks, self._role = ranks, role
        self.micro_batch_tokens, self.world_size = micro_batch_tokens, len(ranks.actors)

    def __getattr__(self, method: str) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            return self._ranks.do(self._role, method, *map(_for_ranks, args))

        return call

    @cached_property
    def parameters(self) -> int:
        return int(self._ranks.do(self._role, "parameters"))

    def gpu_memory(self) -> list[GpuMemoryUsage]:
        return [gpu for gpu in self._ranks.gather(lambda actor: actor.gpu_memory.remote()) if gpu is not None]


def _for_ranks(argument: Any) -> Any:
    """An argument of a learner's method as ranks get it: their directory is another one, and they read no scores."""
    match argument:
        case Path():
            return argument.absolute()
        case TrainingBatch():
            return replace(argument, rollouts=without_scores(argument.rollouts))
        case [Rollout(), *_]:
            return without_scores(argument)
    return argument


def without_scores(rollouts: Sequence[Rollout]) -> list[Rollout]:
    """Without what no pass reads: ground truths, scores, and log-probabilities, which are columns of the batch."""
    prompts = {id(rollout.prompt): rollout.prompt for rollout in rollouts}
    bare_prompts = {key: Prompt(Item(None), prompt.text, prompt.token_ids) for key, prompt in prompts.items()}
    scores = {masked: Score(0.0, False, masked=masked) for masked in (False, True)}
    return [
        Rollout(
            bare_prompts[id(rollout.prompt)],
            replace(rollout.generation, logprobs=None, versions=()),
            rollout.text,
            scores[rollout.score.masked],
        )
        for rollout in rollouts
    ]
