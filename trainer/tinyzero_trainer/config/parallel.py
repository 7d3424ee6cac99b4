"""Who is where: how many ranks and engines a run has, and what each takes of the machines. Ray is not needed for it."""

from dataclasses import dataclass
from typing import Any

from tinyzero_sdk.errors import TinyZeroError
from tinyzero_trainer.config.train_config import TrainConfig

Resources = dict[str, float]


class ParallelError(TinyZeroError):
    """Ranks and engines do not fit on the GPUs."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Of a run's actors."""

    ranks: int
    """Processes that learn."""

    engines: int
    """Rollout engines in processes of their own; 0 = ranks have them."""

    spread: int
    """GPUs of an engine; on the CPU, processes."""

    device: str
    """Of all: `cpu` or `cuda`."""

    @property
    def places(self) -> range:
        """Ranks with an engine beside them: the first of each so many that share one."""
        return range(0, 0 if self.engines else self.ranks, self.spread)

    def bundles(self, scorers: int) -> list[Resources]:
        """What is taken of a node at a time, with a CPU for each actor: by ranks, engines, scorers.

        Ranks that share an engine are taken together, so that they are on one node.

        Example:
            >>> Layout(ranks=4, engines=0, spread=2, device="cuda").bundles(scorers=1)
            [{'CPU': 2.0, 'GPU': 2.0}, {'CPU': 2.0, 'GPU': 2.0}, {'CPU': 1.0}]
        """
        together = 1 if self.engines else self.spread

        def taken(actors: int, gpus: int) -> Resources:
            return {"CPU": float(actors)} | ({"GPU": float(gpus)} if self.device == "cuda" and gpus else {})

        ranks = [taken(together, together)] * (self.ranks // together)
        return ranks + [taken(1, self.spread)] * self.engines + [taken(1, 0)] * scorers


def flag_settings(gpus: int | None, address: str | None) -> dict[str, Any]:
    """The settings that `--gpus` and `--address` stand for; None = not given.

    Example:
        >>> flag_settings(0, None)
        {'ray.gpus': 0, 'ray.address': None, 'run.executor': 'ray', 'run.device': 'cpu'}
    """
    executor = None if gpus is None and address is None else "ray"
    return {
        "ray.gpus": gpus,
        "ray.address": address,
        "run.executor": executor,
        "run.device": None if gpus is None else "auto" if gpus else "cpu",  # a run that goes on may have had another
    }


def layout_of(config: TrainConfig) -> Layout:
    """What a configuration says.

    Raises:
        ParallelError: see there; says what to change.

    Example:
        >>> from tinyzero_sdk.settings import build
        >>> words = {"run": {"task": "countdown", "executor": "ray"}, "ray": {"gpus": 4}, "rollout": {"num_engines": 1}}
        >>> layout = layout_of(build(TrainConfig, words))
        >>> layout.ranks, layout.engines, list(layout.places)
        (3, 1, [])
    """
    ray, parallel, rollout, spread = config.ray, config.parallel, config.rollout, config.vllm.tensor_parallel
    engines = rollout.num_engines
    if not ray.gpus:
        if config.run.device not in ("auto", "cpu"):
            raise ParallelError(f"run.device={config.run.device}, but ray.gpus=0 is a run on the CPU; give --gpus N")
        return _divided(Layout(parallel.world_size or 1, engines, spread, "cpu"), config)
    if config.run.device not in ("auto", "cuda"):
        raise ParallelError(
            f"run.device={config.run.device}, but each process has one of ray.gpus={ray.gpus} that Ray chooses; leave "
            "it out, or with --resume give run.device=auto"
        )
    ranks, each = ray.gpus - engines * spread, f" of {spread} GPUs each" if spread > 1 else ""
    if ranks < 1:
        raise ParallelError(
            f"rollout.num_engines={engines}{each} leave no GPU of ray.gpus={ray.gpus} to learn on; raise ray.gpus, or "
            "lower rollout.num_engines (0 = engines beside the ranks)"
        )
    if parallel.world_size not in (None, ranks):
        raise ParallelError(
            f"parallel.world_size={parallel.world_size}, but ray.gpus={ray.gpus} with "
            f"rollout.num_engines={engines}{each} is {ranks}: a rank for each GPU that no engine has to itself; "
            f"leave parallel.world_size out, or with "
            f"--resume give parallel.world_size={ranks}"
        )
    return _divided(Layout(ranks, engines, spread, "cuda"), config)


def _divided(layout: Layout, config: TrainConfig) -> Layout:
    """The same, if its ranks can be divided as they are to be; see distributed/mesh.py."""
    ray, parallel = config.ray, config.parallel
    if not layout.engines and layout.ranks % layout.spread:
        what = f"ray.gpus={ray.gpus}" if ray.gpus else f"the {layout.ranks} ranks"
        raise ParallelError(
            f"vllm.tensor_parallel={layout.spread} does not divide {what}, each of which is to generate; change one of "
            "them, or give engines places of their own with rollout.num_engines"
        )
    if layout.ranks % parallel.dp_replicate:
        raise ParallelError(
            f"parallel.dp_replicate={parallel.dp_replicate} does not divide the {layout.ranks} ranks; change one of "
            "them"
        )
    each = layout.ranks // parallel.dp_replicate
    if each % parallel.sequence_parallel:
        raise ParallelError(
            f"parallel.sequence_parallel={parallel.sequence_parallel} does not divide the {each} ranks of a replica; "
            "change one of them"
        )
    return layout
