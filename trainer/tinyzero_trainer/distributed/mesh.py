"""How the ranks are ordered: which of them hold a model together, and which have a batch's sequences together.

    parallel.world_size=8 parallel.dp_replicate=2 parallel.sequence_parallel=2

    rank       0  1  2  3  4  5  6  7
    replica    0  0  0  0  1  1  1  1     each holds the whole model, its weights cut over its ranks
    share      0  0  1  1  2  2  3  3     of the batch's sequences
    slice      0  1  0  1  0  1  0  1     of each line of them

Neighbours exchange most: the slices of a line in each layer, the weights of a replica with each layer, and replicas
only their gradients. So with a replica for each node all but the last stays within it.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from tinyzero_trainer.distributed.groups import DataParallelGroup, SequenceParallelGroup


@dataclass(frozen=True, slots=True)
class Mesh:
    """The orders of all ranks, seen from one of them."""

    weights: DeviceMesh
    """[ranks], or with replicas [replicas, ranks of each]: the last dimension is what weights are cut over."""

    ranks: DataParallelGroup
    """How a batch is shared out."""


_FOUND: WeakKeyDictionary[Any, dict[tuple[str, int, int], Mesh]] = WeakKeyDictionary()
"""By process group: each mesh has groups of its own, which all models share."""


def build_mesh(device: str, replicas: int = 1, sequence_parallel: int = 1) -> Mesh:
    """The same for the same arguments; all ranks must call it. Needs a process group.

    Args:
        device: type of all ranks'.
        replicas: of the model; divides the number of ranks.
        sequence_parallel: ranks that have the same sequences; divides the ranks of a replica.
    """
    group, count = dist.group.WORLD, dist.get_world_size()
    assert group is not None
    assert count % replicas == 0, "parallel.dp_replicate divides parallel.world_size"
    assert count // replicas % sequence_parallel == 0, "parallel.sequence_parallel divides the ranks of a replica"
    if replicas == sequence_parallel == 1:  # takes no groups but that of all
        return Mesh(init_device_mesh(device, (count,)), DataParallelGroup(count, dist.get_rank(), group))
    known, key = _FOUND.setdefault(group, {}), (device, replicas, sequence_parallel)
    if key not in known:
        known[key] = _make(*key)
    return known[key]


def _make(device: str, replicas: int, slices: int) -> Mesh:
    count, rank = dist.get_world_size(), dist.get_rank()
    if replicas > 1:
        rows = [list(range(start, start + count // replicas)) for start in range(0, count, count // replicas)]
        across = [list(column) for column in zip(*rows, strict=True)]
        groups = [_own_group(across, rank, device), _own_group(rows, rank, device)]
        weights = DeviceMesh.from_group(groups, device, mesh=rows, mesh_dim_names=("replicate", "shard"))
    else:
        weights = init_device_mesh(device, (count,))
    if slices == 1:
        return Mesh(weights, DataParallelGroup(count, rank, dist.group.WORLD))
    # Groups and no mesh: these talk over the host as well, for which a mesh of GPUs need not have a way.
    lines = [list(range(start, start + slices)) for start in range(0, count, slices)]
    same_slice = [list(range(start, count, slices)) for start in range(slices)]
    line = SequenceParallelGroup(slices, rank % slices, _own_group(lines, rank, device))
    return Mesh(weights, DataParallelGroup(count // slices, rank // slices, _own_group(same_slice, rank, device), line))


def _own_group(members: list[list[int]], rank: int, device: str) -> Any:
    """All ranks make all groups, in the same order; the one that this rank is in."""
    made = [dist.new_group(ranks, timeout=_patience(device)) for ranks in members]
    return made[next(index for index, ranks in enumerate(members) if rank in ranks)]


def _patience(device: str) -> timedelta | None:
    """How long ranks wait for each other in the group of all; None = it does not say.

    A new group has NCCL's ten minutes by itself, and an engine may take longer to start.
    """
    world = dist.group.WORLD
    assert world is not None
    options = getattr(world._get_backend(torch.device(device)), "options", None)  # there is no public name for either
    found: timedelta | None = getattr(options, "_timeout", None)
    return found
