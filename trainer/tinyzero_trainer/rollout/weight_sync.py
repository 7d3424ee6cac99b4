"""A model's weights as a rollout engine takes them: whole tensors under the names of a plain transformers model."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.distributed.fsdp import FSDPModule
from transformers import PreTrainedModel

from tinyzero_trainer.distributed.fsdp import device_of, on_device, placement_of
from tinyzero_trainer.models.lora import merged_weights

WeightSource = Callable[[], Iterator[tuple[str, Tensor]]]
"""Gives names and whole tensors, float32, on the model's device; valid until the weights change."""


def named_weights(model: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    """All weights of the plain model that acts as `model` does: shards put together, an adapter merged, one by one.

    A head that is tied to the embedding is given too: an engine that has it as a tensor of its own keeps the old one
    otherwise, and says nothing.
    """
    device, placement = device_of(model), placement_of(model)
    leaves = placement is not None and placement.offload == "idle"
    with on_device(model):
        for name, tensor in merged_weights(model):
            # A tensor that is kept beyond this must not lose its memory with the model's.
            yield name, tensor.clone() if leaves else tensor.to(device)


def engine_weight(model: PreTrainedModel, tensor: Tensor) -> Tensor:
    """A weight of `model` as an engine in this process keeps it: in the type that the model computes in.

    The policy's own memory where that can be, so that it is there once only.
    """
    placement = placement_of(model)
    if placement is None:
        return tensor
    kept = tensor.to(placement.device, placement.dtype)
    return torch.clone(kept) if kept is tensor and placement.offload == "idle" else kept


def plain_class(model: PreTrainedModel) -> type[PreTrainedModel]:
    """The class of transformers: sharding puts one of its own in front."""
    plain: Any = next(kind for kind in type(model).__mro__ if not issubclass(kind, FSDPModule))
    return plain


def plain_twin(model: PreTrainedModel) -> PreTrainedModel:
    """A model of the same architecture that is not sharded and has no adapter; its weights are still to be loaded."""
    plain = plain_class(model)
    with torch.device("meta"):
        twin = plain(copy.deepcopy(model.config))
    for name, buffer in model.named_buffers():
        path, _, leaf = name.rpartition(".")
        twin.get_submodule(path)._buffers[leaf] = buffer
    return twin.eval()
