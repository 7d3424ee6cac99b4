"""The order of the ranks: which of them hold a model together, and which hold the same sequences.

    parallel.world_size=8 parallel.dp_replicate=2 parallel.sequence_parallel=2

    rank       0  1  2  3  4  5  6  7
    replica    0  0  0  0  1  1  1  1     each holds the whole model, sharded over its ranks
    shard      0  0  1  1  2  2  3  3     of the batch
    slice      0  1  0  1  0  1  0  1     of each packed row

Neighbours exchange most: slices in each layer, the ranks of a replica with each layer, replicas only their gradients.
So with one replica per node, only gradients leave the node.
"""

from datetime import timedelta
from functools import lru_cache
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from tinyzero_trainer.distributed.groups import DataParallelGroup, SequenceParallelGroup


def build_mesh(device: str, replicas: int = 1, sequence_parallel: int = 1) -> tuple[DeviceMesh, DataParallelGroup]:
    """The mesh that weights are sharded over, in its last dimension, and the groups that divide a batch.

    All ranks of the default process group must call it; with equal arguments they get the same groups again. `device`
    is the type of every rank's device, `replicas` are of the model, `sequence_parallel` ranks share a row.
    """
    world, count = dist.group.WORLD, dist.get_world_size()
    assert world is not None
    assert count % replicas == 0, "parallel.dp_replicate divides parallel.world_size"
    assert count // replicas % sequence_parallel == 0, "parallel.sequence_parallel divides the ranks of a replica"
    return _build(world, device, replicas, sequence_parallel)


@lru_cache(maxsize=1)  # all models share the groups of a mesh
def _build(world: dist.ProcessGroup, device: str, replicas: int, slices: int) -> tuple[DeviceMesh, DataParallelGroup]:
    count, rank = dist.get_world_size(), dist.get_rank()
    if replicas == slices == 1:  # needs no group but the default one
        return init_device_mesh(device, (count,)), DataParallelGroup(count, rank, world)
    timeout = _world_timeout(device)

    def new_group(members: list[list[int]]) -> Any:
        """All ranks create all groups, in the same order; returns the one that contains this rank."""
        return dist.new_subgroups_by_enumeration(members, timeout=timeout)[0]

    if replicas > 1:
        rows = [list(range(start, start + count // replicas)) for start in range(0, count, count // replicas)]
        columns = [list(column) for column in zip(*rows, strict=True)]
        groups, names = [new_group(columns), new_group(rows)], ("replicate", "shard")
        weights = DeviceMesh.from_group(groups, device, mesh=rows, mesh_dim_names=names)
    else:
        weights = init_device_mesh(device, (count,))
    if slices == 1:
        return weights, DataParallelGroup(count, rank, world)
    # Groups and no mesh: these also exchange CPU tensors, for which a mesh of GPUs need not have a backend.
    neighbours = [list(range(start, start + slices)) for start in range(0, count, slices)]
    same_slice = [list(range(start, count, slices)) for start in range(slices)]
    sequence_group = SequenceParallelGroup(slices, rank % slices, new_group(neighbours))
    return weights, DataParallelGroup(count // slices, rank // slices, new_group(same_slice), sequence_group)


def _world_timeout(device: str) -> timedelta | None:
    """The default group's, if its backend has one: a new group has NCCL's ten minutes, and engines may start slowly."""
    world = dist.group.WORLD
    assert world is not None
    options = getattr(world._get_backend(torch.device(device)), "options", None)  # there is no public name for either
    timeout: timedelta | None = getattr(options, "_timeout", None)
    return timeout
