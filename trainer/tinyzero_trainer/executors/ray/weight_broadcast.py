"""Weights from the first rank to dedicated engines: broadcasts in a process group of these alone.

If a member dies, the others wait in the group until `abort` is called from another thread.
"""

from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tinyzero_trainer.rollout.sizes import WEIGHT_BUCKET
from tinyzero_trainer.rollout.weight_source import Weights, buckets, split_flat

JOIN_TIMEOUT = timedelta(seconds=300)
"""For all members to join."""

Shapes = list[tuple[str, tuple[int, ...]]]
"""Names and shapes of all weights, in the order of sending."""


class WeightGroup:
    """The group as seen from one member: the sender has index 0, the others receive."""

    def __init__(self, store: dist.Store, index: int, count: int, device: torch.device, dtype: torch.dtype) -> None:
        """Join as member `index` of `count`, and wait for all; the weights are sent in `dtype`."""
        self._device, self._dtype = device, dtype
        self._group: Any  # PyTorch's types know neither as a process group
        if device.type == "cuda":
            self._group = dist.ProcessGroupNCCL(store, index, count, dist.ProcessGroupNCCL.Options())
        else:
            self._group = dist.ProcessGroupGloo(store, index, count, JOIN_TIMEOUT)

    def send(self, weights: Iterable[tuple[str, Tensor]]) -> Shapes:
        """Send to all receivers; returns what was sent."""
        sent: Shapes = []
        for bucket in buckets(weights, self._dtype, WEIGHT_BUCKET):
            self._broadcast(torch.cat([tensor.to(self._device).flatten() for _, tensor in bucket]))
            sent += [(name, tuple(tensor.shape)) for name, tensor in bucket]
        return sent

    def receive(self, shapes: Shapes) -> Iterator[Weights]:
        """Weights of these shapes, a bucket at a time."""
        outlines = ((name, torch.empty(shape, device="meta")) for name, shape in shapes)
        for bucket in buckets(outlines, self._dtype, WEIGHT_BUCKET):
            size = sum(outline.numel() for _, outline in bucket)
            flat = torch.empty(size, dtype=self._dtype, device=self._device)
            self._broadcast(flat)
            yield split_flat(flat, [name for name, _ in bucket], [outline.shape for _, outline in bucket])

    def abort(self) -> None:
        """Raise an error in all waiting members; the group cannot be used again."""
        self._group.abort()

    def _broadcast(self, tensor: Tensor) -> None:
        self._group.broadcast([tensor], dist.BroadcastOptions()).wait()
