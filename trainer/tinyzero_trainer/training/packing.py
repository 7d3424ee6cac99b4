"""Tries out whether a model keeps packed sequences apart, also where they share their prompt."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Literal

import torch
from torch import Tensor

from tinyzero_sdk import Item, Score
from tinyzero_trainer.config import Layout
from tinyzero_trainer.distributed.fsdp import device_of, on_device, ranks_of
from tinyzero_trainer.models.loading import LanguageModel, ModelError
from tinyzero_trainer.training import varlen_attention as attention
from tinyzero_trainer.training.logprobs import TokenModel, evaluating
from tinyzero_trainer.training.micro_batches import MicroBatch, micro_batches
from tinyzero_trainer.types import Generation, Prompt, Rollout


def splitter(language_model: LanguageModel, model: TokenModel, packing: Layout) -> Callable[..., Iterator[MicroBatch]]:
    """`micro_batches` for a model; in packed rows completions share their prompt where there is a kernel for it."""
    return partial(
        micro_batches,
        pad_id=language_model.pad_id,
        device=device_of(model),
        layout=choose_layout(model, packing, name=language_model.name),
        share_prompts=attention.has_kernel(model.body),
    )


def choose_layout(model: TokenModel, layout: Layout, *, name: str) -> Literal["padded", "packed"]:
    """The layout of a model's micro-batches: `auto` = packed, if a kernel for it keeps the sequences apart.

    Raises:
        ModelError: the model does not keep packed sequences apart, or its attention cannot divide them over ranks.
    """
    if (group := ranks_of(model).sequence_group) is not None:
        if not attention.has_kernel(model.body):
            raise ModelError(
                f"{name} has its own attention, which parallel.sequence_parallel={group.size} cannot divide; leave "
                "that out"
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
    """Whether a completion in a packed row is computed as if it were alone: some architectures ignore where one ends.

    With a kernel, which masks no whole row, the completions also share their prompt.
    """
    with evaluating(model.body):
        try:
            packed, alone = (_packed_states(model, completions) for completions in ([[3, 7], [2, 3]], [[2, 3]]))
        except TypeError:  # it takes no positions at all
            return False
    tolerance = 1e-4 if alone.dtype == torch.float32 else 0.03
    error, size = (states.float().norm(dim=1) for states in (packed[-2:] - alone, alone))
    # All ranks must agree: how a mini-batch is split depends on it.
    return all(ranks_of(model).all_gather(bool((error <= tolerance * size).all())))


def _packed_states(model: TokenModel, completions: list[list[int]]) -> Tensor:
    """[completion tokens, hidden] of completions of one prompt in a packed row, the longest first."""
    prompt, score = Prompt(Item(None), "", [5, 6, 4]), Score(0.0, False)
    rollouts = [Rollout(prompt, Generation(ids, None, finished=True), "", score) for ids in completions]
    (batch,) = micro_batches(
        rollouts,
        token_budget=sum(len(prompt.token_ids) + len(ids) for ids in completions),
        pad_id=0,
        device=device_of(model),
        layout="packed",
        share_prompts=attention.has_kernel(model.body),  # so that one compiled form serves these and what is trained
    )
    return model.states(batch)
