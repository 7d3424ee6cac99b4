"""A model's weights as rollout engines take them: full tensors under the names of a plain transformers model."""

import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import prod

import torch
from torch import Tensor
from transformers import PreTrainedModel

from tinyzero_trainer.distributed.fsdp import device_of, on_device, options_of
from tinyzero_trainer.models.lora import adapter_weights, has_adapter, merged_weights

Weights = list[tuple[str, Tensor]]

WeightSource = Callable[[], Iterator[tuple[str, Tensor]]]
"""Yields names and full tensors, float32, on the model's device; valid until the weights change."""


def named_weights(model: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    """All weights of the equivalent plain model, one by one: shards gathered, an adapter merged.

    A head that is tied to the embedding is included: an engine that keeps it as a separate tensor would silently
    continue with the old one.
    """
    yield from _gathered(model, merged_weights(model))


def sent_weights(model: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    """What an engine in another process lacks, which has loaded the starting model: an adapter, or all weights."""
    yield from _gathered(model, adapter_weights(model)) if has_adapter(model) else named_weights(model)


def _gathered(model: PreTrainedModel, weights: Iterator[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    device, options = device_of(model), options_of(model)
    leaves = options is not None and options.offload == "idle"
    with on_device(model):
        for name, tensor in weights:
            # A tensor that is kept beyond this must not lose its memory with the model's.
            yield name, tensor.clone() if leaves else tensor.to(device)


def engine_weights(model: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    """`named_weights` in the dtype in which the model computes, and in the policy's own memory where possible."""
    options = options_of(model)
    for name, tensor in named_weights(model):
        yield name, tensor if options is None else tensor.to(options.device, options.dtype)


def buckets(weights: Iterable[tuple[str, Tensor]], dtype: torch.dtype, limit: int) -> Iterator[Weights]:
    """Weights in the engine's dtype, in order, in buckets of about `limit` bytes.

    Example:
        >>> weights = [("a", torch.ones(2, 3)), ("b", torch.ones(4)), ("c", torch.ones(1))]
        >>> [[name for name, _ in bucket] for bucket in buckets(weights, torch.bfloat16, limit=12)]
        [['a'], ['b', 'c']]
    """
    bucket: Weights = []
    size = 0
    for name, tensor in weights:
        size += tensor.numel() * dtype.itemsize
        bucket.append((name, tensor.detach().to(dtype)))
        if size >= limit:
            yield bucket
            bucket, size = [], 0
    if bucket:
        yield bucket


def split_flat(flat: Tensor, names: Sequence[str], shapes: Sequence[tuple[int, ...]]) -> Weights:
    """The weights of a bucket that was flattened for sending, as views."""
    pieces = flat.split([prod(shape) for shape in shapes])
    return [(name, piece.view(shape)) for name, piece, shape in zip(names, pieces, shapes, strict=True)]


def plain_twin(model: PreTrainedModel) -> PreTrainedModel:
    """A model of the same architecture that is not sharded and has no adapter; its weights are loaded later."""
    with torch.device("meta"):
        twin = type(model)(copy.deepcopy(model.config))
    for name, buffer in model.named_buffers():
        path, _, leaf = name.rpartition(".")
        twin.get_submodule(path)._buffers[leaf] = buffer
    return twin.eval()
