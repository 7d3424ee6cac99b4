"""What an update measures of its tokens, gathered over micro-batches and mini-batches: the policy's and the critic's.

Everything stays on the device until the update is over, since each number that is fetched makes the device wait.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from tinyzero_trainer.distributed.groups import DataParallelGroup


class MetricAccumulator:
    """Sums and columns over the tokens of an update, and the gradient norms of its mini-batches."""

    def __init__(self) -> None:
        self._sums: dict[str, list[Tensor]] = {}
        self._counts: dict[str, int] = {}
        self._totals: dict[str, list[Tensor]] = {}
        self._columns: dict[str, list[Tensor]] = {}
        self._norms: list[float] = []

    @property
    def began(self) -> bool:
        """Whether a mini-batch has been done, so that the weights may have changed."""
        return bool(self._norms)

    def add(self, **values: Tensor) -> None:
        """Add one value a token, of which only the mean is asked for."""
        for name, column in values.items():
            self._sums.setdefault(name, []).append(column.detach().sum())
            self._counts[name] = self._counts.get(name, 0) + len(column)

    def add_weighted(self, **values: Tensor) -> None:
        """Add one value a token, with its weight in the mini-batch already, of which the sum is asked for."""
        for name, column in values.items():
            self._totals.setdefault(name, []).append(column.detach().sum())

    def keep(self, **values: Tensor) -> None:
        """Keep one value a token."""
        for name, column in values.items():
            self._columns.setdefault(name, []).append(column.detach())

    def end_mini_batch(self, norm: Tensor) -> None:
        """Take the gradient's norm before clipping."""
        self._norms.append(norm.item())

    def gather(self, ranks: DataParallelGroup) -> None:
        """Take over, once the update is done, what the other ranks have measured; each of them must do so."""
        if ranks.count == 1:
            return
        self._sums = _joined(ranks.gather(_on_host(self._sums)))
        self._totals = _joined(ranks.gather(_on_host(self._totals)))
        self._columns = _joined(ranks.gather(_on_host(self._columns)))
        counts = ranks.gather(self._counts)
        self._counts = {name: sum(share.get(name, 0) for share in counts) for name in self._sums}

    def means(self) -> dict[str, float]:
        """Mean of each value that was added."""
        return {name: sum(torch.stack(parts).tolist()) / self._counts[name] for name, parts in self._sums.items()}

    def aggregated(self) -> dict[str, float]:
        """Each value that was added with its weight: its sum over a mini-batch, of which the mean over mini-batches."""
        return {name: sum(torch.stack(parts).tolist()) / len(self._norms) for name, parts in self._totals.items()}

    def column(self, name: str) -> Tensor | None:
        """[tokens] all values kept under this name, on the CPU; None if there are none."""
        parts = self._columns.get(name)
        return None if parts is None else torch.cat([part.cpu() for part in parts])

    def updates(self) -> dict[str, float]:
        """Mean gradient norm of the updates that were made, left out if none was, and how many were skipped."""
        made = [norm for norm in self._norms if math.isfinite(norm)]
        norm = {"grad_norm": sum(made) / len(made)} if made else {}
        return {**norm, "skipped_updates": float(len(self._norms) - len(made))}


def _on_host(found: dict[str, list[Tensor]]) -> dict[str, list[Tensor]]:
    return {name: [part.cpu() for part in parts] for name, parts in found.items()}


def _joined(shares: Sequence[dict[str, list[Tensor]]]) -> dict[str, list[Tensor]]:
    """A rank that got no sequence has measured nothing, under no name."""
    names = dict.fromkeys(name for share in shares for name in share)
    return {name: [part for share in shares for part in share.get(name, [])] for name in names}
