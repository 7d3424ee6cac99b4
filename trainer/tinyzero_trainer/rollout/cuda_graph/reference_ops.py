"""One decoding step's attention and gating in plain torch, for where triton_kernels.py cannot run."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from tinyzero_trainer.rollout.batch_state import BatchState

Tables = tuple[Tensor, Tensor]
"""Cosine and sine of the rotary embedding, each [cache length, head size / 2] float32."""

FP8 = torch.float8_e4m3fn


class LayerCache(NamedTuple):
    """Keys and values of one layer, each [slots, kv heads, length, head size].

    In fp8 each key and each value has a scale, by which it is multiplied: [slots, kv heads, length] bfloat16.
    """

    keys: Tensor
    values: Tensor
    key_scales: Tensor | None = None
    value_scales: Tensor | None = None

    def write(self, slots: Tensor, positions: Tensor | slice, key: Tensor, value: Tensor) -> None:
        """Store keys and values of some slots; `positions` index the third dimension."""
        if self.key_scales is None or self.value_scales is None:
            self.keys[slots, :, positions], self.values[slots, :, positions] = key, value
            return
        self.keys[slots, :, positions], self.key_scales[slots, :, positions] = quantize(key)
        self.values[slots, :, positions], self.value_scales[slots, :, positions] = quantize(value)

    def read(self, slots: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """All positions of some slots."""
        if self.key_scales is None or self.value_scales is None:
            return self.keys[slots], self.values[slots]
        keys = self.keys[slots].float() * self.key_scales[slots].float()[..., None]
        values = self.values[slots].float() * self.value_scales[slots].float()[..., None]
        return keys.to(dtype), values.to(dtype)


def quantize(states: Tensor) -> tuple[Tensor, Tensor]:
    """In fp8, the largest number of each [head size] vector at fp8's largest; and the scales, one for each vector."""
    scales = (states.float().abs().amax(dim=-1) / torch.finfo(FP8).max).clamp(min=1e-30).bfloat16()
    return (states.float() / scales.float()[..., None]).to(FP8), scales


def attend(fused: Tensor, tables: Tables, state: BatchState, rows: int, cache: LayerCache, heads: int) -> Tensor:
    """Write the newest key and value of each sequence to the cache, and attend over the sequence.

    Args:
        fused: [rows, (heads + 2 × kv heads) × head size] query, key and value, not rotated yet.
        tables: of the rotary embedding.
        state: gives each row's slot and position in the cache.
        rows: of the step.
        cache: written to.
        heads: query heads.

    Returns:
        [rows, heads × head size].
    """
    _, kv_heads, cache_length, size = cache.keys.shape
    slots = state.slot_ids[:rows]
    positions = state.positions[slots]
    query, key, value = fused.view(rows, -1, size).split([heads, kv_heads, kv_heads], dim=1)
    cos, sin = (table[positions][:, None] for table in tables)
    cache.write(slots, positions, rotate(key, cos, sin), value)
    keys, values = cache.read(slots, fused.dtype)
    seen = torch.arange(cache_length, device=fused.device) <= positions[:, None]  # [rows, cache length]
    attended = F.scaled_dot_product_attention(
        rotate(query, cos, sin)[:, :, None],
        keys,
        values,
        attn_mask=seen[:, None, None],
        enable_gqa=heads != kv_heads,
    )
    return attended.reshape(rows, -1)


def gated(gate_up: Tensor) -> Tensor:
    """silu(gate) · up of [rows, 2 × width]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def rotate(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding of [..., head size], with tables of [..., head size / 2]."""
    left, right = states.float().chunk(2, dim=-1)
    return torch.cat([left * cos - right * sin, right * cos + left * sin], dim=-1).to(states.dtype)
