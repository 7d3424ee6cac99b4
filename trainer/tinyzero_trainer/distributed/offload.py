"""Tensors that wait in the host's memory while nobody needs them.

Their storage is given back and filled again; the tensors themselves stay the same objects, so whatever refers to them
(FSDP2, the optimiser) need not know. Which tensors these are, and when they are needed, is the roles' affair.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


class CpuOffload:
    """Tensors that are on their device only inside `on_device`."""

    def __init__(self, tensors: Callable[[], Iterable[Tensor]]) -> None:
        """
        Args:
            tensors: gives them, each with its own storage; later calls may give new ones.
        """
        self._tensors = tensors
        self._hosts: dict[int, tuple[Tensor, Tensor, int]] = {}  # by id: the tensor, its copy, its storage's bytes
        self._users = 0
        self._changed = True
        self._offload()

    @contextmanager
    def on_device(self, *, changed: bool) -> Iterator[None]:
        """Within, the tensors are there; it may be entered again within itself.

        Args:
            changed: whether they are written to; otherwise they need not be copied back.
        """
        if not self._users:
            self._reload()
        self._users += 1
        self._changed |= changed
        try:
            yield
        finally:
            self._users -= 1
            if not self._users:
                self._offload()

    @torch.no_grad()
    def _offload(self) -> None:
        here = [tensor for tensor in self._tensors() if tensor.untyped_storage().size()]
        for tensor in here:
            known = self._hosts.get(id(tensor))
            if known is None:
                host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
                self._hosts[id(tensor)] = known = (tensor, host, tensor.untyped_storage().size())
                known[1].copy_(tensor, non_blocking=True)
            elif self._changed:
                known[1].copy_(tensor, non_blocking=True)
        on_gpu = any(tensor.is_cuda for tensor in here)
        if on_gpu:
            torch.cuda.synchronize()  # what is given back must not be in use
        for tensor in here:
            tensor.untyped_storage().resize_(0)
        if on_gpu:
            torch.cuda.empty_cache()  # for others on this GPU, a rollout engine above all
        self._changed = False

    @torch.no_grad()
    def _reload(self) -> None:
        for tensor, host, size in self._hosts.values():
            tensor.untyped_storage().resize_(size)  # which may be more than the tensor shows: FSDP2 pads its shards
            tensor.copy_(host, non_blocking=True)
