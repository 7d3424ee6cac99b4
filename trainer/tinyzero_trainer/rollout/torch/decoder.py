"""Decoding one token per sequence and step, for torch_engine.py. How tokens are sampled is in batch_state.py.

`FusedDecoder` runs Llama-like models with a cache and projections laid out for generation; it is two to three times as
fast as `TransformersDecoder`, which runs any causal LM through transformers' own forward pass.
"""

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from tinyzero_trainer.distributed.fsdp import options_of
from tinyzero_trainer.models.spec import has_graphs
from tinyzero_trainer.rollout.torch.cost_model import CACHE_BLOCK
from tinyzero_trainer.rollout.torch.fused_weights import FusedWeights
from tinyzero_trainer.rollout.weight_source import engine_weights, plain_twin


class TransformersDecoder:
    """A batch of sequences that grow together, each padded on the left, of any causal LM with its own forward pass."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._policy = model
        # Generating through FSDP2 would gather and free each layer for each token.
        self._model = model if options_of(model) is None else plain_twin(model)
        self._cache: DynamicCache | None = None
        self.load_weights()

    @torch.no_grad()
    def load_weights(self) -> None:
        """Take over the model's current weights: a plain model's own are read, those of a sharded one gathered."""
        if self._model is not self._policy:
            self._model.load_state_dict(dict(engine_weights(self._policy)), assign=True)

    def start(self, tokens: Tensor, mask: Tensor, copies: Tensor) -> Tensor:
        """Start a batch: tokens and mask [prompts, length], and of each prompt so many sequences, copies [prompts].

        Returns logits [sequences, vocabulary].
        """
        self._cache = cache = DynamicCache(config=self._model.config)
        self._mask = mask.long()
        positions = (self._mask.cumsum(dim=1) - 1).clamp(min=0)
        logits = self._forward(tokens, positions)
        cache.batch_repeat_interleave(copies)  # type: ignore[arg-type]  # torch takes both
        self._mask = self._mask.repeat_interleave(copies, dim=0)
        self._position = self._mask.sum(dim=1)
        return logits.repeat_interleave(copies, dim=0)

    def step(self, tokens: Tensor) -> Tensor:
        """Append tokens [batch]; returns the next logits [batch, vocabulary]."""
        self._mask = F.pad(self._mask, (0, 1), value=1)
        logits = self._forward(tokens[:, None], self._position[:, None])
        self._position = self._position + 1
        return logits

    def keep(self, rows: Tensor) -> None:
        """Drop all sequences except those at `rows` [kept]."""
        assert self._cache is not None
        self._cache.batch_select_indices(rows)
        self._mask, self._position = self._mask[rows], self._position[rows]

    def end(self) -> None:
        """Free the batch's memory."""
        self._cache = None

    def _forward(self, tokens: Tensor, positions: Tensor) -> Tensor:
        out = self._model(
            input_ids=tokens,
            attention_mask=self._mask,
            position_ids=positions,
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
        )
        return out.logits[:, -1]


