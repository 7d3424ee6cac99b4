"""Tries out whether a model keeps packed sequences apart, shares their prompts, and can divide them over ranks."""

from collections.abc import Sequence
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
from tinyzero_trainer.training.micro_batches import micro_batches
from tinyzero_trainer.types import Generation, Prompt, Rollout


def choose_layout(model: TokenModel, layout: Layout, *, name: str) -> Literal["padded", "packed"]:
    """The layout of a model's micro-batches: `auto` = packed, if a kernel for it keeps the sequences apart.

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
        if keeps_packed_apart(model):
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
    with evaluating(model.body):
        try:
            one, other = (_packed_states(model, [first, [2, 3]], ALONE) for first in ([5, 6, 4], [6, 7, 5]))
        except TypeError:  # it takes no positions at all
            return False
    return one[-2:].equal(other[-2:])


@torch.no_grad()
def shares_prompts(model: TokenModel) -> bool:
    """Whether the completions of a prompt that is in a packed row once are computed as if each had its own.

    Not without a kernel, which masks no whole row, or if tokens affect each other in any other way than through it.
    """
    if not attention.has_kernel(model.body):
        return False
    with on_device(model), evaluating(model.body):
        shared, own = (
            _packed_states(model, completions, ALONE, prompt=[5, 6, 4]) for completions in ([[3, 7], [2, 3]], [[2, 3]])
        )
    # All ranks must agree: how a mini-batch is split depends on it.
    return all(ranks_of(model).all_gather(_are_close(shared[-2:], own)))


@torch.no_grad()
def computes_the_same_in_slices(model: TokenModel, group: SequenceParallelGroup) -> bool:
    """Whether ranks that share a packed row compute what one rank does; all of them must call it.

    Not if tokens affect each other in any other way than through attention, or through attention of the model's own.
    """
    long = [(5 * place) % 7 + 1 for place in range(6 * group.size)]  # starts in the first slice and ends in another
    with evaluating(model.body):
        shared = DataParallelGroup(sequence_group=group)
        whole = _packed_states(model, [[1, *long], [3, 2]], ALONE)
        divided, other = (_packed_states(model, [[first, *long], [3, 2]], shared) for first in (1, 2))
    affects_own = not divided[len(long)].equal(other[len(long)])
    leaves_next = divided[-2:].equal(other[-2:])
    return _are_close(divided, whole) and affects_own and leaves_next


def _are_close(found: Tensor, expected: Tensor) -> bool:
    tolerance = 1e-4 if expected.dtype == torch.float32 else 0.03
    error, size = (part.float().norm(dim=1) for part in (found - expected, expected))
    return bool((error <= tolerance * size).all())


def _packed_states(
    model: TokenModel, completions: list[list[int]], ranks: DataParallelGroup, *, prompt: Sequence[int] = (1,)
) -> Tensor:
    """[completion tokens, hidden] of completions in one packed row, the longest first."""
    asked, score = Prompt(Item(None), "", list(prompt)), Score(0.0, False)
    rollouts = [Rollout(asked, Generation(ids, None, finished=True), "", score) for ids in completions]
    (batch,) = micro_batches(
        rollouts,
        token_budget=sum(len(prompt) + len(ids) for ids in completions),
        pad_id=0,
        device=device_of(model),
        layout="packed",
        share_prompts=attention.has_kernel(model.body),  # so that one compiled form serves these and what is trained
        ranks=ranks,
    )
    own = model.states(batch)
    return torch.stack(ulysses.all_gather(own.unbind(1), batch.counts, batch.sequence_group), dim=1)
