"""A tensor and the shard of it that this rank holds; a plain tensor is its own only shard. fsdp.py makes the shards."""

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Placement, Shard, distribute_tensor

all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # before PyTorch 2.13


@torch.no_grad()
def full_tensor(tensor: Tensor) -> Tensor:
    """The whole tensor, without a copy where one rank holds all of it."""
    if not isinstance(tensor, DTensor):
        return tensor
    (*replicas, shards), mesh = tensor.placements, tensor.device_mesh
    if mesh.size() == 1:
        return tensor.to_local()
    if shards != Shard(0) or any(map(Placement.is_shard, replicas)) or len(tensor) % mesh.shape[-1]:
        return tensor.full_tensor()
    # Equal shards, by the collective itself: DTensor's own way keeps the host busy for five times as long.
    local = tensor.to_local().contiguous()
    whole = local.new_empty(tensor.shape)
    all_gather_single(whole, local, group=mesh.get_group(mesh.ndim - 1))
    return whole


@torch.no_grad()
def local_shard(tensor: Tensor) -> Tensor:
    """This rank's shard, sharing its memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


@torch.no_grad()
def as_dtensor(shard: Tensor, like: Tensor) -> Tensor:
    """This rank's shard of a tensor that is sharded as `like` is, as that tensor; shares its memory."""
    # Another shape: a step count of an optimizer, equal on every rank.
    if not isinstance(like, DTensor) or shard.shape != local_shard(like).shape:
        return shard
    mesh, placements = like.device_mesh, like.placements
    return DTensor.from_local(shard, mesh, placements, run_check=False, shape=like.shape, stride=like.stride())


@torch.no_grad()
def assign(target: Tensor, whole: Tensor) -> None:
    """Write a whole tensor into one that is sharded or not."""
    if isinstance(target, DTensor) and target.device_mesh.size() > 1:
        place = target.device_mesh, target.placements
        whole = distribute_tensor(whole.to(target.device), *place, src_data_rank=None).to_local()
    local_shard(target).copy_(whole)
