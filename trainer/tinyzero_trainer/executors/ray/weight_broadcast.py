"""Weights from the first rank to engines on GPUs of their own: a group of these processes alone, and broadcasts in it.

The ranks' own group is not for it, since the engines are not in that. One that dies leaves the others waiting: `cut`
frees them, from another thread.
"""

from collections.abc import Iterable, Iterator
from datetime import timedelta
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tinyzero_trainer.rollout.vllm.weight_transfer import Weights, parcels

JOIN_LIMIT = timedelta(seconds=300)
"""For all to come."""

PARCEL_BYTES = 2**28
"""Of a GPU's memory at a time, in each process."""

Shapes = list[tuple[str, tuple[int, ...]]]
"""Names and shapes of all weights, in the order in which they are sent."""


class WeightGroup:
    """One end of it: of the sender, whose index is 0, or of a receiver."""

    def __init__(self, store: dist.Store, index: int, count: int, device: torch.device, dtype: torch.dtype) -> None:
        """Wait for all.

        Args:
            store: that all share.
            index: of this process.
            count: of processes.
            device: that the weights are on.
            dtype: that they are sent in.
        """
        self._device, self._dtype = device, dtype
        group: Any  # PyTorch's types know neither as a process group
        if device.type == "cuda":
            group = dist.ProcessGroupNCCL(store, index, count, dist.ProcessGroupNCCL.Options())
        else:
            group = dist.ProcessGroupGloo(store, index, count, JOIN_LIMIT)
        self._group = group

    def send(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """To all receivers."""
        for parcel in parcels(weights, self._dtype, PARCEL_BYTES):
            self._broadcast(torch.cat([tensor.to(self._device).flatten() for _, tensor in parcel]))

    def receive(self, shapes: Shapes) -> Iterator[Weights]:
        """What the sender sends, a parcel at a time."""
        for part in split(shapes, self._dtype):
            sizes = [prod(shape) for _, shape in part]
            flat = torch.empty(sum(sizes), dtype=self._dtype, device=self._device)
            self._broadcast(flat)
            yield [(name, piece.view(shape)) for (name, shape), piece in zip(part, flat.split(sizes), strict=True)]

    def cut(self) -> None:
        """Whoever waits for the others is told of an error instead; the group is not used again."""
        self._group.abort()

    def _broadcast(self, tensor: Tensor) -> None:
        self._group.broadcast([tensor], dist.BroadcastOptions()).wait()


def split(shapes: Shapes, dtype: torch.dtype) -> Iterator[Shapes]:
    """The parcels in which weights of these shapes are sent.

    Example:
        >>> list(split([("a", (2**27,)), ("b", (3,)), ("c", ())], torch.bfloat16))
        [[('a', (134217728,))], [('b', (3,)), ('c', ())]]
    """
    whole = ((name, torch.empty(shape, device="meta")) for name, shape in shapes)
    for parcel in parcels(whole, dtype, PARCEL_BYTES):
        yield [(name, tuple(tensor.shape)) for name, tensor in parcel]
