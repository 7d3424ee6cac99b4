"""Whether a model keeps packed sequences apart, and computes the same over several ranks: tried out on a few tokens."""

from typing import Literal

import torch
from torch import Tensor

from tinyzero_sdk import Item, Score
from tinyzero_trainer.config import Layout
from tinyzero_trainer.distributed import ulysses
from tinyzero_trainer.distributed.fsdp import device_of, on_device, ranks_of
from tinyzero_trainer.distributed.groups import ALONE, DataParallelGroup, SequenceParallelGroup
from tinyzero_trainer.models.loading import ModelError
from tinyzero_trainer.training import varlen_attention as attention
from tinyzero_trainer.training.logprobs import TokenModel, evaluating
from tinyzero_trainer.training.micro_batches import MicroBatch, micro_batches
from tinyzero_trainer.types import Generation, Prompt, Rollout


def choose_layout(model: TokenModel, layout: Layout, *, name: str) -> Literal["padded", "packed"]:
    """How micro-batches for a model are laid out: `auto` = packed, where a kernel for it keeps the sequences apart.

    Args:
        model: that the micro-batches go through.
        layout: `optimizer.packing`.
        name: of the model, for the message.

    Raises:
        ModelError: `packed` with an architecture that cannot keep packed sequences apart; or ranks share the lines,
            and the model computes something else then.
    """
    line = ranks_of(model).line
    if line is not None:
        with on_device(model):
            if not computes_the_same_in_slices(model, line):
                raise ModelError(
                    f"{name} computes something else where a sequence is cut over "
                    f"parallel.sequence_parallel={line.count} ranks; leave that out"
                )
        layout = "packed"
    if layout == "padded" or (layout == "auto" and not attention.has_kernel(model.body)):
        return "padded"  # without a kernel a packed line would be masked as the square of its length
    with on_device(model):
        apart = keeps_packed_apart(model)
    if apart:
        return "packed"
    if layout == "auto":
        return "padded"
    raise ModelError(
        f"{name} lets packed sequences see each other, so optimizer.packing='packed' would train it on something else; "
        "take padded"
    )


@torch.no_grad()
def keeps_packed_apart(model: TokenModel) -> bool:
    """Whether a packed sequence leaves no trace in the one behind it: some architectures ignore where it ends."""
    seconds = []
    with evaluating(model.body):
        try:
            for first in ([4, 5, 6], [6, 7, 4]):
                seconds.append(model.states(_two_sequences(first, [1, 2, 3], device_of(model))))
        except TypeError:  # it knows no positions at all
            return False
    return torch.equal(*seconds)


@torch.no_grad()
def computes_the_same_in_slices(model: TokenModel, line: SequenceParallelGroup) -> bool:
    """Whether a model computes for a line that ranks share what it does for a whole one; all of them must call it.

    It does not where a token meets others in any other way than through attention, or through one of the model's own.
    """
    long = [(5 * place) % 7 + 1 for place in range(6 * line.count)]
    prompt, score = Prompt(Item(None), "", [1]), Score(0.0, False)

    def states(first: int, ranks: DataParallelGroup) -> Tensor:  # [completion tokens, hidden]
        completions = ([first, *long], [3, 2])  # the first begins in the first slice and ends in another
        samples = [Rollout(prompt, Generation(ids, None, finished=True), "", score) for ids in completions]
        budget, device = len(long) + 9, device_of(model)
        (batch,) = micro_batches(samples, token_budget=budget, pad_id=0, device=device, layout="packed", ranks=ranks)
        own = model.states(batch)
        return torch.stack(ulysses.all_gather(own.unbind(1), batch.counts, batch.line), dim=1)

    with evaluating(model.body):
        whole, shared, other = (
            states(1, ALONE),
            states(1, DataParallelGroup(line=line)),
            states(2, DataParallelGroup(line=line)),
        )
    tolerance = 1e-4 if whole.dtype == torch.float32 else 0.03
    error, size = (part.float().norm(dim=1) for part in (shared - whole, whole))
    far, apart = not shared[len(long)].equal(other[len(long)]), shared[-2:].equal(other[-2:])
    return bool((error <= tolerance * size).all()) and far and apart


def _two_sequences(first: list[int], second: list[int], device: torch.device) -> MicroBatch:
    """Packed, and every token of the second sequence is asked for."""
    places = [*range(len(first)), *range(len(second))]
    return MicroBatch(
        tokens=torch.tensor([first + second], device=device),
        mask=None,
        positions=torch.tensor([places], device=device),
        boundaries=torch.tensor([0, len(first), len(places)], dtype=torch.int32, device=device),
        longest=max(len(first), len(second)),
        predicts=torch.arange(len(first), len(places), device=device),
        targets=torch.tensor(second, device=device),
        rows=[0],
        lengths=torch.tensor([len(second)], device=device),
    )
