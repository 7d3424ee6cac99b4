"""The roles of a run as actors: who they are, what each may take of the machines, and how they come together."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from tinyzero_sdk import Task
from tinyzero_trainer.config import RewardConfig, TrainConfig
from tinyzero_trainer.display import Display
from tinyzero_trainer.models import LanguageModel
from tinyzero_trainer.ray import actors
from tinyzero_trainer.ray.asking import Member, answers
from tinyzero_trainer.ray.cluster import Resources, import_ray, room
from tinyzero_trainer.ray.stand_ins import (
    LearnerRanks,
    RemoteCritic,
    RemoteEngine,
    RemotePolicy,
    RemotePool,
    Replaceable,
)
from tinyzero_trainer.roles import Roles
from tinyzero_trainer.tasks import task_roles

ENVIRONMENT = {"OMP_WAIT_POLICY": "PASSIVE"}
"""Of the actors; see threads.py."""


@contextmanager
def build_ray_roles(
    config: TrainConfig, tasks: dict[str, Task], *, display: Display, checkpoint: Path | None
) -> Iterator[Roles]:
    """Start Ray and all actors; leaving the context ends them.

    Args:
        config: the run's.
        tasks: from `load_shares`.
        display: is told of the phases.
        checkpoint: directory whose weights are taken instead of the starting model's.

    Raises:
        RayError: Ray is missing, or has no room.
        WorkerLost: an actor died while it started.
    """
    # Relative to this process's directory, which need not be that of the others.
    output = str(Path(config.run.output).expanduser().absolute())
    config = replace(config, run=replace(config.run, output=output))
    display.phase("starting Ray and its workers")
    one_each: Resources = {"CPU": 1}
    with room(config.ray, [one_each] * (config.ray.ranks + 1 + len(tasks))) as group, Crew(group) as crew:
        count, device = config.ray.ranks, "cpu"
        learners = LearnerRanks(
            [
                crew.hire(f"policy rank {index} of {count}", actors.LearnerRank, config, index, count, device)
                for index in range(count)
            ]
        )
        engine = crew.hire("the rollout engine", actors.EngineWorker, config, device, at_a_time=2)
        scorers = [crew.hire(f"the scorer of {name}", actors.Scorer) for name in tasks]
        display.phase("loading the models")
        language_model, notes = _build(config, learners, engine, checkpoint)
        for note in notes:
            display.note(note)
        critic = None
        if config.algorithm.needs_critic:
            first = learners.members[0]
            critic = RemoteCritic(learners, answers([(first, first.actor.count_of_critic.remote())])[0])
        replace_engine = partial(_replace_engine, config, crew, learners, display)
        stand_in = RemoteEngine(learners, Replaceable(engine, replace_engine, config.ray.restarts))
        stand_in.load_weights()
        with ExitStack() as stack:
            make_pool = partial(_make_pool, config, crew, display, iter(scorers))
            roles = stack.enter_context(task_roles(config, tasks, language_model.tokenizer, make_pool))
            display.end_phase()
            try:
                yield Roles(roles, language_model, stand_in, RemotePolicy(learners), critic, display)
            finally:
                stand_in.close()


class Crew:
    """All actors of a run, each in a bundle of its own; at the end none is left."""

    def __init__(self, group: Any) -> None:
        """
        Args:
            group: Ray's placement group, with a bundle for each.
        """
        self._group, self._members, self._starts = group, list[Member](), list[Callable[[], Any]]()

    def __enter__(self) -> "Crew":
        return self

    def __exit__(self, *_: object) -> None:
        for member in self._members:
            with suppress(Exception):  # Ray itself may be what has ended
                import_ray().kill(member.actor)

    def hire(self, name: str, kind: type, *args: Any, at_a_time: int = 1) -> Member:
        """Start an actor in the next bundle.

        Args:
            name: for messages.
            kind: its class.
            args: of the class.
            at_a_time: calls that it works on.
        """
        start = partial(self._start, len(self._members), kind, args, at_a_time)
        self._members.append(Member(name, start(), learns=kind is actors.LearnerRank))
        self._starts.append(start)
        return self._members[-1]

    def replace(self, dead: Member) -> Member:
        """Start the same again, in the room that one had which has died."""
        place = self._members.index(dead)
        self._members[place] = replace(dead, actor=self._starts[place]())
        return self._members[place]

    def _start(self, bundle: int, kind: type, args: tuple[Any, ...], at_a_time: int) -> Any:
        ray = import_ray()
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        made = ray.remote(kind).options(
            num_cpus=1,
            max_concurrency=at_a_time,
            max_restarts=0,  # one that came back would have forgotten everything, and not say so
            scheduling_strategy=PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=bundle),
            runtime_env={"env_vars": ENVIRONMENT},
        )
        return made.remote(*args)


def _build(
    config: TrainConfig, learners: LearnerRanks, engine: Member, checkpoint: Path | None
) -> tuple[LanguageModel, list[str]]:
    """Everyone loads what he needs, at the same time; the policy's model in outline, and what the user should know."""
    path = None if checkpoint is None else checkpoint.absolute()
    loading = (engine, engine.actor.build.remote(config.model.path))
    first = learners.members[0]
    (host,) = answers([(first, first.actor.host.remote())])
    (port,) = answers([(first, first.actor.open_store.remote(host))])
    answers([(member, member.actor.join.remote(host, port)) for member in learners.members])
    building = [(member, member.actor.build.remote(path)) for member in learners.members]
    language_model, *_, notes = answers([*building, loading])
    return language_model, notes


def _replace_engine(
    config: TrainConfig, crew: Crew, learners: LearnerRanks, display: Display, dead: Member, told: str
) -> Member:
    display.note(f"{told}; it is replaced, and its batch generated anew")
    engine = crew.replace(dead)
    answers([(engine, engine.actor.build.remote(config.model.path))], whole=True)
    learners.send_weights([engine])
    return engine


def _make_pool(
    config: TrainConfig, crew: Crew, display: Display, scorers: Iterator[Member], reward: RewardConfig, task: Task
) -> RemotePool:
    """A task's; the scorers are in the order in which they are asked for."""

    def start(scorer: Member) -> Member:
        answers([(scorer, scorer.actor.start.remote(reward, task))], whole=True)
        return scorer

    def start_anew(dead: Member, told: str) -> Member:
        display.note(f"{told}; it is replaced, and its batch scored anew")
        return start(crew.replace(dead))

    return RemotePool(Replaceable(start(next(scorers)), start_anew, config.ray.restarts))
