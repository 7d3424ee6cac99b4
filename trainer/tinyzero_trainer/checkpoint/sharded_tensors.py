"""Tensors of a checkpoint on the disk: sharded, a file for each rank, written by some number of ranks and read by any
other; a single rank writes one plain safetensors file. What is read must have the names, shapes and types expected.

torch.distributed.checkpoint writes shards, as safetensors with their index: its default format keeps the index as a
pickle, which may hold any code.
"""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import load_file
from torch import Tensor
from torch.distributed.checkpoint import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from tinyzero_trainer.checkpoint.store import DamagedCheckpointError, damage_in_one_line

Kind = tuple[tuple[int, ...], torch.dtype]  # shape and type of a tensor


def save_sharded(directory: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors to a directory that every rank sees; a collective, in which all raise the OSError of any.

    Each rank writes its shards of DTensors; other tensors, which are equal on all ranks, are written once.
    """
    with _errors_of_any_rank():
        save(dict(tensors), storage_writer=HuggingFaceStorageWriter(str(directory), save_distributed=True))


def load_sharded(directory: Path, tensors: Mapping[str, Tensor]) -> None:
    """Read what `save_sharded` wrote on any number of ranks into `tensors`; a collective of all ranks."""
    with _errors_of_any_rank(), torch.no_grad():
        load(dict(tensors), storage_reader=HuggingFaceStorageReader(str(directory)), no_dist=not dist.is_initialized())


def load_whole(file: Path, expected: Mapping[str, Kind]) -> dict[str, Tensor]:
    """The tensors of a plain safetensors file; a DamagedCheckpointError if they are others than expected."""
    with damage_in_one_line(file):
        tensors = load_file(file)
        _require(file, {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()}, expected)
    return tensors


def check_sharded(directory: Path, expected: Mapping[str, Kind]) -> None:
    """Raise a DamagedCheckpointError unless `save_sharded` wrote these tensors; reads headers alone, the same on all
    ranks.
    """
    with damage_in_one_line(directory):
        if not any(directory.glob("*.safetensors")):
            raise DamagedCheckpointError(f"{directory.with_suffix('.safetensors')} is missing")
        contents = HuggingFaceStorageReader(str(directory)).read_metadata().state_dict_metadata
    tensors = {name: tensor for name, tensor in contents.items() if isinstance(tensor, TensorStorageMetadata)}
    _require(
        directory, {name: (tuple(tensor.size), tensor.properties.dtype) for name, tensor in tensors.items()}, expected
    )


def _require(path: Path, present: Mapping[str, Kind], expected: Mapping[str, Kind]) -> None:
    for name in sorted(present.keys() | expected.keys()):
        if present.get(name) != expected.get(name):
            has, needs = (_describe(kinds.get(name)) for kinds in (present, expected))
            raise DamagedCheckpointError(f"{path} does not fit the model: of {name} it has {has}, expected {needs}")


def _describe(kind: Kind | None) -> str:
    return "none" if kind is None else f"{' × '.join(map(str, kind[0]))} {str(kind[1]).removeprefix('torch.')}".strip()


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
