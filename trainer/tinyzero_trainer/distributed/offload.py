"""CPU offload of tensors between uses.

Their storage is freed and filled again; the tensors stay the same objects, so FSDP2 and the optimizer, which refer to
them, need not know. The models and optimizers decide which tensors these are, and when they are needed.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor


class CpuOffload:
    """Tensors that are on their device only within `on_device`."""

    def __init__(self, tensors: Callable[[], Iterable[Tensor]]) -> None:
        """`tensors` returns the tensors, each with its own storage; later calls may return more."""
        self._tensors = tensors
        self._copies: dict[int, tuple[Tensor, Tensor, int]] = {}  # by id: the tensor, its copy, its storage's bytes
        self._users = 0
        self._changed = True
        self._offload()

    @contextmanager
    def on_device(self, *, changed: bool) -> Iterator[None]:
        """Within, the tensors are on their device; may be nested. Unless `changed`, they are not copied back."""
        if not self._users:
            for tensor, copy, size in self._copies.values():
                # It may be more than the tensor shows: FSDP2 pads its shards.
                tensor.untyped_storage().resize_(size)
                with torch.no_grad():
                    tensor.copy_(copy, non_blocking=True)
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
        present = [tensor for tensor in self._tensors() if tensor.untyped_storage().size()]
        for tensor in present:
            known = id(tensor) in self._copies
            if not known:
                copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
                self._copies[id(tensor)] = tensor, copy, tensor.untyped_storage().size()
            if self._changed or not known:
                self._copies[id(tensor)][1].copy_(tensor, non_blocking=True)
        on_gpu = any(tensor.is_cuda for tensor in present)
        if on_gpu:
            torch.cuda.current_stream().synchronize()  # what is freed must not be in use
        for tensor in present:
            tensor.untyped_storage().resize_(0)
        if on_gpu:
            torch.cuda.empty_cache()  # for others on this GPU, a rollout engine above all
        self._changed = False
