"""A Llama-like model as the graph engine runs it: prompts all at once, then one token for every sequence.

Everything it reads and writes stays at its address, so that a step can be captured. Its parts are those of
`FusedDecoder`, whose `fits` says for which models this computes what the model computes.
"""

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import PreTrainedModel

from tinyzero_trainer.rollout.cuda_graph import reference_ops as attention
from tinyzero_trainer.rollout.cuda_graph.batch_state import State
from tinyzero_trainer.rollout.cuda_graph.reference_ops import Tables
from tinyzero_trainer.rollout.cuda_graph.weights import GraphWeights


class Cache:
    """Keys and values of every layer, each [columns, kv heads, slots, head size]."""

    def __init__(self, model: "GraphModel", columns: int, slots: int) -> None:
        shape = (columns, model.kv_heads, slots, model.head_size)
        self.keys, self.values = (
            [torch.zeros(shape, dtype=model.dtype, device=model.device) for _ in range(model.layers)] for _ in range(2)
        )


class GraphModel:
    """The network."""

    def __init__(
        self, model: PreTrainedModel, weights: GraphWeights, *, dtype: torch.dtype, device: torch.device
    ) -> None:
        """
        Args:
            model: gives its shape and its rotary embedding.
            weights: of it.
            dtype: what it computes in.
            device: what it computes on.
        """
        config: Any = model.config
        inner: Any = model
        self.dtype, self.device, self._weights = dtype, device, weights
        self.heads: int = config.num_attention_heads
        self.kv_heads: int = config.num_key_value_heads
        self.head_size: int = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self.layers: int = config.num_hidden_layers
        self.vocabulary: int = config.vocab_size
        self.mlp_size: int = config.intermediate_size
        self.hidden_size: int = config.hidden_size
        self._eps: float = config.rms_norm_eps
        self._rotary = copy.deepcopy(inner.model.rotary_emb).to(device)
        self._parts: Any = attention

    def use_kernels(self) -> None:
        """Take Triton's kernels for what training/varlen_attention.py does."""
        from tinyzero_trainer.rollout.cuda_graph import triton_kernels as step_kernels

        self._parts = step_kernels

    def cache_bytes(self, slots: int) -> int:
        """What a sequence takes of a cache."""
        return slots * self.layers * 2 * self.kv_heads * self.head_size * self.dtype.itemsize

    def prefill_bytes(self, tokens: int) -> int:
        """What so many tokens of prompts take on their way through a layer."""
        return tokens * (3 * self.mlp_size + 6 * self.hidden_size) * self.dtype.itemsize

    def tables(self, slots: int) -> Tables:
        """Of the rotary embedding, rounded as the policy rounds it."""
        states = torch.zeros(1, 1, 1, dtype=self.dtype, device=self.device)
        tables = self._rotary(states, torch.arange(slots, device=self.device)[None])
        cos, sin = (table[0, :, : self.head_size // 2].float().contiguous() for table in tables)
        return cos, sin

    def prefill(
        self, tokens: Tensor, lengths: Tensor, copies: Tensor, columns: slice, cache: Cache, tables: Tables
    ) -> Tensor:
        """Read prompts once, whatever number of sequences goes on from each.

        Args:
            tokens: [prompts, longest], padded on the right, where no token sees the padding.
            lengths: [prompts].
            copies: [prompts] sequences that go on from each.
            columns: of the cache, one for each of these, in order.
            cache: gets the keys and values.
            tables: of the rotary embedding.

        Returns:
            Logits [columns, vocabulary] of the first token of each.
        """
        prompts, longest = tokens.shape
        numbers, count = torch.arange(prompts, device=tokens.device), columns.stop - columns.start
        repeats = torch.repeat_interleave(numbers, copies, output_size=count)  # [columns]; asks no device for the sum
        cos, sin = (table[:longest, None] for table in tables)  # [longest, 1, half]
        group = self.heads // self.kv_heads
        hidden = F.embedding(tokens, self._weights["embed"]).flatten(0, 1)  # [prompts × longest, hidden]
        for layer in range(self.layers):
            fused = self._project(layer, hidden).view(prompts, longest, -1, self.head_size)
            query, key, value = fused.split([self.heads, self.kv_heads, self.kv_heads], dim=2)
            query, key = (attention.rotate(part, cos, sin).transpose(1, 2) for part in (query, key))
            value = value.transpose(1, 2)
            cache.keys[layer][columns, :, :longest] = key[repeats]
            cache.values[layer][columns, :, :longest] = value[repeats]
            # Repeated by hand: not every fast kernel takes fewer key heads.
            key, value = (part.repeat_interleave(group, dim=1) for part in (key, value))
            attended = F.scaled_dot_product_attention(query, key, value, is_causal=True)
            hidden = self._finish_layer(layer, hidden, attended.transpose(1, 2).reshape(prompts * longest, -1))
        last = hidden.view(prompts, longest, -1)[torch.arange(prompts, device=tokens.device), lengths - 1]
        return self._logits(last)[repeats]

    def step(self, state: State, rows: int, cache: Cache, tables: Tables) -> Tensor:
        """Append the newest token of each sequence; logits [rows, vocabulary] of the next."""
        hidden = F.embedding(state.token[state.owners[:rows]], self._weights["embed"])  # [rows, hidden]
        for layer in range(self.layers):
            fused = self._project(layer, hidden)
            keys, values = cache.keys[layer], cache.values[layer]
            attended = self._parts.attend(fused, tables, state, rows, keys, values, self.heads)
            hidden = self._finish_layer(layer, hidden, attended)
        return self._logits(hidden)

    def _project(self, layer: int, hidden: Tensor) -> Tensor:
        """Query, key and value [tokens, all heads × head size], normalised where the model does, not rotated yet."""
        weights = self._weights
        normed = self._norm(hidden, f"{layer}.norm1")
        fused = F.linear(normed, weights[f"{layer}.qkv"], weights.get(f"{layer}.qkv_bias"))
        if weights.get(f"{layer}.q_norm") is None:
            return fused
        parts = fused.unflatten(-1, (-1, self.head_size)).split([self.heads, self.kv_heads, self.kv_heads], dim=1)
        query, key = self._norm(parts[0], f"{layer}.q_norm"), self._norm(parts[1], f"{layer}.k_norm")
        return torch.cat([query, key, parts[2]], dim=1).flatten(1)

    def _finish_layer(self, layer: int, hidden: Tensor, attended: Tensor) -> Tensor:
        """What follows the attention; overwrites `hidden`."""
        weights = self._weights
        hidden = hidden.addmm_(attended, weights[f"{layer}.out"].T)  # the residual is added by the product itself
        bias = weights.get(f"{layer}.out_bias")
        if bias is not None:
            hidden += bias
        gate_up = F.linear(self._norm(hidden, f"{layer}.norm2"), weights[f"{layer}.gate_up"])
        return hidden.addmm_(self._parts.gated(gate_up), weights[f"{layer}.down"].T)

    def _logits(self, hidden: Tensor) -> Tensor:
        return F.linear(self._norm(hidden, "norm"), self._weights["head"])

    def _norm(self, hidden: Tensor, name: str) -> Tensor:
        return F.rms_norm(hidden, (hidden.shape[-1],), self._weights[name], self._eps)
