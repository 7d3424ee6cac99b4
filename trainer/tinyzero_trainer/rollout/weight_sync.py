"""A model's weights as rollout engines take them: full tensors under the names of a plain transformers model."""

import copy
from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from transformers import PreTrainedModel

from tinyzero_trainer.distributed.fsdp import device_of, on_device, options_of
from tinyzero_trainer.models.lora import merged_weights

WeightSource = Callable[[], Iterator[tuple[str, Tensor]]]
"""Yields names and full tensors, float32, on the model's device; valid until the weights change."""


def named_weights(model: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    """All weights of the equivalent plain model, one by one: shards gathered, an adapter merged.

    A head that is tied to the embedding is included: an engine that keeps it as a separate tensor would silently
    continue with the old one.
    """
    device, options = device_of(model), options_of(model)
    leaves = options is not None and options.offload == "idle"
    with on_device(model):
        for name, tensor in merged_weights(model):
            # A tensor that is kept beyond this must not lose its memory with the model's.
            yield name, tensor.clone() if leaves else tensor.to(device)


def engine_weights(model: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    """`named_weights` in the dtype in which the model computes, and in the policy's own memory where possible."""
    options = options_of(model)
    for name, tensor in named_weights(model):
        yield name, tensor if options is None else tensor.to(options.device, options.dtype)


def plain_twin(model: PreTrainedModel) -> PreTrainedModel:
    """A model of the same architecture that is not sharded and has no adapter; its weights are loaded later."""
    with torch.device("meta"):
        twin = type(model)(copy.deepcopy(model.config))
    for name, buffer in model.named_buffers():
        path, _, leaf = name.rpartition(".")
        twin.get_submodule(path)._buffers[leaf] = buffer
    return twin.eval()
