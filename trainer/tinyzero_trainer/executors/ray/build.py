"""The roles of a run as actors: who they are, what each may take of the machines, and how they come together."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from tinyzero_sdk import Task
from tinyzero_trainer.checkpoint.run_directory import OWNER
from tinyzero_trainer.config import RewardConfig, TrainConfig
from tinyzero_trainer.config.parallel import ParallelDims, parallel_dims
from tinyzero_trainer.executors.base import Workers
from tinyzero_trainer.executors.ray import actors
from tinyzero_trainer.executors.ray.calls import ActorHandle, NoCapacityError, RestartableActor, gather
from tinyzero_trainer.executors.ray.cluster import ROOM_SECONDS, RayError, import_ray, room
from tinyzero_trainer.executors.ray.paths import with_whole_paths
from tinyzero_trainer.executors.ray.remote_engine import ColocatedEngines, DedicatedEngines, EngineGroup, RemoteEngine
from tinyzero_trainer.executors.ray.remote_workers import RemoteCritic, RemotePolicy, RemotePool, TrainerActors
from tinyzero_trainer.executors.ray.reward_actor import RewardActor
from tinyzero_trainer.executors.tasks import run_tasks
from tinyzero_trainer.models.loading import LanguageModel
from tinyzero_trainer.monitoring.progress import Progress

ENVIRONMENT = {"OMP_WAIT_POLICY": "PASSIVE"}
"""Of the actors; see utils/startup.py."""


@contextmanager
def build_ray_workers(
    config: TrainConfig, tasks: dict[str, Task], *, display: Progress, checkpoint: Path | None
) -> Iterator[Workers]:
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
    config = with_whole_paths(config)
    dims = parallel_dims(config)
    display.phase("starting Ray and its workers")
    with room(config.ray, dims.bundles(len(tasks))) as group, ActorPool(group) as crew, ExitStack() as stack:
        if (idle := _idle_gpus(config)) is not None:
            display.log(idle)
        ranks = TrainerActors(_hire_ranks(config, crew, dims), dims.device)
        engines = [
            crew.hire(
                _one_of("rollout engine", index, dims.dedicated_engines),
                actors.RolloutActor,
                config,
                index,
                dims.device,
            )
            for index in range(dims.dedicated_engines)
        ]
        scorers = [crew.hire(f"the scorer of {name}", RewardActor) for name in tasks]
        _check_run_directory(config, ranks)
        display.phase("loading the models")
        language_model, notes = _build(config, dims, ranks, engines, checkpoint)
        for note in dict.fromkeys(notes):
            display.log(note)
        critic = None
        if config.algorithm.needs_critic:
            first = ranks.members[0]
            critic = RemoteCritic(ranks, gather([(first, first.actor.count_of_critic.remote())])[0])
        if config.rollout.engine == "vllm":
            display.phase("starting vLLM, about a minute")
        engine = RemoteEngine(_fleet(config, crew, dims, ranks, engines, display), config.rollout.chunks_per_engine)
        make_pool = partial(_make_pool, config, crew, display, iter(scorers))
        roles = stack.enter_context(run_tasks(config, tasks, language_model.tokenizer, make_pool))
        display.end_phase()
        try:
            yield Workers(roles, language_model, engine, RemotePolicy(ranks), critic, display)
        finally:
            engine.close()


def _idle_gpus(config: TrainConfig) -> str | None:
    """What to say of a cluster with GPUs to whoever has not said how many of them to use; None = nothing."""
    if config.ray.gpus or config.run.device != "auto":
        return None
    there = import_ray().cluster_resources().get("GPU", 0)
    if not there:
        return None
    return f"the Ray at {config.ray.address} has {there:g} GPUs, and this run uses none; give --gpus N for N of them"


def _one_of(what: str, index: int, count: int) -> str:
    return f"the {what}" if count == 1 else f"{what} {index} of {count}"


def _hire_ranks(config: TrainConfig, crew: "ActorPool", dims: ParallelDims) -> list[ActorHandle]:
    """All ranks; those that share an engine see each other's GPUs."""
    found = [
        crew.hire(
            f"policy rank {index} of {dims.world_size}",
            actors.TrainerActor,
            config,
            index,
            dims.world_size,
            dims.device,
        )
        for index in range(dims.world_size)
    ]
    spread = dims.engine_tp
    if dims.dedicated_engines or spread < 2 or dims.device == "cpu":
        return found
    where = gather([(member, member.actor.place.remote()) for member in found])
    for start in range(0, len(found), spread):
        gpus = [gpu for _, gpu in where[start : start + spread]]
        for place, member in enumerate(found[start : start + spread]):
            gather([(member, member.actor.see.remote([*gpus[place:], *gpus[:place]]))])
    return found


