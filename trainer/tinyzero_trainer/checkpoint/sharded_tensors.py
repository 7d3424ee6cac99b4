"""Sharded tensors on the disk, a file for each rank: written by some number of ranks, read by any other.

torch.distributed.checkpoint writes them, as safetensors with their index: its default format keeps the index as a
pickle, which may hold any code. A single rank writes one plain safetensors file, without this module. The safetensors
classes need torch 2.9, which the extra `ray` requires; they are imported late, since one rank does without them.
"""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save


def save_sharded(directory: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors to a directory that every rank sees; a collective of all ranks.

    Each writes its shards of DTensors; other tensors, which are equal on all ranks, are written once. All raise an
    OSError if one of them cannot write.
    """
    from torch.distributed.checkpoint import HuggingFaceStorageWriter

    with _errors_of_any_rank():
        save(dict(tensors), storage_writer=HuggingFaceStorageWriter(str(directory), save_distributed=True))


def load_sharded(directory: Path, tensors: Mapping[str, Tensor]) -> None:
    """Read what `save_sharded` wrote on any number of ranks into `tensors`; a collective of all ranks."""
    from torch.distributed.checkpoint import HuggingFaceStorageReader

    with _errors_of_any_rank(), torch.no_grad():
        load(dict(tensors), storage_reader=HuggingFaceStorageReader(str(directory)), no_dist=not dist.is_initialized())


def shapes(directory: Path) -> dict[str, torch.Size]:
    """Shapes of the tensors that `save_sharded` wrote, by name."""
    if not any(directory.glob("*.safetensors")):
        return {}
    from torch.distributed.checkpoint import HuggingFaceStorageReader

    found = HuggingFaceStorageReader(str(directory)).read_metadata().state_dict_metadata
    return {name: tensor.size for name, tensor in found.items() if isinstance(tensor, TensorStorageMetadata)}


@contextmanager
def _errors_of_any_rank() -> Iterator[None]:
    """Raise the error of the first rank that failed on all ranks."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"torch\.distributed\.checkpoint")
            yield
    except CheckpointException as error:
        rank, (cause, _) = min(error.failures.items())
        reason = getattr(cause, "strerror", None) or cause
        raise OSError(getattr(cause, "errno", None), f"{reason} (rank {rank})") from error
