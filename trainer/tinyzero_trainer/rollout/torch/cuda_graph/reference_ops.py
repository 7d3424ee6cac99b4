"""Filling the KV cache, and a decoding step's attention, gating, products and rounding to fp8, in plain torch.

For where triton_kernels.py cannot run; products of many rows it takes from here.
"""

import math
from functools import cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from tinyzero_trainer.models.float8_format import FP8, FP8_MAX, SMALLEST_SCALE
from tinyzero_trainer.rollout.torch.batch_state import BatchState

Tables = tuple[Tensor, Tensor]
"""Cosine and sine of the rotary embedding, each [cache length, head size / 2] float32."""

HEADROOM = 4  # times larger than any in the context a key or value may become before fp8 cuts it off


class LayerCache(NamedTuple):
    """Keys and values of one layer, each [slots, kv heads, length, head size].

    In fp8 all keys of a slot's head have one scale, by which they are multiplied, and so have its values:
    [slots, kv heads] float32.
    """

    keys: Tensor
    values: Tensor
    key_scales: Tensor | None = None
    value_scales: Tensor | None = None

    def append(self, slots: Tensor, positions: Tensor, key: Tensor, value: Tensor) -> None:
        """Store a key and a value, each [slots, kv heads, head size], of every slot, at its position."""
        if self.key_scales is not None and self.value_scales is not None:
            key = to_fp8(key, self.key_scales[slots][..., None])
            value = to_fp8(value, self.value_scales[slots][..., None])
        self.keys[slots, :, positions], self.values[slots, :, positions] = key, value

    def read(self, slots: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """All positions of some slots."""
        if self.key_scales is None or self.value_scales is None:
            return self.keys[slots], self.values[slots]
        keys = self.keys[slots].float() * self.key_scales[slots][..., None, None]
        values = self.values[slots].float() * self.value_scales[slots][..., None, None]
        return keys.to(dtype), values.to(dtype)


def fp8_scales(states: Tensor) -> Tensor:
    """For states [contexts, kv heads, length, head size] that are to be stored in fp8: [contexts, kv heads]."""
    return (states.float().abs().amax(dim=(2, 3)) * (HEADROOM / FP8_MAX)).clamp(min=SMALLEST_SCALE)


def to_fp8(states: Tensor, scales: Tensor | float) -> Tensor:
    """Divided by their scales; what is too large becomes the largest number."""
    return (states.float() / scales).clamp(-FP8_MAX, FP8_MAX).to(FP8)


def store_contexts(
    fused: Tensor, tables: Tables, cache: LayerCache, slots: Tensor, rows: Tensor, lengths: Tensor
) -> None:
    """Rotate queries and keys of contexts, in place, and store keys and values.

    Args:
        fused: [contexts, longest, heads + 2 × kv heads, head size] query, key and value; the first two are overwritten.
        slots: [slots] to fill.
        rows: [slots] the context of each.
        lengths: [contexts], after which there is padding.
    """
    kv_heads, longest = cache.keys.shape[1], fused.shape[1]
    to_rotate = fused[:, :, :-kv_heads]
    to_rotate.copy_(rotate(to_rotate, *(table[:longest, None] for table in tables)))
    key, value = fused[:, :, -2 * kv_heads :].transpose(1, 2).split(kv_heads, dim=1)
    if cache.key_scales is None or cache.value_scales is None:
        cache.keys[slots, :, :longest], cache.values[slots, :, :longest] = key[rows], value[rows]
        return
    real = torch.arange(longest, device=fused.device) < lengths[:, None]
    for states, numbers, scales in ((key, cache.keys, cache.key_scales), (value, cache.values, cache.value_scales)):
        found = fp8_scales(states * real[:, None, :, None])
        scales[slots], numbers[slots, :, :longest] = found[rows], to_fp8(states, found[..., None, None])[rows]


def split(state: BatchState, rows: int, kv_heads: int, length: int) -> None:
    """Nothing to prepare for `attend` here: see attention_triton.py, which reads long contexts in pieces."""


def attend(
    fused: Tensor, tables: Tables, state: BatchState, rows: int, cache: LayerCache, heads: int, pieces: None = None
) -> Tensor:
    """Write the newest key and value of each sequence to the cache, and attend over the sequence.

    Args:
        fused: [rows, (heads + 2 × kv heads) × head size] query, key and value, not rotated yet.
        state: gives each row's slot and position in the cache.
        heads: query heads.
        pieces: what `split` gives for the step, for all of its layers.

    Returns:
        [rows, heads × head size].
    """
    _, kv_heads, cache_length, size = cache.keys.shape
    slots = state.slot_ids[:rows]
    positions = state.positions[slots]
    query, key, value = fused.view(rows, -1, size).split([heads, kv_heads, kv_heads], dim=1)
    cos, sin = (table[positions][:, None] for table in tables)
    cache.append(slots, positions, rotate(key, cos, sin), value)
    keys, values = cache.read(slots, fused.dtype)
    seen = torch.arange(cache_length, device=fused.device) <= positions[:, None]  # [rows, cache length]
    query, seen = rotate(query, cos, sin)[:, :, None], seen[:, None, None]
    attended = F.scaled_dot_product_attention(query, keys, values, attn_mask=seen, enable_gqa=heads != kv_heads)
    return attended.reshape(rows, -1)


def gated(gate_up: Tensor) -> Tensor:
    """silu(gate) · up of [rows, 2 × width]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def gated_fp8(gate_up: Tensor) -> tuple[Tensor, Tensor]:
    """`gated` in fp8 [rows, width], and what each row is to be multiplied by: scales [rows] float32."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    states = F.silu(gate) * up
    scales = (states.abs().amax(dim=-1) / FP8_MAX).clamp(min=SMALLEST_SCALE)
    return to_fp8(states, scales[:, None]), scales


def product(
    states: Tensor, weight: Tensor, scale: Tensor | None, bias: Tensor | None, dtype: torch.dtype, *, in_parts: bool
) -> Tensor:
    """States · weightᵀ.

    Args:
        states: [rows, in], of the type of the weight.
        weight: [out, in].
        scale: [] float32, for the result of a product in fp8.
        bias: [out].
        dtype: of the result.
        in_parts: whether the result may be in parts, to be added up: products_triton.py makes use of it.

    Returns:
        [rows, out], or float32 [parts, rows, out].
    """
    if scale is None:
        return F.linear(states, weight, bias)
    return torch._scaled_mm(
        states, weight.T, _unit(states.device), scale, bias=bias, out_dtype=dtype, use_fast_accum=True
    )


@cache
def _unit(device: torch.device) -> Tensor:
    return torch.ones((), device=device)


def normalize_fp8(hidden: Tensor, eps: float, added: Tensor | None = None, scales: Tensor | None = None) -> Tensor:
    """Divide each row by its root mean square, and round it to fp8.

    Args:
        hidden: [rows, width].
        eps: added to the mean square.
        added: what is to be added to `hidden` before, as `product` gives it; `hidden` is overwritten.
        scales: [rows] by which `added` is multiplied.

    Returns:
        [rows, width], multiplied by FP8_MAX / √width: no number of a row is larger than √width times its root mean
        square, so none is cut off.
    """
    if added is not None:
        added = added.float().view(-1, *hidden.shape).sum(dim=0)
        hidden.copy_(hidden.float() + (added if scales is None else added * scales[:, None]))
    width = hidden.shape[1]
    return to_fp8(F.rms_norm(hidden.float(), (width,), eps=eps), math.sqrt(width) / FP8_MAX)


def rotate(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding of [..., head size], with tables of [..., head size / 2]."""
    left, right = states.float().chunk(2, dim=-1)
    return torch.cat([left * cos - right * sin, right * cos + left * sin], dim=-1).to(states.dtype)
