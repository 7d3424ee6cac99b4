"""How many processes and engines a run has, what each takes of the machines, and how they divide model and batch.

Arithmetic of the configuration alone: neither Ray nor torch is needed for it. The process groups that a rank joins are
in distributed/mesh.py.
"""

from dataclasses import dataclass
from typing import Literal

from tinyzero_sdk.console import plural
from tinyzero_sdk.errors import TinyZeroError
from tinyzero_trainer.config.train_config import TrainConfig

Resources = dict[str, float]
GpuRole = Literal["rank", "engine"]
"""`rank` = a GPU that trains, and generates where engines are colocated; `engine` = a GPU of a dedicated engine."""


class ParallelError(TinyZeroError):
    """Ranks and engines do not fit on the GPUs."""


@dataclass(frozen=True, slots=True)
class ParallelDims:
    """Sizes of a run's groups of processes; by default one process."""

    world_size: int = 1
    """Ranks: processes that train."""

    dp_replicate: int = 1
    """Groups of ranks that each hold a whole model."""

    sequence_parallel: int = 1
    """Ranks that share each sequence."""

    num_engines: int = 1
    engine_tp: int = 1
    """GPUs of an engine; on the CPU, processes."""

    colocated: bool = True
    """Whether engines use the ranks' GPUs."""

    chunks_per_engine: int = 1
    device: str = "cuda"
    """Device of all processes: `cpu` or `cuda`."""

    @property
    def dp_shard(self) -> int:
        """Ranks that a model is sharded over."""
        return self.world_size // self.dp_replicate

    @property
    def data_parallel(self) -> int:
        """Shards of a mini-batch that are trained on at the same time."""
        return self.world_size // self.sequence_parallel

    @property
    def dedicated_engines(self) -> int:
        """Engines with processes of their own."""
        return 0 if self.colocated else self.num_engines

    @property
    def engine_ranks(self) -> range:
        """Ranks with a colocated engine: the first of each group that shares one."""
        return range(0, self.world_size if self.colocated else 0, self.engine_tp)

    @property
    def gpu_roles(self) -> tuple[GpuRole, ...]:
        return ("rank",) if self.colocated else ("rank", "engine")

    @property
    def generating(self) -> GpuRole:
        """Role of the GPUs that engines use."""
        return self.gpu_roles[-1]

    @property
    def gpus(self) -> int:
        return sum(map(self.count, self.gpu_roles))

    def count(self, role: GpuRole) -> int:
        return self.world_size if role == "rank" else self.num_engines * self.engine_tp

    def shard(self, parameters: int) -> int:
        """The most of these parameters that a rank holds."""
        return -(-parameters // self.dp_shard)

    def largest_chunk(self, prompts: int) -> int:
        """The most of these prompts that an engine is given at a time."""
        return -(-prompts // min(prompts, self.num_engines * self.chunks_per_engine))

    def bundles(self) -> list[Resources]:
        """What is reserved on a node at a time, with a CPU for each actor: for ranks and engines.

        Ranks that share an engine are reserved together, so that they are on one node.

        Example:
            >>> ParallelDims(world_size=4, num_engines=2, engine_tp=2).bundles()
            [{'CPU': 2.0, 'GPU': 2.0}, {'CPU': 2.0, 'GPU': 2.0}]
        """
        together = self.engine_tp if self.colocated else 1

        def reserved(actors: int, gpus: int) -> Resources:
            return {"CPU": float(actors)} | ({"GPU": float(gpus)} if self.device == "cuda" and gpus else {})

        ranks = [reserved(together, together)] * (self.world_size // together)
        return ranks + [reserved(1, self.engine_tp)] * self.dedicated_engines


SINGLE_PROCESS = ParallelDims()


def parallel_dims(config: TrainConfig) -> ParallelDims:
    """The processes of a run through Ray; raises `ParallelError` with what to change if they do not fit on the GPUs.

    Example:
        >>> from tinyzero_sdk.settings import build
        >>> words = {"run": {"executor": "ray"}, "ray": {"gpus": 4}, "rollout": {"num_engines": 1}}
        >>> dims = parallel_dims(build(TrainConfig, words))
        >>> dims.world_size, dims.num_engines, dims.colocated
        (3, 1, False)
    """
    device, gpus, parallel = config.run.device, config.ray.gpus, config.parallel
    engines, engine_tp = config.rollout.num_engines, config.vllm.tensor_parallel
    ranks = gpus - engines * engine_tp if gpus else parallel.world_size or 1
    size = f" of {engine_tp} GPUs each" if engine_tp > 1 else ""
    fault = ""
    if device not in ("auto", "cuda" if gpus else "cpu"):
        fault = (
            f"run.device={device} does not go with ray.gpus={gpus}: Ray gives each process its device; leave "
            "run.device out (with --resume give run.device=auto), or give another --gpus N"
        )
    elif ranks < 1:
        fault = (
            f"rollout.num_engines={engines}{size} leave no GPU of ray.gpus={gpus} to train on; raise ray.gpus, or "
            "lower rollout.num_engines (0 = colocated engines)"
        )
    elif parallel.world_size not in (None, ranks):
        fault = (
            f"parallel.world_size={parallel.world_size}, but ray.gpus={gpus} with rollout.num_engines={engines}{size} "
            f"is {ranks}: a rank for each GPU without a dedicated engine; leave parallel.world_size out, or with "
            f"--resume give parallel.world_size={ranks}"
        )
    elif not engines and ranks % engine_tp:
        fault = (
            f"vllm.tensor_parallel={engine_tp} does not divide {f'ray.gpus={gpus}' if gpus else f'the {ranks} ranks'}, "
            "each of which generates; change one of them, or dedicate GPUs to engines with rollout.num_engines"
        )
    elif ranks % parallel.dp_replicate:
        fault = f"parallel.dp_replicate={parallel.dp_replicate} does not divide the {ranks} ranks; change one of them"
    elif ranks // parallel.dp_replicate % parallel.sequence_parallel:
        fault = (
            f"parallel.sequence_parallel={parallel.sequence_parallel} does not divide the "
            f"{ranks // parallel.dp_replicate} ranks of a replica; change one of them"
        )
    if fault:
        raise ParallelError(fault)
    return ParallelDims(
        ranks,
        parallel.dp_replicate,
        parallel.sequence_parallel,
        engines or ranks // engine_tp,
        engine_tp,
        colocated=not engines,
        chunks_per_engine=config.rollout.chunks_per_engine,
        device="cuda" if gpus else "cpu",
    )


def planned_dims(config: TrainConfig) -> ParallelDims:
    """The processes to plan for, as `parallel_dims` has them; a run without GPUs is planned as one process."""
    if not config.run.kind.own_processes or not config.ray.gpus:
        return SINGLE_PROCESS
    return parallel_dims(config)


def refuse_uneven(setting: str, count: int, heads: int) -> None:
    """Refuse a setting that does not divide a model's attention heads."""
    if heads % count:
        possible = ", ".join(str(number) for number in range(1, heads + 1) if heads % number == 0)
        raise ParallelError(
            f"{setting}={count} does not divide the model's {heads} attention heads; give one of {possible}"
        )


def device_of(config: TrainConfig) -> str:
    """`run.device`; for processes of their own the CPU, unless they have GPUs."""
    return "cpu" if config.run.kind.own_processes and not config.ray.gpus else config.run.device


def describe_dims(config: TrainConfig) -> str:
    """Which processes are on how many GPUs, as text; empty for one GPU."""
    dims, tensor_parallel = planned_dims(config), config.vllm.tensor_parallel
    if dims.gpus == 1:
        alone = not config.run.kind.own_processes and tensor_parallel > 1
        return f"vLLM is on {tensor_parallel} GPUs; the plan is for the first, which also trains" if alone else ""
    text = f"{plural(dims.gpus, 'GPU')}: {plural(dims.world_size, 'rank')} and {plural(dims.num_engines, 'engine')}"
    text += f" of {dims.engine_tp} GPUs" * (dims.engine_tp > 1) + ", which share them" * dims.colocated
    text += f"; {dims.dp_replicate} replicas of the model" * (dims.dp_replicate > 1)
    return text + f"; {dims.sequence_parallel} ranks share each sequence" * (dims.sequence_parallel > 1)
