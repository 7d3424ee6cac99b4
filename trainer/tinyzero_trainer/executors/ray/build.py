"""The workers of a run as Ray actors: which there are, where each is placed, and how they are brought up."""

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
from tinyzero_trainer.errors import EngineDiedError, NoCapacityError, WorkerDiedError
from tinyzero_trainer.executors.base import Workers
from tinyzero_trainer.executors.ray import actors
from tinyzero_trainer.executors.ray.calls import ActorHandle, gather
from tinyzero_trainer.executors.ray.cluster import RESOURCES_SECONDS, RayError, import_ray, placement_group
from tinyzero_trainer.executors.ray.paths import with_absolute_paths
from tinyzero_trainer.executors.ray.remote_engine import ColocatedEngines, DedicatedEngines, RemoteEngine
from tinyzero_trainer.executors.ray.remote_workers import RemoteCritic, RemotePolicy, RemotePool, TrainerActors
from tinyzero_trainer.executors.ray.reward_actor import RewardActor
from tinyzero_trainer.executors.restart import Restartable
from tinyzero_trainer.executors.tasks import run_tasks
from tinyzero_trainer.models.loading import LanguageModel
from tinyzero_trainer.monitoring.progress import Progress

ENVIRONMENT = {"OMP_WAIT_POLICY": "PASSIVE"}
"""Of the actors; see utils/startup.py."""


@contextmanager
def build_ray_workers(
    config: TrainConfig, tasks: Mapping[str, Task], *, display: Progress, checkpoint: Path | None
) -> Iterator[Workers]:
    """Start Ray and all actors; leaving the context ends them.

    Args:
        config: the run's.
        tasks: from `load_tasks`.
        display: shows the phases.
        checkpoint: directory whose weights are loaded instead of the starting model's.

    Raises:
        RayError: Ray is not installed, or has too few free resources.
        WorkerDiedError: an actor died while it started.
    """
    config = with_absolute_paths(config)
    dims = parallel_dims(config)
    display.phase("starting Ray and its workers")
    bundles = dims.bundles(len(tasks))
    with placement_group(config.ray, bundles) as group, ActorPool(group) as pool, ExitStack() as stack:
        if (idle := _idle_gpus(config)) is not None:
            display.log(idle)
        ranks = TrainerActors(_start_ranks(config, pool, dims), dims.device)
        number = dims.dedicated_engines
        engines = [
            pool.start(
                "the rollout engine" if number == 1 else f"the rollout engine {index} of {number}",
                actors.RolloutActor,
                config,
                index,
                dims.device,
            )
            for index in range(number)
        ]
        scorers = iter([pool.start(f"the scorer of {name}", RewardActor) for name in tasks])
        _check_run_directory(config, ranks)
        display.phase("loading the models")
        language_model, notes = _load_models(config, ranks, engines, checkpoint)
        for note in dict.fromkeys(notes):
            display.log(note)
        critic = None
        if config.algorithm.needs_critic:
            first = ranks.actors[0]
            critic = RemoteCritic(ranks, gather([(first, first.handle.critic_parameters.remote())])[0])
        if config.rollout.engine == "vllm":
            display.phase("starting vLLM, about a minute")
        remote = _connect_engines(config, pool, ranks, engines, display)

        def make_pool(reward: RewardConfig, task: Task) -> RemotePool:
            """Of the next scorer: tasks come in the same order."""

            def start(scorer: ActorHandle) -> ActorHandle:
                gather([(scorer, scorer.handle.start.remote(reward, task))], policy_intact=True)
                return scorer

            scorer = start(next(scorers))
            limits = {WorkerDiedError: config.ray.max_restarts}
            return RemotePool(
                Restartable(scorer.name, scorer, lambda died: start(pool.replace(died)), limits, display.log)
            )

        run = stack.enter_context(run_tasks(config, tasks, language_model.tokenizer, make_pool))
        display.end_phase()
        try:
            yield Workers(run, language_model, remote, RemotePolicy(ranks), critic, display)
        finally:
            remote.close()


def _connect_engines(
    config: TrainConfig, pool: "ActorPool", ranks: TrainerActors, engines: list[ActorHandle], display: Progress
) -> RemoteEngine:
    """The engines of the run as one: dedicated ones where there are any, else those colocated with the ranks."""
    dims = parallel_dims(config)
    restarts = config.vllm.max_restarts if config.vllm.separate_process else 0
    if not engines:
        by_all = config.vllm.verify_weights and dims.world_size > 1  # a single rank checks its engine by itself
        colocated = ColocatedEngines(ranks, dims.engine_ranks, restarts, display.log, check_sync=by_all)
        return RemoteEngine(colocated, config.rollout.chunks_per_engine)

    def restart(died: ActorHandle) -> ActorHandle:
        engine = pool.replace(died)
        gather([(engine, engine.handle.build.remote(config.model.path))], policy_intact=True)
        ranks.send_weights([engine])
        return engine

    limits = {WorkerDiedError: config.ray.max_restarts, EngineDiedError: restarts}
    dedicated = [Restartable(each.name, each, restart, limits, display.log) for each in engines]
    return RemoteEngine(DedicatedEngines(ranks, dedicated), config.rollout.chunks_per_engine)


def _idle_gpus(config: TrainConfig) -> str | None:
    """A note for a run that uses none of its cluster's GPUs without having said so; None otherwise."""
    if config.ray.gpus or config.run.device != "auto":
        return None
    gpus = import_ray().cluster_resources().get("GPU", 0)
    if not gpus:
        return None
    return f"the Ray at {config.ray.address} has {gpus:g} GPUs, and this run uses none; give --gpus N for N of them"


