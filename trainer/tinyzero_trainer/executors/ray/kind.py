"""What the executor `ray` is."""

from collections.abc import Callable
from functools import partial
from typing import Any

from tinyzero_trainer.kinds import ExecutorKind


def _check(config: Any) -> None:
    from tinyzero_trainer.distributed.parallel_dims import parallel_dims
    from tinyzero_trainer.executors.ray.cluster import check_address

    parallel_dims(config)
    check_address(config.ray.address)


def _prepare(config: Any) -> Callable[[], None] | None:
    if config.ray.address is not None:
        return None
    from tinyzero_trainer.distributed.parallel_dims import parallel_dims
    from tinyzero_trainer.executors.ray.cluster import import_ray, start

    import_ray()  # first, so that the two import nothing at the same time
    return partial(start, config.ray, parallel_dims(config).bundles())


KIND = ExecutorKind(
    name="ray",
    build="tinyzero_trainer.executors.ray.build",
    settings=frozenset(
        {"ray", "parallel", "rollout.num_engines", "rollout.chunks_per_engine", "memory.reshard_after_forward"}
    ),
    own_processes=True,
    check=_check,
    prepare=_prepare,
)
