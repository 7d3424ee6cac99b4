"""Attention within packed sequences: a kernel for sequences of unequal length one after another.

On a GPU that is PyTorch's own, or on Hopper that of tinyzero-flash-attention-4, in half precision. Elsewhere the model
masks the whole packed row, at a cost of the square of its length; ranks that share a row have no whole one to mask, and
do as the kernel does in plain PyTorch.
"""

from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from importlib import import_module
from inspect import signature
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from tinyzero_trainer.distributed import ulysses
from tinyzero_trainer.distributed.groups import SequenceParallelGroup
from tinyzero_trainer.training.micro_batches import MicroBatch

KERNEL, HOPPER_KERNEL = "tinyzero_varlen", "tinyzero_varlen_hopper"
"""The names that transformers knows them by."""

hopper_kernel: Any = None
with suppress(ImportError):
    hopper_kernel = import_module("tinyzero_flash_attention_4")

# Required for heads that share keys since PyTorch 2.12, and unknown before.
_GROUPED: Mapping[str, Any] = {"enable_gqa": True} if "enable_gqa" in signature(varlen_attn).parameters else {}


def use_kernel(model: PreTrainedModel, dtype: torch.dtype, device: torch.device, *, or_plain: bool = False) -> bool:
    """Make a model attend through a kernel for packed sequences; False if there is none for it.

    Its attention over padded rows and with a cache stays the same. Without a kernel for the device and type that it
    computes in, `or_plain` makes it attend in plain PyTorch, as sequence-parallel ranks need it.
    """
    if not is_plain(model) or not (or_plain or _has_kernel(device, dtype)):
        return False
    hopper = _has_kernel(device, dtype) and hopper_kernel is not None and hopper_kernel.suits(device, *_heads(model))
    name = HOPPER_KERNEL if hopper else KERNEL
    AttentionInterface.register(name, partial(_attend, hopper=hopper))
    AttentionMaskInterface.register(name, sdpa_mask)
    model.set_attn_implementation(name)
    return True


def _heads(model: PreTrainedModel) -> tuple[int, int, int]:
    """Heads, those of keys and values, and their size."""
    config = model.config.get_text_config()
    heads, kv_heads = config.num_attention_heads, getattr(config, "num_key_value_heads", None)
    return heads, kv_heads or heads, getattr(config, "head_dim", None) or config.hidden_size // heads


def _has_kernel(device: torch.device, dtype: torch.dtype) -> bool:
    return device.type == "cuda" and dtype in (torch.bfloat16, torch.float16)


def is_plain(model: PreTrainedModel) -> bool:
    """Whether a model attends as the kernel does: no sinks, no capped scores, no chunks."""
    config = model.config.get_text_config()
    types = set(getattr(config, "layer_types", None) or ["full_attention"])
    known = types <= {"full_attention", "sliding_attention"} and not getattr(config, "attn_logit_softcapping", None)
    # Where scaled_dot_product_attention does not suffice, transformers has chosen another implementation.
    return known and bool(model.config._attn_implementation == "sdpa")


def has_kernel(model: PreTrainedModel) -> bool:
    """Whether `use_kernel` found one."""
    return model.config._attn_implementation in (KERNEL, HOPPER_KERNEL)


def arguments(model: PreTrainedModel, batch: MicroBatch) -> Mapping[str, Any]:
    """Arguments of the model's forward pass besides the tokens, so that no sequence sees another."""
    if batch.boundaries is None:
        return {"attention_mask": batch.mask}
    if not has_kernel(model):
        return {"attention_mask": None, "position_ids": batch.positions}
    optional = {
        "cu_seq_lens_k": batch.key_boundaries,
        "key_indices": batch.key_indices,
        "sequence_group": batch.sequence_group,
    }
    longest = -(-batch.longest // 64) * 64  # a coarse bound, so that few values occur
    return {
        # A mask of four dimensions keeps transformers from making one. This one is empty: its size tells the kernel the
        # longest sequence, since compiled code takes sizes of tensors as variables, and numbers as constants.
        "attention_mask": batch.tokens.new_empty(1, 1, longest, 0, dtype=torch.bool),
        "position_ids": batch.positions,
        "cu_seq_lens_q": batch.boundaries,
        **{name: value for name, value in optional.items() if value is not None},
    }


def _attend(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    cu_seq_lens_q: Tensor | None = None,
    cu_seq_lens_k: Tensor | None = None,
    key_indices: Tensor | None = None,
    sliding_window: int | None = None,
    sequence_group: SequenceParallelGroup | None = None,
    *,
    hopper: bool = False,
    **more: Any,
) -> tuple[Tensor, Tensor | None]:
    """As transformers calls attention: query [1, heads, tokens, head size], key and value with as many heads or fewer.

    With `sequence_group` the tokens are this rank's slice of the row; boundaries and indices are of the whole row.
    Returns [1, tokens, heads, head size], and no attention weights.
    """
    if cu_seq_lens_q is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **more)
    assert attention_mask is not None
    longest = attention_mask.shape[2]
    states = (column.squeeze(0) for column in (query, key, value))
    if sequence_group is None:
        query, key, value = (column.transpose(0, 1) for column in states)  # [tokens, heads, size]
    else:
        query, key, value = (ulysses.to_heads(column, sequence_group) for column in states)
    if key_indices is not None:
        # In float32, in which the gradients of a shared prompt add up.
        key, value = (column.float().index_select(0, key_indices).to(column.dtype) for column in (key, value))
    window = (-1 if sliding_window is None else sliding_window - 1, 0)
    key_boundaries = cu_seq_lens_q if cu_seq_lens_k is None else cu_seq_lens_k
    attended: Any
    if hopper:
        attended = hopper_kernel.flash_attention_4(
            query, key, value, cu_seq_lens_q, key_boundaries, longest, scale=scaling, window=window[0]
        )
    elif _has_kernel(query.device, query.dtype):
        bounds = cu_seq_lens_q, key_boundaries, longest, longest
        attended = varlen_attn(query, key, value, *bounds, scale=scaling, window_size=window, **_GROUPED)
    else:
        attended = one_after_another(query, key, value, cu_seq_lens_q, key_boundaries, scale=scaling, window=window[0])
    if sequence_group is not None:
        attended = ulysses.to_tokens(attended, sequence_group)
    return attended.unsqueeze(0), None


def one_after_another(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    boundaries: Tensor,
    key_boundaries: Tensor,
    *,
    scale: float | None,
    window: int,
) -> Tensor:
    """What the kernel computes, in plain PyTorch and any precision: one sequence after another.

    Query [tokens, heads, size], key and value with as many heads or fewer; boundaries [sequences + 1] are where each
    sequence starts, and where the last ends, in the queries and in the keys, of which a sequence may have more: its
    last ones are the queries' own. A token sees `window` tokens before itself, -1 = all.
    """
    attended = []
    bounds = (pairwise(starts.tolist()) for starts in (boundaries, key_boundaries))
    for (start, end), (first, last) in zip(*bounds, strict=True):
        q, k, v = (states.transpose(0, 1)[None] for states in (query[start:end], key[first:last], value[first:last]))
        mask = None
        if window >= 0 or end - start < last - first:
            positions = torch.arange(last - first, device=query.device)
            distance = positions[start - end :, None] - positions
            mask = (distance >= 0) & (distance <= (window if window >= 0 else len(positions)))
        attended.append(
            scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None, scale=scale, enable_gqa=True)
        )
    return torch.cat(attended, dim=2)[0].transpose(0, 1)
