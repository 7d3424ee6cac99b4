"""A tensor and the shard of it that this rank holds; a plain tensor is its own only shard.

What puts tensors into shards is in fsdp.py.
"""

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor


@torch.no_grad()
def full_tensor(tensor: Tensor) -> Tensor:
    """The tensor that a shard is of, without a copy where one rank holds all of it; any other tensor as it is."""
    if not isinstance(tensor, DTensor):
        return tensor
    return tensor.to_local() if tensor.device_mesh.size() == 1 else tensor.full_tensor()


@torch.no_grad()
def local_shard(tensor: Tensor) -> Tensor:
    """This rank's shard, sharing its memory; any other tensor as it is."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


@torch.no_grad()
def as_dtensor(part: Tensor, like: Tensor) -> Tensor:
    """This rank's shard of a tensor that is cut as `like` is, as a part of that tensor; shares its memory."""
    if (
        not isinstance(like, DTensor) or part.shape != local_shard(like).shape
    ):  # the latter: a count, equal on every rank
        return part
    return DTensor.from_local(
        part, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )


@torch.no_grad()
def local_of_whole(tensor: Tensor, like: Tensor) -> Tensor:
    """A copy of this rank's shard of `tensor`, cut as `like` is, on its device; every rank has the whole."""
    if not isinstance(like, DTensor) or tensor.shape != like.shape or like.device_mesh.size() == 1:
        return tensor.to(like.device, copy=True)
    spread = distribute_tensor(tensor.to(like.device), like.device_mesh, like.placements, src_data_rank=None)
    return spread.to_local().clone()


@torch.no_grad()
def assign(parameter: Tensor, tensor: Tensor) -> None:
    """Write a whole tensor into a parameter, whatever part of it is here."""
    local_shard(parameter).copy_(local_of_whole(tensor, parameter))