def _check_run_directory(config: TrainConfig, ranks: TrainerActors) -> None:
    """Refuse a run some of whose ranks would save their parts of each checkpoint where nobody finds them.

    Raises:
        RayError: names the first such rank and its machine.
    """
    owner = Path(config.run.output) / OWNER
    if not owner.exists():  # no run holds it
        return
    content = owner.read_bytes()
    found = gather([(member, member.actor.sees.remote(owner, content)) for member in ranks.members])
    blind = next((member for member, sees in zip(ranks.members, found, strict=True) if not sees), None)
    if blind is not None:
        (host,) = gather([(blind, blind.actor.host.remote())])
        raise RayError(
            f"{blind.name} on {host} does not see {config.run.output}, where it is to save its part of each "
            "checkpoint; give --output a directory that all machines share"
        )


class ActorPool:
    """All actors of a run, each in a seat of its own; at the end none is left."""

    def __init__(self, group: Any) -> None:
        """
        Args:
            group: Ray's placement group, with the bundles of `ParallelDims`: a seat for each of its CPUs.
        """
        self._group, self._members, self._starts = group, list[ActorHandle](), list[Callable[[], Any]]()
        order = by_node(import_ray().util.placement_group_table(group)["bundles_to_node_id"], group.bundle_specs)
        self._seats = [bundle for bundle in order for _ in range(int(group.bundle_specs[bundle]["CPU"]))]

    def __enter__(self) -> "ActorPool":
        return self

    def __exit__(self, *_: object) -> None:
        for member in self._members:
            with suppress(Exception):  # Ray itself may be what has ended
                import_ray().kill(member.actor)

    def hire(self, name: str, kind: type, *args: Any) -> ActorHandle:
        """Start an actor in the next seat.

        Args:
            name: for messages.
            kind: its class.
            args: of the class.
        """
        start = partial(self._start, self._seats[len(self._members)], kind, args)
        self._members.append(ActorHandle(name, start(), learns=kind is actors.TrainerActor))
        self._starts.append(start)
        return self._members[-1]

    def replace(self, dead: ActorHandle) -> ActorHandle:
        """Start the same again, in the room that one had which has died, or one that took its place since.

        Raises:
            NoRoom: that room is gone, as where its machine is.
        """
        ray, place = import_ray(), [member.name for member in self._members].index(dead.name)
        with suppress(Exception):  # it may be what has died
            ray.kill(self._members[place].actor)
        self._members[place] = replace(dead, actor=self._starts[place]())
        there, _ = ray.wait([self._members[place].actor.host.remote()], timeout=ROOM_SECONDS)
        if not there:
            end = f"has died, and in {ROOM_SECONDS:g} s no other could be started on its machine"
            raise NoCapacityError(dead.name, end, policy_is_whole=not dead.learns)
        return self._members[place]

    def _start(self, bundle: int, kind: type, args: tuple[Any, ...]) -> Any:
        ray = import_ray()
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        spec = self._group.bundle_specs[bundle]
        made = ray.remote(kind).options(
            num_cpus=1,
            num_gpus=spec.get("GPU", 0) / spec["CPU"],
            max_concurrency=2 if issubclass(kind, actors.Generating) else 1,  # how far a batch is, asked meanwhile
            max_restarts=0,  # one that came back would have forgotten everything, and not say so
            scheduling_strategy=PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=bundle),
            runtime_env={"env_vars": ENVIRONMENT},
        )
        return made.remote(*args)