def _start_ranks(config: TrainConfig, pool: "ActorPool", dims: ParallelDims) -> list[ActorHandle]:
    """All ranks; those that share an engine see each other's GPUs."""
    ranks = [
        pool.start(
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
        return ranks
    gpus = gather([(rank, rank.handle.gpu.remote()) for rank in ranks])
    for start in range(0, len(ranks), spread):
        shared = gpus[start : start + spread]
        for place, rank in enumerate(ranks[start : start + spread]):
            gather([(rank, rank.handle.set_visible_gpus.remote([*shared[place:], *shared[:place]]))])
    return ranks


def _check_run_directory(config: TrainConfig, ranks: TrainerActors) -> None:
    """Refuse a run if a rank would save its shard of each checkpoint on another file system.

    Raises:
        RayError: names the first such rank and its machine.
    """
    owner = Path(config.run.output) / OWNER
    if not owner.exists():  # no run holds it
        return
    content = owner.read_bytes()
    visible = gather([(rank, rank.handle.sees.remote(owner, content)) for rank in ranks.actors])
    blind = next((rank for rank, sees in zip(ranks.actors, visible, strict=True) if not sees), None)
    if blind is not None:
        (host,) = gather([(blind, blind.handle.host.remote())])
        raise RayError(
            f"{blind.name} on {host} does not see {config.run.output}, where it is to save its part of each "
            "checkpoint; give --output a directory that all machines share"
        )


def _load_models(
    config: TrainConfig, ranks: TrainerActors, engines: Sequence[ActorHandle], checkpoint: Path | None
) -> tuple[LanguageModel, list[str]]:
    """Ranks and engines load theirs at the same time; the policy's without weights, and messages for the user."""
    path = None if checkpoint is None else checkpoint.absolute()
    loading = [(engine, engine.handle.build.remote(config.model.path)) for engine in engines]
    first = ranks.actors[0]
    (host,) = gather([(first, first.handle.host.remote())])
    (port,) = gather([(first, first.handle.open_store.remote(host))])
    gather([(rank, rank.handle.join.remote(host, port)) for rank in ranks.actors])
    building = [(rank, rank.handle.build.remote(path)) for rank in ranks.actors]
    results = gather([*building, *loading])
    return results[0], [note for notes in results[len(building) :] for note in notes]


class ActorPool:
    """All actors of a run, each in a bundle of the placement group; at the end none is left."""

    def __init__(self, group: Any) -> None:
        """
        Args:
            group: Ray's placement group, with the bundles of `ParallelDims`: an actor for each of their CPUs.
        """
        self._group, self._actors, self._starts = group, list[ActorHandle](), list[Callable[[], Any]]()
        order = by_node(import_ray().util.placement_group_table(group)["bundles_to_node_id"], group.bundle_specs)
        self._bundles = [bundle for bundle in order for _ in range(int(group.bundle_specs[bundle]["CPU"]))]

    def __enter__(self) -> "ActorPool":
        return self

    def __exit__(self, *_: object) -> None:
        for actor in self._actors:
            with suppress(Exception):  # Ray itself may have ended
                import_ray().kill(actor.handle)

    def start(self, name: str, kind: type, *args: Any) -> ActorHandle:
        """Start an actor in the next bundle.

        Args:
            name: for messages.
            kind: its class.
            args: of the class.
        """
        start = partial(self._start, self._bundles[len(self._actors)], kind, args)
        self._actors.append(ActorHandle(name, start(), trains=kind is actors.TrainerActor))
        self._starts.append(start)
        return self._actors[-1]

    def replace(self, died: ActorHandle) -> ActorHandle:
        """Start the same actor again, in the bundle of the one that died.

        Raises:
            NoCapacityError: that bundle's resources are gone, for example with its machine.
        """
        ray, index = import_ray(), [actor.name for actor in self._actors].index(died.name)
        with suppress(Exception):  # it may have ended
            ray.kill(self._actors[index].handle)
        self._actors[index] = replace(died, handle=self._starts[index]())
        started, _ = ray.wait([self._actors[index].handle.host.remote()], timeout=RESOURCES_SECONDS)
        if not started:
            end = f"has died, and in {RESOURCES_SECONDS:g} s no other could be started on its machine"
            raise NoCapacityError(died.name, end, policy_intact=not died.trains)
        return self._actors[index]

    def _start(self, bundle: int, kind: type, args: tuple[Any, ...]) -> Any:
        ray = import_ray()
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        spec = self._group.bundle_specs[bundle]
        actor = ray.remote(kind).options(
            num_cpus=1,
            num_gpus=spec.get("GPU", 0) / spec["CPU"],
            max_concurrency=2 if issubclass(kind, actors.EngineActor) else 1,  # for `finished` and `stop`
            max_restarts=0,  # Ray would restart it without its state, and not say so
            scheduling_strategy=PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=bundle),
            runtime_env={"env_vars": ENVIRONMENT},
        )
        return actor.remote(*args)


def by_node(nodes: Mapping[int, str], bundles: Sequence[Mapping[str, float]]) -> list[int]:
    """An order of the bundles in which neighbours with equal resources are on one node, as far as possible.

    The ranks that communicate most are neighbours: those that share an engine, sequences, or a replica.

    Example:
        >>> by_node({0: "a", 1: "b", 2: "a", 3: "b"}, [{"GPU": 1}, {"GPU": 1}, {"GPU": 1}, {"CPU": 1}])
        [0, 2, 1, 3]
    """
    known, order = list(dict.fromkeys(nodes.values())), list[int]()
    for _, alike in groupby(range(len(bundles)), key=lambda bundle: bundles[bundle]):
        order += sorted(alike, key=lambda bundle: known.index(nodes[bundle]))
    return order
