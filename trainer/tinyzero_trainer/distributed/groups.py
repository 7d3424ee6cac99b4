"""The ranks that hold a model, and how they exchange results.

A batch is divided into data-parallel shards. One rank holds a shard, or a sequence-parallel group does, in which each
rank has a slice of every packed row (ulysses.py). training/seqlen_balancing.py divides a batch, fsdp.py the weights.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class SequenceParallelGroup:
    """The ranks that hold slices of the same packed row, seen from one of them."""

    size: int  # at least 2
    rank: int
    """Which slice this process has."""

    process_group: dist.ProcessGroup | None = None


@dataclass(frozen=True, slots=True)
class DataParallelGroup:
    """All ranks of a model, seen from one of them."""

    size: int = 1
    """Shards of a batch."""

    rank: int = 0
    """The shard of this process."""

    process_group: dist.ProcessGroup | None = None
    """One rank of each shard, this one among them; needed with several shards."""

    sequence_group: SequenceParallelGroup | None = None
    """The ranks of this shard, which all compute the same results for it. None = this one alone."""

    @property
    def is_main(self) -> bool:
        """Whether this is the rank that writes files."""
        return self.rank == 0 and (self.sequence_group is None or self.sequence_group.rank == 0)

    @property
    def world_size(self) -> int:
        return self.size if self.sequence_group is None else self.size * self.sequence_group.size

    @property
    def is_distributed(self) -> bool:
        """Whether other ranks hold a shard of the model."""
        return self.world_size > 1

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """The sum of a CPU tensor over all shards, in place."""
        if self.size > 1:
            dist.all_reduce(tensor, group=self.process_group)
        return tensor

    def all_gather(self, result: Result) -> list[Result]:
        """The picklable results of all shards, in their order."""
        if self.size == 1:
            return [result]
        results: list[Result | None] = [None] * self.size
        dist.all_gather_object(results, result, group=self.process_group)
        return results  # type: ignore[return-value]

    def all_gather_columns(self, columns: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The [n] CPU tensors of all shards under each name, one after another; n differs, and names may be missing."""
        shards = self.all_gather(dict(columns))
        names = dict.fromkeys(name for shard in shards for name in shard)
        return {name: torch.cat([shard[name] for shard in shards if name in shard]) for name in names}


ALONE = DataParallelGroup()  # a model on one rank
