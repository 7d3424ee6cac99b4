"""What an update did, for `tinyzero replay`: losses and gradients, and where the first value is not finite."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from math import hypot, isfinite
from re import match

from torch import Tensor

from tinyzero_trainer.algorithms.batch import TrainingBatch
from tinyzero_trainer.distributed.groups import DataParallelGroup

COLUMNS = (
    *("engine_logprobs", "old_logprobs", "teacher_logprobs", "kl_penalties"),
    *("values", "is_weights", "advantages", "returns"),
)
"""Columns of a batch, in the order in which a step computes them."""


@dataclass(frozen=True, slots=True)
class NonfiniteCompletion:
    """A completion that has a value that is not finite."""

    index: int
    """In the batch."""

    value: str
    """The first such: a column of the batch, or `loss`."""

    token: int
    """The first of its tokens with such a value."""

    prompt: str
    completion: str


@dataclass(frozen=True, slots=True)
class MicroBatchDiagnosis:
    """What one rank's share of a mini-batch gave."""

    completions: int
    tokens: int
    """Tokens of the completions."""

    loss: float
    """Its share of the mini-batch's loss."""

    nonfinite: list[NonfiniteCompletion]
    parameters: list[str]
    """Parameters whose gradient is not finite after it, on any rank."""


@dataclass(slots=True)
class UpdateDiagnosis:
    """What the update on one mini-batch did."""

    micro_batches: list[MicroBatchDiagnosis] = field(default_factory=list)
    """Micro-batches of all ranks, one rank after another."""

    group_norms: dict[str, float] = field(default_factory=dict)
    """Norm of the gradient, before clipping, of each layer and of the parameters outside of layers."""

    @property
    def grad_norm(self) -> float:
        return hypot(*self.group_norms.values())

    @property
    def skipped(self) -> bool:
        return not all(map(isfinite, (self.grad_norm, *(batch.loss for batch in self.micro_batches))))


@dataclass(slots=True)
class Diagnosis:
    """What all updates of a model in a step did."""

    parameters: int
    nonfinite_weights: list[str]
    """Parameters with such values before the step."""

    updates: list[UpdateDiagnosis] = field(default_factory=list)

    def add(self, part: TrainingBatch, losses: Tensor, norms: Mapping[str, float], *, is_padding: bool) -> None:
        """A micro-batch of the present update: its completions, [tokens] losses, and the gradients' norms after it."""
        update = self.updates[-1]
        update.group_norms = group_norms(norms)
        if not is_padding:
            faults = nonfinite_completions(part, losses), nonfinite(norms)
            update.micro_batches.append(
                MicroBatchDiagnosis(len(part.rollouts), len(losses), losses.sum().item(), *faults)
            )

    def gather(self, ranks: DataParallelGroup) -> None:
        """Add the micro-batches of all ranks; each of them must call it."""
        shares = ranks.all_gather([update.micro_batches for update in self.updates])
        for update, micro_batches in zip(self.updates, zip(*shares, strict=True), strict=True):
            update.micro_batches = list(chain.from_iterable(micro_batches))


def nonfinite_completions(part: TrainingBatch, losses: Tensor) -> list[NonfiniteCompletion]:
    """Completions of a micro-batch, with its [tokens] losses, that have a value that is not finite."""
    columns = {name: getattr(part, name) for name in COLUMNS} | {"loss": losses.cpu()}
    by_completion = {
        name: (~column.isfinite()).split(part.lengths.tolist())
        for name, column in columns.items()
        if column is not None
    }
    completions = []
    for place, (index, rollout) in enumerate(zip(part.indices, part.rollouts, strict=True)):
        for name, flags in by_completion.items():
            if flags[place].any():
                token = int(flags[place].int().argmax())
                completions.append(NonfiniteCompletion(index, name, token, rollout.prompt.text, rollout.text))
                break
    return completions


def group_norms(norms: Mapping[str, float]) -> dict[str, float]:
    """Norms by layer, from those of each parameter.

    Example:
        >>> group_norms({"embed.weight": 1.0, "layers.0.mlp.weight": 3.0, "layers.0.norm.weight": 4.0})
        {'embed': 1.0, 'layers.0': 5.0}
    """
    groups: dict[str, list[float]] = {}
    for name, norm in norms.items():
        layer = match(r".*?\.\d+(?=\.)", name)
        groups.setdefault(layer[0] if layer else name.rpartition(".")[0], []).append(norm)
    return {group: hypot(*norms) for group, norms in groups.items()}


def nonfinite(norms: Mapping[str, float]) -> list[str]:
    return [name for name, norm in norms.items() if not isfinite(norm)]
