"""Starts the workers of a run as Ray actors, each in its place."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import torch

from tinyzero_sdk import Task
from tinyzero_trainer.checkpoint.run_directory import OWNER
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.config.model_defaults import directory_of
from tinyzero_trainer.distributed.parallel_dims import ParallelDims, parallel_dims
from tinyzero_trainer.errors import EngineDiedError, NoCapacityError, WorkerDiedError
from tinyzero_trainer.executors.base import Workers
from tinyzero_trainer.executors.micro_batch_halving import halve_until_it_fits
from tinyzero_trainer.executors.ray import actors
from tinyzero_trainer.executors.ray.base_actor import ActorHandle
from tinyzero_trainer.executors.ray.calls import Call, gather
from tinyzero_trainer.executors.ray.cluster import RayError, import_ray, placement_group
from tinyzero_trainer.executors.ray.remote_engine import ColocatedEngines, DedicatedEngines, RemoteEngine
from tinyzero_trainer.executors.ray.remote_workers import RemoteLearner, TrainerActors
from tinyzero_trainer.executors.ray.watch import kill_process
from tinyzero_trainer.executors.restart import Restartable
from tinyzero_trainer.executors.tasks import run_tasks
from tinyzero_trainer.monitoring.progress import Progress

ANSWER_SECONDS = 5.0
"""For actors to answer at the end of the run; those that do not are killed."""

RESTART_SECONDS = 180.0
"""For a process to start in place of another: all ranks of a machine import PyTorch at the same time."""


@contextmanager
def build_workers(
    config: TrainConfig,
    tasks: Mapping[str, Task],
    device: torch.device,
    *,
    display: Progress,
    training: bool,
    checkpoint: Path | None,
) -> Iterator[Workers]:
    """Start Ray and all actors; leaving the context ends them. See executors/build.py for the arguments.

    Raises:
        RayError: Ray is not installed, or has too few free resources.
        WorkerDiedError: an actor died while it started.
    """
    config, checkpoint = with_absolute_paths(config), None if checkpoint is None else checkpoint.absolute()
    dims = parallel_dims(config)
    display.phase("starting Ray and its workers")
    bundles = dims.bundles()
    with (
        placement_group(config.ray, bundles) as group,
        ActorPool(group, config.ray.timeout) as pool,
        ExitStack() as stack,
    ):
        count = dims.world_size
        ranks = TrainerActors(
            [
                pool.start(f"policy rank {index} of {count}", actors.TrainerActor, config, index, count, dims.device)
                for index in range(count)
            ]
        )
        _share_gpus(dims, ranks.actors)
        number, engine = dims.dedicated_engines, "the rollout engine"
        names = [engine if number == 1 else f"{engine} {index} of {number}" for index in range(number)]
        engines = [
            pool.start(name, actors.RolloutActor, config, index, dims.device) for index, name in enumerate(names)
        ]
        _check_run_directory(config, ranks)
        display.record_startup("ray")
        display.phase("loading the model")
        loading = [(engine, engine.handle.build.remote(config.model.path)) for engine in engines]
        building = _build_ranks(ranks.actors, checkpoint)
        language_model, *loaded = gather([*building, *loading])
        display.record_startup("model")
        micro_batch_tokens = config.optimizer.token_budget

        def try_largest(tokens: int) -> None:
            if tokens < config.optimizer.token_budget:  # a rank had too little memory, and the others wait for it
                ranks.actors = pool.restart(*ranks.actors)
                _share_gpus(dims, ranks.actors)
                gather(_build_ranks(ranks.actors, checkpoint))
            ranks.gather(lambda rank: rank.try_largest.remote(tokens))

        if dims.device == "cuda":
            micro_batch_tokens = halve_until_it_fits(config, try_largest, display.log)
        display.record_startup("warm_up")
        for note in dict.fromkeys(note for notes in loaded[len(building) - 1 :] for note in notes):
            display.log(note)
        policy: Any = RemoteLearner(ranks, "policy", micro_batch_tokens)
        critic: Any = RemoteLearner(ranks, "critic", micro_batch_tokens) if config.algorithm.needs("critic") else None
        teacher: Any = (
            RemoteLearner(ranks, "teacher", micro_batch_tokens) if config.algorithm.needs("teacher") else None
        )
        if message := config.rollout.kind.startup_message:
            display.phase(message)
        remote = _connect_engines(config, pool, ranks, engines, display.log)
        run = stack.enter_context(run_tasks(config, tasks, language_model.tokenizer))
        display.record_startup("engine")
        display.end_phase()
        try:
            yield Workers(run, language_model, remote, policy, critic, teacher, display)
        finally:
            pool.kill_hung()
            remote.close()


def with_absolute_paths(config: TrainConfig) -> TrainConfig:
    """The same with absolute paths, since actors have other working directories.

    Names on the Hugging Face Hub stay as they are; tasks carry the absolute path of their file.
    """
    path, teacher = map(_absolute_model, (config.model.path, config.model.teacher))
    config = replace(config, model=replace(config.model, path=path, teacher=teacher))
    return replace(config, run=replace(config.run, output=_absolute(config.run.output)))


def _absolute_model(name: str | None) -> str | None:
    directory = directory_of(name)
    return name if directory is None or not directory.expanduser().is_dir() else _absolute(directory)


def _absolute(path: str | Path) -> str:
    return str(Path(path).expanduser().absolute())


def _connect_engines(
    config: TrainConfig,
    pool: "ActorPool",
    ranks: TrainerActors,
    engines: Sequence[ActorHandle],
    report: Callable[[str], None],
) -> RemoteEngine:
    """The engines of the run as one: dedicated ones where there are any, else those colocated with the ranks."""
    dims, chunks = parallel_dims(config), config.rollout.chunks_per_engine
    restarts = config.rollout.kind.max_restarts(config)
    if not engines:
        check_sync = config.vllm.verify_weights and dims.world_size > 1  # a single rank checks its engine by itself
        return ColocatedEngines(ranks, dims.engine_ranks, chunks, restarts, report, check_sync=check_sync)

    def restart(died: ActorHandle) -> ActorHandle:
        (engine,) = pool.restart(died)
        gather([(engine, engine.handle.build.remote(config.model.path))], policy_intact=True)
        ranks.send_weights([engine])
        return engine

    limits = {WorkerDiedError: config.ray.max_restarts, EngineDiedError: restarts}
    return DedicatedEngines(
        ranks, [Restartable(engine.name, engine, restart, limits, report) for engine in engines], chunks
    )


def _share_gpus(dims: ParallelDims, ranks: Sequence[ActorHandle]) -> None:
    """Let ranks that share an engine see each other's GPUs."""
    shared = dims.engine_tp
    if dims.dedicated_engines or shared < 2 or dims.device == "cpu":
        return
    gpus = gather([(rank, rank.handle.gpu.remote()) for rank in ranks])
    for index, rank in enumerate(ranks):
        start = index - index % shared
        gather([(rank, rank.handle.set_visible_gpus.remote([*gpus[index : start + shared], *gpus[start:index]]))])


