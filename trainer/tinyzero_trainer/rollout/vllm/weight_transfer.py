"""Sends weights to vLLM's process: through CUDA IPC, or through shared memory on a CPU; engine.py says when.

Both ends of a message are here; worker_extension.py loads what arrives. A bucket of weights is one flat tensor; a
message says where it is and what is in it.
"""

import pickle
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tinyzero_sdk.errors import TinyZeroError
from tinyzero_trainer.distributed.cuda_allocator import fixed_segments
from tinyzero_trainer.rollout.vllm.client import VllmClient
from tinyzero_trainer.rollout.weight_source import Weights, split_flat

SHARED_MEMORY = Path("/dev/shm")
# Of weights in a message, which take that much GPU memory once more: few round trips matter more than memory, which
# vLLM's cache does not use yet.
BUCKET_BYTES = 2**29


def send(client: VllmClient, bucket: Weights) -> None:
    """Load some weights into vLLM's workers; they take effect when all of them are sent."""
    if client.separate_process:
        with packed(bucket) as message:
            client.call_workers("tinyzero_receive", message)
    else:
        client.call_workers("tinyzero_load", bucket)


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
        yield split_flat(_rebuild(*place), names, shapes)
        return
    memory = SharedMemory(place)
    try:
        # A copy, so that nothing refers to the memory when it is closed, whatever references to the weights remain.
        flat = _view(memory, dtype, sum(map(prod, shapes))).clone()
    finally:
        memory.close()
    yield split_flat(flat, names, shapes)


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
