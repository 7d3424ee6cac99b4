"""Tensors on the disk in parts, each rank's own: written by some number of ranks, read by any other.

Through torch.distributed.checkpoint, but as safetensors throughout, its record of what is where included: its usual
format keeps that as a pickle, which may hold any code. What one rank alone writes is one plain safetensors file, and
not in here. It takes torch 2.9, which the extra `ray` asks for: imported late, for one rank does without.
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


def save_parts(directory: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors; all ranks must call it, and come back from it together.

    Args:
        directory: seen by every rank; made if it is missing.
        tensors: those that are sharded (DTensor) in parts, each by its rank; others, which are equal on all, once.

    Raises:
        OSError: one of the ranks cannot write.
    """
    from torch.distributed.checkpoint import HuggingFaceStorageWriter

    with _errors_of_any_rank():
        save(dict(tensors), storage_writer=HuggingFaceStorageWriter(str(directory), save_distributed=True))


def load_parts(directory: Path, tensors: Mapping[str, Tensor]) -> None:
    """Read what `save_parts` wrote on any number of ranks; all of these must call it, each reads what it needs.

    Args:
        directory: of `save_parts`.
        tensors: written to in place; each must be there.
    """
    from torch.distributed.checkpoint import HuggingFaceStorageReader

    with _errors_of_any_rank(), torch.no_grad():
        load(dict(tensors), storage_reader=HuggingFaceStorageReader(str(directory)), no_dist=not dist.is_initialized())


def shapes(directory: Path) -> dict[str, torch.Size]:
    """The tensors that `save_parts` wrote, by name; none if it was given none."""
    if not any(directory.glob("*.safetensors")):
        return {}
    from torch.distributed.checkpoint import HuggingFaceStorageReader

    found = HuggingFaceStorageReader(str(directory)).read_metadata().state_dict_metadata
    return {name: tensor.size for name, tensor in found.items() if isinstance(tensor, TensorStorageMetadata)}


@contextmanager
def _errors_of_any_rank() -> Iterator[None]:
    """What a rank could not do, as its own error on all of them."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module=r"torch\.distributed\.checkpoint")
            yield
    except CheckpointException as error:
        rank, (cause, _) = min(error.failures.items())
        reason = getattr(cause, "strerror", None) or cause
        raise OSError(getattr(cause, "errno", None), f"{reason} (rank {rank})") from error
