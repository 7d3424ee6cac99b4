"""Metrics of an update's tokens, collected over micro-batches and mini-batches; used by policy and critic.

Everything stays on the device until the update is done, since each number that is fetched makes the host wait.
"""

import math
from collections import Counter

import torch
from torch import Tensor

from tinyzero_trainer.distributed.groups import DataParallelGroup


class MetricAccumulator:
    """Sums and columns over the tokens of an update, and the gradient norms of its mini-batches."""

    def __init__(self) -> None:
        self._sums: dict[str, list[Tensor]] = {}
        self._counts = Counter[str]()
        self._totals: dict[str, list[Tensor]] = {}
        self._columns: dict[str, list[Tensor]] = {}
        self._norms: list[float] = []

    @property
    def mini_batches(self) -> int:
        """Mini-batches done: after the first, the weights may differ from those at the start."""
        return len(self._norms)

    def add(self, **values: Tensor) -> None:
        """Add [tokens] values, for their mean."""
        for name, column in values.items():
            self._sums.setdefault(name, []).append(column.detach().sum())
            self._counts[name] += len(column)

    def add_weighted_sum(self, **values: Tensor) -> None:
        """Add [tokens] values that are already weighted, for their sum over a mini-batch."""
        for name, column in values.items():
            self._totals.setdefault(name, []).append(column.detach().sum())

    def extend(self, **values: Tensor) -> None:
        """Keep [tokens] values."""
        for name, column in values.items():
            self._columns.setdefault(name, []).append(column.detach())

    def end_mini_batch(self, norm: Tensor) -> None:
        """Add the gradient's norm before clipping."""
        self._norms.append(norm.item())

    def gather(self, ranks: DataParallelGroup) -> None:
        """Merge the metrics of all ranks after the update; each of them must call it."""
        if ranks.size == 1:
            return
        self._counts = sum(ranks.all_gather(self._counts), Counter())
        for values in (self._sums, self._totals):
            gathered = ranks.all_gather_columns({name: torch.stack(parts).cpu() for name, parts in values.items()})
            values.update({name: list(column) for name, column in gathered.items()})
        columns = {name: torch.cat(parts).cpu() for name, parts in self._columns.items()}
        self._columns = {name: [column] for name, column in ranks.all_gather_columns(columns).items()}

    def means(self) -> dict[str, float]:
        """Mean over tokens of each value added."""
        return {name: sum(torch.stack(parts).tolist()) / self._counts[name] for name, parts in self._sums.items()}

    def weighted_sums(self) -> dict[str, float]:
        """Sum over a mini-batch of each weighted value, averaged over mini-batches."""
        return {name: sum(torch.stack(parts).tolist()) / len(self._norms) for name, parts in self._totals.items()}

    def column(self, name: str) -> Tensor | None:
        """[tokens] all values kept under this name, on the CPU; None if there are none."""
        parts = self._columns.get(name)
        return None if parts is None else torch.cat(parts).cpu()

    def updates(self) -> dict[str, float]:
        """Mean gradient norm of the updates finite, if any, and the number skipped."""
        finite = [norm for norm in self._norms if math.isfinite(norm)]
        norm = {"grad_norm": sum(finite) / len(finite)} if finite else {}
        return {**norm, "skipped_updates": float(len(self._norms) - len(finite))}