def _build_ranks(ranks: Sequence[ActorHandle], checkpoint: Path | None) -> list[Call]:
    """Calls that load the models, from a checkpoint if there is one; the ranks have found each other."""
    first = ranks[0]
    (address,) = gather([(first, first.handle.open_store.remote(len(ranks)))])
    gather([(rank, rank.handle.join.remote(address)) for rank in ranks])
    return [(rank, rank.handle.build.remote(checkpoint)) for rank in ranks]


def _check_run_directory(config: TrainConfig, ranks: TrainerActors) -> None:
    """Refuse a run if a rank would save its shard of each checkpoint on another file system.

    Raises:
        RayError: names the first such rank and its machine.
    """
    owner = Path(config.run.output) / OWNER
    if not owner.exists():  # no run holds it
        return
    content = owner.read_bytes()
    visible = ranks.gather(lambda rank: rank.sees.remote(owner, content))
    blind = next((rank for rank, sees in zip(ranks.actors, visible, strict=True) if not sees), None)
    if blind is not None:
        (host,) = gather([(blind, blind.handle.host.remote())])
        raise RayError(
            f"{blind.name} on {host} does not see {config.run.output}, where it has to save its shard of each "
            "checkpoint; give --output a directory that all machines share"
        )


class ActorPool:
    """All actors of a run, each in a bundle of the placement group; they are killed at the end."""

    def __init__(self, group: Any, timeout: float) -> None:
        """`group` is Ray's placement group, with the bundles of `ParallelDims`: an actor for each of their CPUs."""
        self._group, self._timeout = group, timeout
        self._starts, self._actors = dict[str, tuple[int, type, tuple[Any, ...]]](), dict[str, ActorHandle]()
        order = by_node(import_ray().util.placement_group_table(group)["bundles_to_node_id"], group.bundle_specs)
        self._bundles = [bundle for bundle in order for _ in range(int(group.bundle_specs[bundle]["CPU"]))]

    def __enter__(self) -> "ActorPool":
        return self

    def __exit__(self, *_: object) -> None:
        self.kill_hung()
        for actor in self._actors.values():
            with suppress(Exception):  # Ray itself may have ended
                import_ray().kill(actor.handle)

    def kill_hung(self) -> None:
        """Kill actors that do not answer: calls at the end of the run would wait for them, and Ray leaves them."""
        with suppress(Exception):  # Ray itself may have ended
            pings = {actor.handle.host.remote(): actor for actor in self._actors.values()}
            for ping in import_ray().wait(list(pings), num_returns=len(pings), timeout=ANSWER_SECONDS)[1]:
                kill_process(import_ray(), pings[ping])

    def start(self, name: str, kind: type, *args: Any) -> ActorHandle:
        """Start an actor of class `kind` in the next bundle; `name` is for messages."""
        self._starts[name] = (self._bundles[len(self._starts)], kind, args)
        return self._launch(name)

    def restart(self, *before: ActorHandle) -> list[ActorHandle]:
        """Start the same actors again, each in the bundle of the one before, which may have died.

        Raises:
            NoCapacityError: a bundle's resources are gone, for example with its machine.
        """
        ray = import_ray()
        for actor in before:
            ray.kill(self._actors[actor.name].handle)
        after = [self._launch(actor.name) for actor in before]
        started = [actor.process for actor in after]
        _, missing = ray.wait(started, num_returns=len(started), timeout=RESTART_SECONDS)
        if missing:
            lost = before[started.index(missing[0])]
            end = f"has died, and could not be restarted on its machine within {RESTART_SECONDS:g} s"
            raise NoCapacityError(lost.name, end, policy_intact=not lost.trains)
        return after

    def _launch(self, name: str) -> ActorHandle:
        ray = import_ray()
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        bundle, kind, args = self._starts[name]
        spec = self._group.bundle_specs[bundle]
        actor = ray.remote(kind).options(
            num_cpus=1,
            num_gpus=spec.get("GPU", 0) / spec["CPU"],
            max_concurrency=3 if issubclass(kind, actors.EngineActor) else 2,  # for pings, `finished` and `stop`
            max_restarts=0,  # Ray would restart it without its state, and silently
            scheduling_strategy=PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=bundle),
        )
        handle, trains = actor.remote(*args), kind is actors.TrainerActor
        self._actors[name] = ActorHandle(name, handle, trains, self._timeout, handle.process.remote())
        return self._actors[name]


def by_node(nodes: Mapping[int, str], bundles: Sequence[Mapping[str, float]]) -> list[int]:
    """The bundles ordered so that neighbours with equal resources are on one node, as far as possible.

    Ranks that communicate most are neighbours: those that share an engine, sequences, or a replica.

    Example:
        >>> by_node({0: "a", 1: "b", 2: "a", 3: "b"}, [{"GPU": 1}, {"GPU": 1}, {"GPU": 1}, {"CPU": 1}])
        [0, 2, 1, 3]
    """
    known, order = list(dict.fromkeys(nodes.values())), list[int]()
    for _, alike in groupby(range(len(bundles)), key=lambda bundle: bundles[bundle]):
        order += sorted(alike, key=lambda bundle: known.index(nodes[bundle]))
    return order
