"""A model's weights as a rollout engine takes them: whole tensors under the names of a plain transformers model."""

from collections.abc import Callable, Iterator

from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers import PreTrainedModel

from tinyzero_trainer.lora import merged_state

WeightSource = Callable[[], Iterator[tuple[str, Tensor]]]
"""Gives names and whole tensors, float32, on the model's device; valid until the weights change."""


def named_weights(model: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    """All weights of the plain model that acts as `model` does: shards put together, an adapter merged.

    A head that is tied to the embedding is given too: an engine that has it as a tensor of its own keeps the old one
    otherwise, and says nothing.
    """
    for name, tensor in merged_state(model).items():
        yield name, whole(tensor)


def whole(tensor: Tensor) -> Tensor:
    """The tensor that a shard is of; any other tensor as it is, without a copy."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
