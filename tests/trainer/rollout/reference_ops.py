"""What the graph engine's Triton kernels compute, in plain torch, for the CPU: see triton_kernels.py."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tinyzero_trainer.models.float8_format import FP8_MAX, SMALLEST_SCALE
from tinyzero_trainer.rollout import SamplingParams
from tinyzero_trainer.rollout.torch.batch_state import BatchState
from tinyzero_trainer.rollout.torch.cuda_graph.fp8_products import plain_product, to_fp8
from tinyzero_trainer.rollout.torch.cuda_graph.model import HEADROOM, LayerCache, Tables


def read(cache: LayerCache, slots: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """All keys and values of some slots."""
    if cache.key_scales is None or cache.value_scales is None:
        return cache.keys[slots], cache.values[slots]
    keys = cache.keys[slots].float() * cache.key_scales[slots][..., None, None]
    values = cache.values[slots].float() * cache.value_scales[slots][..., None, None]
    return keys.to(dtype), values.to(dtype)


def fp8_scales(states: Tensor) -> Tensor:
    """For states [contexts, kv heads, length, head size] that are to be stored in fp8: [contexts, kv heads]."""
    return (states.float().abs().amax(dim=(2, 3)) * (HEADROOM / FP8_MAX)).clamp(min=SMALLEST_SCALE)


def store_contexts(
    fused: Tensor, tables: Tables, cache: LayerCache, slots: Tensor, rows: Tensor, lengths: Tensor
) -> None:
    kv_heads, longest = cache.keys.shape[1], fused.shape[1]
    to_rotate = fused[:, :, :-kv_heads]
    to_rotate.copy_(rotate(to_rotate, *(table[:longest, None] for table in tables)))
    key, value = fused[:, :, -2 * kv_heads :].transpose(1, 2).split(kv_heads, dim=1)
    if cache.key_scales is None or cache.value_scales is None:
        cache.keys[slots, :, :longest], cache.values[slots, :, :longest] = key[rows], value[rows]
        return
    real = torch.arange(longest, device=fused.device) < lengths[:, None]
    for states, numbers, scales in ((key, cache.keys, cache.key_scales), (value, cache.values, cache.value_scales)):
        new = fp8_scales(states * real[:, None, :, None])
        scales[slots], numbers[slots, :, :longest] = new[rows], to_fp8(states, new[..., None, None])[rows]


def split(state: BatchState, rows: int, kv_heads: int, length: int) -> None:
    """Contexts are read whole."""


def attend(
    fused: Tensor, tables: Tables, state: BatchState, rows: int, cache: LayerCache, heads: int, pieces: Any = None
) -> Tensor:
    _, kv_heads, cache_length, size = cache.keys.shape
    slots = state.slot_ids[:rows]
    positions = state.positions[slots]
    query, key, value = fused.view(rows, -1, size).split([heads, kv_heads, kv_heads], dim=1)
    cos, sin = (table[positions][:, None] for table in tables)
    key = rotate(key, cos, sin)
    if cache.key_scales is not None and cache.value_scales is not None:
        key = to_fp8(key, cache.key_scales[slots][..., None])
        value = to_fp8(value, cache.value_scales[slots][..., None])
    cache.keys[slots, :, positions], cache.values[slots, :, positions] = key, value
    keys, values = read(cache, slots, fused.dtype)
    seen = torch.arange(cache_length, device=fused.device) <= positions[:, None]  # [rows, cache length]
    query, seen = rotate(query, cos, sin)[:, :, None], seen[:, None, None]
    attended = F.scaled_dot_product_attention(query, keys, values, attn_mask=seen, enable_gqa=heads != kv_heads)
    return attended.reshape(rows, -1)


def gated(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def gated_fp8(gate_up: Tensor) -> tuple[Tensor, Tensor]:
    states = gated(gate_up.float())
    scales = (states.abs().amax(dim=-1) / FP8_MAX).clamp(min=SMALLEST_SCALE)
    return to_fp8(states, scales[:, None]), scales


def product(*args: Any, in_parts: bool) -> Tensor:
    return plain_product(*args)


def normalize_fp8(hidden: Tensor, eps: float, added: Tensor | None = None, scales: Tensor | None = None) -> Tensor:
    if added is not None:
        added = added.float().view(-1, *hidden.shape).sum(dim=0)
        hidden.copy_(hidden.float() + added * (1.0 if scales is None else scales[:, None]))
    width = hidden.shape[1]
    return to_fp8(F.rms_norm(hidden.float(), (width,), eps=eps), math.sqrt(width) / FP8_MAX)


def sample(logits: Tensor, state: BatchState, rows: int, *, ends: bool) -> None:
    state.sample(logits, rows, SamplingParams(1, ignore_eos=not ends))


def rotate(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding of [..., head size], with tables of [..., head size / 2]."""
    left, right = states.float().chunk(2, dim=-1)
    return torch.cat([left * cos - right * sin, right * cos + left * sin], dim=-1).to(states.dtype)