class FusedDecoder:
    """`TransformersDecoder` for Llama-like models: fused projections, a cache that grows in blocks, often no mask."""

    @classmethod
    def fits(cls, model: PreTrainedModel) -> bool:
        """Whether this decoder computes what the model computes."""
        # transformers sets the window only where it is used.
        return not getattr(model.config, "sliding_window", None) and has_graphs(model.config.to_dict())

    def __init__(self, model: PreTrainedModel) -> None:
        inner: Any = model
        self._rotary = inner.model.rotary_emb
        options = options_of(model)
        dtype, device = (model.dtype, model.device) if options is None else (options.dtype, options.device)
        source = partial(engine_weights, model)
        self._weights = FusedWeights(model.config, source, dtype=dtype, device=device, share=True)
        self._layers: int = model.config.num_hidden_layers
        self.load_weights()

    def load_weights(self) -> None:
        """Copy the projections into fused matrices; everything else is read where it is."""
        self._weights.load()

    def start(self, tokens: Tensor, mask: Tensor, copies: Tensor) -> Tensor:
        prompts, length = tokens.shape
        mask = mask.bool()
        positions = (mask.long().cumsum(dim=1) - 1).clamp(min=0)
        causal = torch.ones(length, length, dtype=torch.bool, device=tokens.device).tril()
        # A padded query sees itself, or its softmax would be over nothing.
        allowed = (causal & mask[:, None, :]) | torch.eye(length, dtype=torch.bool, device=tokens.device)
        self._padded = not bool(mask.all())
        self._length = 0
        self._caches = [self._new_cache(prompts, length) for _ in range(self._layers)]
        hidden = self._forward(tokens, positions, allowed[:, None] if self._padded else None, causal=True)
        self._caches = [cache.repeat_interleave(copies, dim=0) for cache in self._caches]
        self._mask = mask.repeat_interleave(copies, dim=0)  # [batch, length] not padding
        self._position = positions[:, -1].repeat_interleave(copies) + 1
        return F.linear(hidden[:, -1], self._weights["head"]).repeat_interleave(copies, dim=0)

    def step(self, tokens: Tensor) -> Tensor:
        if self._length == self._caches[0].shape[3]:
            block = self._new_cache(len(tokens), CACHE_BLOCK)
            self._caches = [torch.cat([cache, block], dim=3) for cache in self._caches]
        allowed = None
        if self._padded:
            self._mask = F.pad(self._mask, (0, 1), value=True)
            allowed = self._mask[:, None, None, :]
        hidden = self._forward(tokens[:, None], self._position[:, None], allowed, causal=False)
        self._position = self._position + 1
        return F.linear(hidden[:, -1], self._weights["head"])

    def keep(self, rows: Tensor) -> None:
        self._caches = [cache.index_select(0, rows) for cache in self._caches]
        self._mask, self._position = self._mask[rows], self._position[rows]

    def end(self) -> None:
        self._caches = []

    def _new_cache(self, rows: int, length: int) -> Tensor:
        """Keys and values of one layer: [rows, 2, kv heads, length, head size]; rows first, for a cheap `keep`."""
        weights = self._weights
        return weights["head"].new_empty((rows, 2, weights.kv_heads, length, weights.head_size))

    def _forward(self, tokens: Tensor, positions: Tensor, allowed: Tensor | None, *, causal: bool) -> Tensor:
        """Hidden states [batch, length, hidden] after the last norm; keys and values go into the cache.

        A query attends to what is `allowed`, broadcastable to [batch, heads, length, cache length]; if that is None,
        to all, or with `causal` up to its own position.
        """
        weights = self._weights
        hidden = F.embedding(tokens, weights["embed"])
        cos, sin = (table[:, None] for table in self._rotary(hidden, positions))  # [batch, 1, length, head size]
        end = self._length + tokens.shape[1]
        grouped = weights.heads != weights.kv_heads
        for layer, cache in enumerate(self._caches):
            fused = weights.project(layer, hidden).transpose(1, 2)  # [batch, all heads, length, head size]
            query, key, value = fused.split([weights.heads, weights.kv_heads, weights.kv_heads], dim=1)
            if not weights.rotates or weights.rotates[layer]:
                query, key = _rotate(query, cos, sin), _rotate(key, cos, sin)
            cache[:, 0, :, self._length : end] = key
            cache[:, 1, :, self._length : end] = value
            keys, values = cache[:, :, :, :end].unbind(1)
            attended = F.scaled_dot_product_attention(
                query, keys, values, attn_mask=allowed, is_causal=causal and allowed is None, enable_gqa=grouped
            )
            attended = attended.transpose(1, 2).flatten(2)
            added = F.linear(attended, weights[f"{layer}.out"], weights.get(f"{layer}.out_bias"))
            hidden = hidden + weights.norm(f"{layer}.out_norm", added)
            gate_up = F.linear(weights.norm(f"{layer}.norm2", hidden), weights[f"{layer}.gate_up"])
            gate, up = gate_up.chunk(2, dim=-1)
            added = F.linear(F.silu(gate) * up, weights[f"{layer}.down"])
            hidden = hidden + weights.norm(f"{layer}.down_norm", added)
        self._length = end
        return weights.norm("norm", hidden)


Decoder = TransformersDecoder | FusedDecoder


def build_decoder(model: PreTrainedModel) -> Decoder:
    """The faster decoder that computes what the model computes."""
    return FusedDecoder(model) if FusedDecoder.fits(model) else TransformersDecoder(model)


def _rotate(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding of [batch, heads, length, head size]."""
    left, right = states.chunk(2, dim=-1)
    return (states * cos + torch.cat([-right, left], dim=-1) * sin).to(states.dtype)
