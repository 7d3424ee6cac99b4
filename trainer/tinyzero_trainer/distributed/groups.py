"""The ranks that share a model: which of them this process is, and how they tell each other what each has found.

A batch is divided into shares. A share is one rank's, or that of several, which then have each of its sequences in
slices (ulysses.py). Who does which part of a batch is in training/seqlen_balancing.py, how a model's weights are cut in
fsdp.py.
"""

from dataclasses import dataclass
from typing import TypeVar

import torch.distributed as dist
from torch import Tensor

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class SequenceParallelGroup:
    """The ranks that have the same sequences, each a slice of the line in which these lie; seen from one of them."""

    count: int
    """How many there are, at least 2."""

    index: int
    """Which slice this process has."""

    group: dist.ProcessGroup | None = None
    """Through which they exchange what they have."""


@dataclass(frozen=True, slots=True)
class DataParallelGroup:
    """All ranks of a model, seen from one of them."""

    count: int = 1
    """Into how many shares a batch is divided."""

    index: int = 0
    """Which of them this process has."""

    group: dist.ProcessGroup | None = None
    """One rank of each share, this one among them, through which they talk; needed above one."""

    line: SequenceParallelGroup | None = None
    """Those that this one has its share together with; all of them know all that they find. None = it has it alone."""

    @property
    def first(self) -> bool:
        """Whether this is the one that does what only one shall do."""
        return self.index == 0 and (self.line is None or self.line.index == 0)

    @property
    def processes(self) -> int:
        """How many ranks there are."""
        return self.count if self.line is None else self.count * self.line.count

    @property
    def several(self) -> bool:
        """Whether others have a part of the model."""
        return self.processes > 1

    def add(self, tensor: Tensor) -> Tensor:
        """The sum over all shares of a tensor, on each rank; all of one shape, on the CPU."""
        if self.count > 1:
            dist.all_reduce(tensor, group=self.group)
        return tensor

    def gather(self, found: Found) -> list[Found]:
        """What was found for each share, in their order, on each rank; anything that can be pickled."""
        if self.count == 1:
            return [found]
        everything: list[Found | None] = [None] * self.count
        dist.all_gather_object(everything, found, group=self.group)
        return everything  # type: ignore[return-value]


ALONE = DataParallelGroup()
"""A model that no other process has a part of."""
