"""Weights from the trainer's process to the engine's: through CUDA IPC, or through shared memory on a CPU.

Both ends of a message are here; client.py sends it, and engine.py says when. A bucket of weights is one flat tensor; a
message says where it is and what is in it.
"""

import pickle
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from math import prod
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tinyzero_sdk.errors import TinyZeroError
from tinyzero_trainer.distributed.cuda_allocator import fixed_segments

SHARED_MEMORY = Path("/dev/shm")

Weights = list[tuple[str, Tensor]]


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


@contextmanager
def packed(weights: Weights) -> Iterator[bytes]:
    """A message from which `unpacked` reads the weights in another process, within the context only.

    Raises:
        TinyZeroError: the host's shared memory is too small for them.
    """
    names, tensors = [name for name, _ in weights], [tensor for _, tensor in weights]
    content = (names, [tuple(tensor.shape) for tensor in tensors], tensors[0].dtype)
    with fixed_segments():
        flat = torch.empty(sum(tensor.numel() for tensor in tensors), dtype=content[2], device=tensors[0].device)
    torch.cat([tensor.flatten() for tensor in tensors], out=flat)
    if flat.is_cuda:
        from torch.multiprocessing.reductions import reduce_tensor

        _, place = reduce_tensor(flat)
        torch.cuda.synchronize()
        try:
            yield pickle.dumps((content, "cuda", (_uuid(flat.device.index), place)))
        finally:
            del flat
            torch.cuda.ipc_collect()
        return
    size = flat.numel() * flat.element_size()
    if SHARED_MEMORY.is_dir() and (free := shutil.disk_usage(SHARED_MEMORY).free) < size:
        raise TinyZeroError(
            f"{SHARED_MEMORY} has {free / 1e6:,.0f} MB left, and the weights for vLLM need {size / 1e6:,.0f} MB; give "
            "the container more (docker run --shm-size), or set vllm.separate_process=false"
        )
    memory = SharedMemory(create=True, size=size)
    try:
        _view(memory, flat.dtype, flat.numel()).copy_(flat)
        yield pickle.dumps((content, "memory", memory.name))
    finally:
        memory.close()
        memory.unlink()


@contextmanager
def unpacked(message: bytes) -> Iterator[Weights]:
    """The weights of a message, in the sender's memory; not valid after the context."""
    (names, shapes, dtype), kind, place = pickle.loads(message)  # from the process that started this one
    if kind == "cuda":
        yield _split(_rebuild(*place), names, shapes)
        return
    memory = SharedMemory(place)
    try:
        # A copy, so that nothing refers to the memory when it is closed, whatever references to the weights remain.
        flat = _view(memory, dtype, sum(map(prod, shapes))).clone()
    finally:
        memory.close()
    yield _split(flat, names, shapes)


def _split(flat: Tensor, names: list[str], shapes: list[tuple[int, ...]]) -> Weights:
    pieces = flat.split([prod(shape) for shape in shapes])
    return [(name, piece.view(shape)) for name, piece, shape in zip(names, pieces, shapes, strict=True)]


def _view(memory: SharedMemory, dtype: torch.dtype, count: int) -> Tensor:
    return torch.frombuffer(memory.buf, dtype=dtype, count=count)


def _rebuild(uuid: str, place: tuple[Any, ...]) -> Tensor:
    """The sender's tensor; its device may have another index here."""
    from torch.multiprocessing.reductions import rebuild_cuda_tensor

    visible = [_uuid(index) for index in range(torch.cuda.device_count())]
    if uuid not in visible:
        raise RuntimeError(f"the trainer's GPU {uuid} is not among those of the engine, {visible}")
    arguments = list(place)
    arguments[6] = visible.index(uuid)  # the device's index in the sender's process
    tensor: Tensor = rebuild_cuda_tensor(*arguments)
    return tensor


def _uuid(index: int) -> str:
    return str(torch.cuda.get_device_properties(index).uuid)
