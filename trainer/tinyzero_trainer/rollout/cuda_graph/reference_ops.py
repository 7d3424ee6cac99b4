"""Attention of one decoding step in plain torch: what triton_kernels.py does in one pass, for where it cannot run."""

import torch
import torch.nn.functional as F
from torch import Tensor

from tinyzero_trainer.rollout.cuda_graph.batch_state import State

Tables = tuple[Tensor, Tensor]
"""Cosine and sine of the rotary embedding, each [slots, head size / 2] float32."""


def attend(fused: Tensor, tables: Tables, state: State, rows: int, keys: Tensor, values: Tensor, heads: int) -> Tensor:
    """Put the newest key and value of each sequence into the cache, and attend over all of its own.

    Args:
        fused: [rows, (heads + 2 × kv heads) × head size] query, key and value, not rotated yet.
        tables: of the rotary embedding.
        state: says which columns of the cache the rows work on, and at which slot.
        rows: of the step.
        keys: [columns, kv heads, slots, head size], written to.
        values: as `keys`.
        heads: query heads.

    Returns:
        [rows, heads × head size].
    """
    _, kv_heads, slots, size = keys.shape
    owners = state.owners[:rows]
    positions = state.positions[owners]
    query, key, value = fused.view(rows, -1, size).split([heads, kv_heads, kv_heads], dim=1)
    cos, sin = (table[positions][:, None] for table in tables)
    keys[owners, :, positions] = rotate(key, cos, sin)
    values[owners, :, positions] = value
    seen = torch.arange(slots, device=fused.device) <= positions[:, None]  # [rows, slots]
    attended = F.scaled_dot_product_attention(
        rotate(query, cos, sin)[:, :, None],
        keys[owners],
        values[owners],
        attn_mask=seen[:, None, None],
        enable_gqa=heads != kv_heads,
    )
    return attended.reshape(rows, -1)


def gated(gate_up: Tensor) -> Tensor:
    """silu(gate) · up of [rows, 2 × width]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def rotate(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding of [..., head size], with tables that fit to [..., head size / 2]."""
    left, right = states.float().chunk(2, dim=-1)
    return torch.cat([left * cos - right * sin, right * cos + left * sin], dim=-1).to(states.dtype)
