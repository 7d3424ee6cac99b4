"""A Llama-like model as the graph engine runs it: all prompt tokens at once, then one token per sequence and step.

Everything it reads and writes keeps its address, so that a step can be captured. For the models that
`FusedDecoder.fits`.
"""

import copy
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from tinyzero_trainer.models.float8_format import FP8
from tinyzero_trainer.rollout.torch.batch_state import BatchState
from tinyzero_trainer.rollout.torch.fused_weights import FusedWeights

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


class Cache:
    """For every layer keys and values, and tables for its positions."""

    def __init__(self, model: "GraphModel", slots: int, length: int) -> None:
        self.length, self.tables = length, model.tables(length)
        self.layers = [model.layer_cache(slots, length) for _ in range(model.layers)]


class GraphModel:
    """The network; attention, gating and filling of the cache are `kernels`, functions as in triton_kernels.py."""

    kernels: Any

    def __init__(
        self, model: Any, weights: FusedWeights, *, dtype: torch.dtype, device: torch.device, fp8_cache: bool
    ) -> None:
        """`model`, of transformers, gives sizes and the rotary embedding; its weights are in `weights`."""
        config = model.config
        self.dtype, self.device, self._weights = dtype, device, weights
        self._cache_dtype = FP8 if fp8_cache else dtype
        self.heads, self.kv_heads, self.head_size = weights.heads, weights.kv_heads, weights.head_size
        self.layers: int = config.num_hidden_layers
        self.vocabulary: int = config.vocab_size
        self.mlp_size: int = config.intermediate_size
        self._hidden_size: int = config.hidden_size
        self._rotary = copy.deepcopy(model.model.rotary_emb).to(device)
        # FlashAttention's; PyTorch's other fast kernels need as many key heads as query heads.
        on_gpu = device.type == "cuda" and torch.cuda.get_device_capability(device) >= (8, 0)
        self._groups_heads = on_gpu and dtype != torch.float32

    def cache_bytes(self, length: int) -> int:
        """Bytes of one sequence in the cache."""
        return length * self.layers * 2 * self.kv_heads * self.head_size * self._cache_dtype.itemsize

    def layer_cache(self, slots: int, length: int) -> LayerCache:
        """Zeros of the cache's shape, for one layer."""
        shape = (slots, self.kv_heads, length, self.head_size)
        keys, values = (torch.zeros(shape, dtype=self._cache_dtype, device=self.device) for _ in range(2))
        if self._cache_dtype != FP8:
            return LayerCache(keys, values)
        return LayerCache(keys, values, *(torch.ones(shape[:2], device=self.device) for _ in range(2)))

    def prefill_bytes(self, tokens: int) -> int:
        """Bytes of the activations of so many prompt tokens."""
        return tokens * (3 * self.mlp_size + 6 * self._hidden_size) * self.dtype.itemsize

    def tables(self, length: int) -> list[Tables]:
        """Each layer's rotary embedding, rounded as the policy rounds it."""
        states = torch.zeros(1, 1, 1, dtype=self.dtype, device=self.device)
        tables = self._rotary(states, torch.arange(length, device=self.device)[None])
        cos, sin = (table[0, :, : self.head_size // 2].float().contiguous() for table in tables)
        none = torch.ones_like(cos), torch.zeros_like(sin)  # rotates by nothing, where a layer encodes no positions
        return [(cos, sin) if rotates else none for rotates in self._weights.rotates or [True] * self.layers]

    def prefill(self, tokens: Tensor, lengths: Tensor, which: Tensor, slots: Tensor, cache: Cache) -> Tensor:
        """Run each prompt once, whatever the number of its completions.

        Args:
            tokens: [prompts, longest], padded on the right, where no token sees the padding.
            lengths: [prompts].
            which: [slots] the prompt of each completion.
            slots: [slots] of the cache, one for each completion.

        Returns:
            Logits [slots, vocabulary] of the first token of each completion.
        """
        prompts, longest = tokens.shape
        hidden = F.embedding(tokens, self._weights["embed"]).flatten(0, 1)  # [prompts × longest, hidden]
        for layer in range(self.layers):
            fused = self._weights.project(layer, hidden).unflatten(0, (prompts, longest))
            self.kernels.store_contexts(fused, cache.tables[layer], cache.layers[layer], slots, which, lengths)
            query, key, value = fused.transpose(1, 2).split([self.heads, self.kv_heads, self.kv_heads], dim=1)
            if not self._groups_heads:
                key, value = (part.repeat_interleave(self.heads // self.kv_heads, dim=1) for part in (key, value))
            attended = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=self._groups_heads)
            hidden = self._finish_layer(layer, hidden, attended.transpose(1, 2).reshape(prompts * longest, -1))
        last = hidden.view(prompts, longest, -1)[torch.arange(prompts, device=tokens.device), lengths - 1]
        return self._logits(last)[which]

    def step(self, state: BatchState, rows: int, cache: Cache) -> Tensor:
        """Append the newest token of each sequence; logits [rows, vocabulary] of the next."""
        kernels, weights = self.kernels, self._weights
        hidden = F.embedding(state.last_token[state.slot_ids[:rows]], weights["embed"])  # [rows, hidden]
        pieces = kernels.split(state, rows, self.kv_heads, cache.length)
        for layer in range(self.layers):
            fused = weights.project(layer, hidden).flatten(1)
            attended = kernels.attend(fused, cache.tables[layer], state, rows, cache.layers[layer], self.heads, pieces)
            hidden = self._finish_layer(layer, hidden, attended)
        return self._logits(hidden)

    def _finish_layer(self, layer: int, hidden: Tensor, attended: Tensor) -> Tensor:
        """What follows the attention; overwrites `hidden`."""
        weights = self._weights
        hidden = self._add_product(hidden, attended, f"{layer}.out")
        gate_up = F.linear(weights.norm(f"{layer}.norm2", hidden), weights[f"{layer}.gate_up"])
        return self._add_product(hidden, self.kernels.gated(gate_up), f"{layer}.down")

    def _add_product(self, hidden: Tensor, states: Tensor, name: str) -> Tensor:
        """hidden += states · weightᵀ, normalized first if the model does so."""
        weights, bias = self._weights, self._weights.get(f"{name}_bias")
        if f"{name}_norm" in weights:
            hidden += weights.norm(f"{name}_norm", F.linear(states, weights[name], bias))
            return hidden
        hidden.addmm_(states, weights[name].T)  # the residual is added by the product itself
        if bias is not None:
            hidden += bias
        return hidden

    def _logits(self, hidden: Tensor) -> Tensor:
        return F.linear(self._weights.norm("norm", hidden), self._weights["head"])
