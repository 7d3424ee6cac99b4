"""One decoding step's attention and gating in plain torch, for where triton_kernels.py cannot run."""

import torch
import torch.nn.functional as F
from torch import Tensor

from tinyzero_trainer.rollout.batch_state import BatchState

Tables = tuple[Tensor, Tensor]
"""Cosine and sine of the rotary embedding, each [cache length, head size / 2] float32."""


def attend(
    fused: Tensor, tables: Tables, state: BatchState, rows: int, keys: Tensor, values: Tensor, heads: int
) -> Tensor:
    """Write the newest key and value of each sequence to the cache, and attend over the sequence.

    Args:
        fused: [rows, (heads + 2 × kv heads) × head size] query, key and value, not rotated yet.
        tables: of the rotary embedding.
        state: gives each row's slot and position in the cache.
        rows: of the step.
        keys: [slots, kv heads, cache length, head size], written to.
        values: as `keys`.
        heads: query heads.

    Returns:
        [rows, heads × head size].
    """
    _, kv_heads, cache_length, size = keys.shape
    slots = state.slot_ids[:rows]
    positions = state.positions[slots]
    query, key, value = fused.view(rows, -1, size).split([heads, kv_heads, kv_heads], dim=1)
    cos, sin = (table[positions][:, None] for table in tables)
    keys[slots, :, positions] = rotate(key, cos, sin)
    values[slots, :, positions] = value
    seen = torch.arange(cache_length, device=fused.device) <= positions[:, None]  # [rows, cache length]
    attended = F.scaled_dot_product_attention(
        rotate(query, cos, sin)[:, :, None],
        keys[slots],
        values[slots],
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