def by_node(nodes: Mapping[int, str], bundles: Sequence[Mapping[str, float]]) -> list[int]:
    """An order of the bundles in which alike ones that are neighbours are on one node, as far as can be.

    Those that exchange most are neighbours: ranks that share an engine, a line, a replica.

    Example:
        >>> by_node({0: "a", 1: "b", 2: "a", 3: "b"}, [{"GPU": 1}, {"GPU": 1}, {"GPU": 1}, {"CPU": 1}])
        [0, 2, 1, 3]
    """
    known, order = list(dict.fromkeys(nodes.values())), list[int]()
    for _, alike in groupby(range(len(bundles)), key=lambda bundle: bundles[bundle]):
        order += sorted(alike, key=lambda bundle: known.index(nodes[bundle]))
    return order


def _build(
    config: TrainConfig,
    dims: ParallelDims,
    ranks: TrainerActors,
    engines: Sequence[ActorHandle],
    checkpoint: Path | None,
) -> tuple[LanguageModel, list[str]]:
    """Everyone loads what he needs, at the same time; the policy's model in outline, and what the user should know."""
    path = None if checkpoint is None else checkpoint.absolute()
    loading = [(engine, engine.actor.build.remote(config.model.path)) for engine in engines]
    first = ranks.members[0]
    (host,) = gather([(first, first.actor.host.remote())])
    (port,) = gather([(first, first.actor.open_store.remote(host))])
    gather([(member, member.actor.join.remote(host, port)) for member in ranks.members])
    building = [(member, member.actor.build.remote(path)) for member in ranks.members]
    found = gather([*building, *loading])
    return found[0], [note for notes in found[dims.world_size :] for note in notes]


def _fleet(
    config: TrainConfig,
    crew: "ActorPool",
    dims: ParallelDims,
    ranks: TrainerActors,
    engines: Sequence[ActorHandle],
    display: Progress,
) -> EngineGroup:
    restarts = config.ray.max_restarts
    if not engines:
        by_all = config.vllm.verify_weights and dims.world_size > 1  # a single rank checks its engine by itself
        return ColocatedEngines(ranks, dims.engine_ranks, restarts, display.log, check_sync=by_all)
    replace_engine = partial(_replace_engine, config, crew, ranks, display)
    return DedicatedEngines(ranks, [RestartableActor(engine, replace_engine, restarts) for engine in engines])


def _replace_engine(
    config: TrainConfig, crew: "ActorPool", ranks: TrainerActors, display: Progress, dead: ActorHandle, told: str
) -> ActorHandle:
    display.log(f"{told}; it is replaced, and its batch generated anew")
    engine = crew.replace(dead)
    gather([(engine, engine.actor.build.remote(config.model.path))], whole=True)
    ranks.send_weights([engine])
    return engine


def _make_pool(
    config: TrainConfig,
    crew: ActorPool,
    display: Progress,
    scorers: Iterator[ActorHandle],
    reward: RewardConfig,
    task: Task,
) -> RemotePool:
    """A task's; the scorers are in the order in which they are asked for."""

    def start(scorer: ActorHandle) -> ActorHandle:
        gather([(scorer, scorer.actor.start.remote(reward, task))], whole=True)
        return scorer

    def start_anew(dead: ActorHandle, told: str) -> ActorHandle:
        display.log(f"{told}; it is replaced, and its batch scored anew")
        return start(crew.replace(dead))

    return RemotePool(RestartableActor(start(next(scorers)), start_anew, config.ray.max_restarts))
