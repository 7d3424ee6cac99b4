"""Tries out whether a model keeps packed sequences apart, and computes the same over sequence-parallel ranks."""

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
    """The layout of micro-batches for a model: `auto` = packed, if a kernel for it keeps the sequences apart.

    Args:
        model: sharded or not.
        layout: `optimizer.packing`.
        name: of the model, for messages.

    Raises:
        ModelError: `packed`, and the model does not keep packed sequences apart; or sequence-parallel ranks do not
            compute what one rank does.
    """
    group = ranks_of(model).sequence_group
    if group is not None:
        with on_device(model):
            if not computes_the_same_in_slices(model, group):
                raise ModelError(
                    f"{name} computes something else when a sequence is divided over "
                    f"parallel.sequence_parallel={group.size} ranks; leave that out"
                )
        layout = "packed"
    if layout == "padded" or (layout == "auto" and not attention.has_kernel(model.body)):
        return "padded"  # without a kernel, the mask of a packed row is the square of its length
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
    """Whether a packed sequence does not affect the next one: some architectures ignore where it ends."""
    states = []
    with evaluating(model.body):
        try:
            for first in ([4, 5, 6], [6, 7, 4]):
                states.append(model.states(_two_sequences(first, [1, 2, 3], device_of(model))))
        except TypeError:  # it takes no positions at all
            return False
    return torch.equal(*states)


@torch.no_grad()
def computes_the_same_in_slices(model: TokenModel, group: SequenceParallelGroup) -> bool:
    """Whether ranks that share a packed row compute what one rank does; all of them must call it.

    Not if tokens affect each other in any other way than through attention, or through attention of the model's own.
    """
    long = [(5 * place) % 7 + 1 for place in range(6 * group.size)]
    prompt, score = Prompt(Item(None), "", [1]), Score(0.0, False)

    def states(first: int, ranks: DataParallelGroup) -> Tensor:  # [completion tokens, hidden]
        completions = ([first, *long], [3, 2])  # the first starts in the first slice and ends in another
        rollouts = [Rollout(prompt, Generation(ids, None, finished=True), "", score) for ids in completions]
        budget, device = len(long) + 9, device_of(model)
        (batch,) = micro_batches(rollouts, token_budget=budget, pad_id=0, device=device, layout="packed", ranks=ranks)
        own = model.states(batch)
        return torch.stack(ulysses.all_gather(own.unbind(1), batch.counts, batch.sequence_group), dim=1)

    with evaluating(model.body):
        shared = DataParallelGroup(sequence_group=group)
        whole, divided, other = states(1, ALONE), states(1, shared), states(2, shared)
    tolerance = 1e-4 if whole.dtype == torch.float32 else 0.03
    error, size = (part.float().norm(dim=1) for part in (divided - whole, whole))
    affects_own = not divided[len(long)].equal(other[len(long)])
    leaves_next = divided[-2:].equal(other[-2:])
    return bool((error <= tolerance * size).all()) and affects_own and leaves_next


def _two_sequences(first: list[int], second: list[int], device: torch.device) -> MicroBatch:
    """Packed, with every token of the second sequence as a target."""
    positions = [*range(len(first)), *range(len(second))]
    return MicroBatch(
        tokens=torch.tensor([first + second], device=device),
        mask=None,
        positions=torch.tensor([positions], device=device),
        boundaries=torch.tensor([0, len(first), len(positions)], dtype=torch.int32, device=device),
        longest=max(len(first), len(second)),
        predicts=torch.arange(len(first), len(positions), device=device),
        targets=torch.tensor(second, device=device),
        indices=[0],
        lengths=torch.tensor([len(second)], device=device),
    )
