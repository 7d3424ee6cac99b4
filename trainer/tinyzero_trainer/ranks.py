"""The ranks that share a model: which of them this process is, and how they tell each other what each has found.

Who does which part of a batch is in balancing.py, how a model's weights are cut in sharding.py.
"""

from dataclasses import dataclass
from typing import TypeVar

import torch.distributed as dist
from torch import Tensor

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class Ranks:
    """All ranks of a model, seen from one of them."""

    count: int = 1
    """How many there are."""

    index: int = 0
    """Which of them this process is."""

    group: dist.ProcessGroup | None = None
    """Through which they talk; needed above one."""

    @property
    def first(self) -> bool:
        """Whether this is the one that does what only one shall do."""
        return self.index == 0

    def add(self, tensor: Tensor) -> Tensor:
        """The sum of all ranks' tensors, on each of them; all of one shape, on the CPU."""
        if self.count > 1:
            dist.all_reduce(tensor, group=self.group)
        return tensor

    def gather(self, found: Found) -> list[Found]:
        """What each rank has found, in their order, on each of them; anything that can be pickled."""
        if self.count == 1:
            return [found]
        everything: list[Found | None] = [None] * self.count
        dist.all_gather_object(everything, found, group=self.group)
        return everything  # type: ignore[return-value]


ALONE = Ranks()
"""A model that no other process has a part of."""
