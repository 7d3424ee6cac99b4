"""One token a sequence at a time: two decoders behind one small protocol.

`FusedDecoder` runs Llama-like models with a cache and projections laid out for generation; it is two to three
times as fast as `TransformersDecoder`, which runs any causal LM through transformers' own forward pass.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from tinyzero_trainer.distributed.dtensor import full_tensor
from tinyzero_trainer.distributed.fsdp import on_device, placement_of
from tinyzero_trainer.models.lora import merged_weight
from tinyzero_trainer.models.spec import has_graphs
from tinyzero_trainer.rollout.weight_sync import engine_weight, named_weights, plain_twin

CACHE_BLOCK = 64
"""Slots by which the cache grows, so that short completions do not pay for the longest allowed."""


class Decoder(Protocol):
    """A batch of sequences that grow together, each padded on the left."""

    def load_weights(self) -> None:
        """Take over the model's weights as they are now."""

    def start(self, tokens: Tensor, mask: Tensor, copies: int) -> Tensor:
        """Begin a batch: tokens and mask [prompts, length]; returns logits [prompts × copies, vocabulary]."""

    def step(self, tokens: Tensor) -> Tensor:
        """Append tokens [batch]; returns the next logits [batch, vocabulary]."""

    def keep(self, rows: Tensor) -> None:
        """Drop all sequences but those at `rows` [kept]."""

    def end(self) -> None:
        """Give back the batch's memory."""


def build_decoder(model: PreTrainedModel) -> Decoder:
    """The fastest decoder that gives this model's logits."""
    return FusedDecoder(model) if FusedDecoder.fits(model) else TransformersDecoder(model)


class TransformersDecoder:
    """Any causal LM, through its own forward pass and cache."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._policy = model
        # Generating through FSDP2 would gather and free each layer for each token.
        self._model = model if placement_of(model) is None else plain_twin(model)
        self._cache: DynamicCache | None = None
        self.load_weights()

    @torch.no_grad()
    def load_weights(self) -> None:
        """Nothing to do for a plain model, whose own weights it reads; of a sharded one, take what it has now."""
        if self._model is not self._policy:
            weights = ((name, engine_weight(self._policy, tensor)) for name, tensor in named_weights(self._policy))
            self._model.load_state_dict(dict(weights), assign=True)

    def start(self, tokens: Tensor, mask: Tensor, copies: int) -> Tensor:
        """See `Decoder`."""
        self._cache = cache = DynamicCache(config=self._model.config)
        self._mask = mask.long()
        positions = (self._mask.cumsum(dim=1) - 1).clamp(min=0)
        logits = self._forward(tokens, positions)
        cache.batch_repeat_interleave(copies)
        self._mask = self._mask.repeat_interleave(copies, dim=0)
        self._position = self._mask.sum(dim=1)
        return logits.repeat_interleave(copies, dim=0)

    def step(self, tokens: Tensor) -> Tensor:
        """See `Decoder`."""
        self._mask = F.pad(self._mask, (0, 1), value=1)
        logits = self._forward(tokens[:, None], self._position[:, None])
        self._position = self._position + 1
        return logits

    def keep(self, rows: Tensor) -> None:
        """See `Decoder`."""
        assert self._cache is not None
        self._cache.batch_select_indices(rows)
        self._mask, self._position = self._mask[rows], self._position[rows]

    def end(self) -> None:
        """See `Decoder`."""
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
    """Llama-like decoders: fused projections, a cache that grows in blocks, no mask where none is needed."""

    @classmethod
    def fits(cls, model: PreTrainedModel) -> bool:
        """Whether this decoder computes what the model computes."""
        # Made from a config.json, it has a window only where that is used.
        return not getattr(model.config, "sliding_window", None) and has_graphs(model.config.to_dict())

    def __init__(self, model: PreTrainedModel) -> None:
        self._model: Any = model  # its parts have no types of their own
        config = model.config
        self._heads: int = config.num_attention_heads
        self._kv_heads: int = config.num_key_value_heads
        self._head_size: int = getattr(config, "head_dim", None) or config.hidden_size // self._heads
        self._eps: float = config.rms_norm_eps
        self.load_weights()

    @torch.no_grad()
    def load_weights(self) -> None:
        """Copy the projections into fused matrices; everything else is read where it is."""
        with on_device(self._model):
            take, model = partial(engine_weight, self._model), self._model.model
            self._layers = [_FusedLayer(layer, take) for layer in model.layers]
            self._embedding, self._last_norm = (
                take(full_tensor(model.embed_tokens.weight)),
                take(full_tensor(model.norm.weight)),
            )
            self._head = take(full_tensor(self._model.lm_head.weight))

    def start(self, tokens: Tensor, mask: Tensor, copies: int) -> Tensor:
        """See `Decoder`."""
        prompts, length = tokens.shape
        mask = mask.bool()
        positions = (mask.long().cumsum(dim=1) - 1).clamp(min=0)
        causal = torch.ones(length, length, dtype=torch.bool, device=tokens.device).tril()
        # A padded query sees itself, or its softmax would be over nothing.
        allowed = (causal & mask[:, None, :]) | torch.eye(length, dtype=torch.bool, device=tokens.device)
        self._padded = not bool(mask.all())
        self._length = 0
        self._caches = [self._new_cache(prompts, length) for _ in self._layers]
        hidden = self._forward(tokens, positions, allowed[:, None] if self._padded else None, causal=True)
        self._caches = [cache.repeat_interleave(copies, dim=0) for cache in self._caches]
        self._mask = mask.repeat_interleave(copies, dim=0)  # [batch, length] of real slots
        self._position = positions[:, -1].repeat_interleave(copies) + 1
        return F.linear(hidden[:, -1], self._head).repeat_interleave(copies, dim=0)

    def step(self, tokens: Tensor) -> Tensor:
        """See `Decoder`."""
        if self._length == self._caches[0].shape[3]:
            block = self._new_cache(len(tokens), CACHE_BLOCK)
            self._caches = [torch.cat([cache, block], dim=3) for cache in self._caches]
        allowed = None
        if self._padded:
            self._mask = F.pad(self._mask, (0, 1), value=True)
            allowed = self._mask[:, None, None, :]
        hidden = self._forward(tokens[:, None], self._position[:, None], allowed, causal=False)
        self._position = self._position + 1
        return F.linear(hidden[:, -1], self._head)

    def keep(self, rows: Tensor) -> None:
        """See `Decoder`."""
        self._caches = [cache.index_select(0, rows) for cache in self._caches]
        self._mask, self._position = self._mask[rows], self._position[rows]

    def end(self) -> None:
        """See `Decoder`."""
        self._caches = []

    def _new_cache(self, rows: int, slots: int) -> Tensor:
        """Keys and values of one layer: [rows, 2, kv heads, slots, head size]; rows first, for a cheap `keep`."""
        return self._head.new_empty((rows, 2, self._kv_heads, slots, self._head_size))

    def _forward(self, tokens: Tensor, positions: Tensor, allowed: Tensor | None, *, causal: bool) -> Tensor:
        """Hidden states [batch, length, hidden] after the last norm; keys and values go into the cache.

        Args:
            tokens: [batch, length].
            positions: [batch, length].
            allowed: bool, broadcastable to [batch, heads, length, slots], or None.
            causal: whether a query sees only slots up to its own, where `allowed` is None.
        """
        hidden = F.embedding(tokens, self._embedding)
        tables = self._model.model.rotary_emb(hidden, positions)
        cos, sin = (table[:, None] for table in tables)  # [batch, 1, length, head size]
        end = self._length + tokens.shape[1]
        for layer, cache in zip(self._layers, self._caches, strict=True):
            query, key, value = self._project(layer, hidden)
            cache[:, 0, :, self._length : end] = _rotate(key, cos, sin)
            cache[:, 1, :, self._length : end] = value
            attended = F.scaled_dot_product_attention(
                _rotate(query, cos, sin),
                cache[:, 0, :, :end],
                cache[:, 1, :, :end],
                attn_mask=allowed,
                is_causal=causal and allowed is None,
                enable_gqa=self._heads != self._kv_heads,
            )
            hidden = hidden + F.linear(attended.transpose(1, 2).flatten(2), layer.output_weight, layer.output_bias)
            hidden = hidden + self._mlp(layer, hidden)
        self._length = end
        return self._norm(hidden, self._last_norm)

    def _project(self, layer: "_FusedLayer", hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Query, key and value, each [batch, heads, length, head size], before rotation."""
        normed = self._norm(hidden, layer.input_norm)
        fused = F.linear(normed, layer.qkv_weight, layer.qkv_bias).unflatten(-1, (-1, self._head_size)).transpose(1, 2)
        query, key, value = fused.split([self._heads, self._kv_heads, self._kv_heads], dim=1)
        if layer.query_norm is not None and layer.key_norm is not None:
            query, key = self._norm(query, layer.query_norm), self._norm(key, layer.key_norm)
        return query, key, value

    def _mlp(self, layer: "_FusedLayer", hidden: Tensor) -> Tensor:
        gate, up = F.linear(self._norm(hidden, layer.mlp_norm), layer.gate_up_weight).chunk(2, dim=-1)
        return F.linear(F.silu(gate) * up, layer.down_weight)

    def _norm(self, hidden: Tensor, weight: Tensor) -> Tensor:
        return F.rms_norm(hidden, (hidden.shape[-1],), weight, self._eps)


class _FusedLayer:
    """The weights of one layer, adapters merged, with query, key and value, and gate and up, in one matrix each."""

    def __init__(self, layer: Any, take: Callable[[Tensor], Tensor]) -> None:
        """
        Args:
            layer: of the model.
            take: makes of a whole weight the one to keep.
        """

        def vector(module: Any, name: str) -> Tensor | None:
            found = getattr(module, name, None)
            return None if found is None else take(full_tensor(found))

        attention, mlp = layer.self_attn, layer.mlp
        projections = [attention.q_proj, attention.k_proj, attention.v_proj]
        self.qkv_weight = torch.cat([take(merged_weight(projection)) for projection in projections])
        has_bias = attention.q_proj.bias is not None
        self.qkv_bias = (
            torch.cat([take(full_tensor(projection.bias)) for projection in projections]) if has_bias else None
        )
        self.gate_up_weight = torch.cat([take(merged_weight(mlp.gate_proj)), take(merged_weight(mlp.up_proj))])
        self.output_weight, self.output_bias = take(merged_weight(attention.o_proj)), vector(attention.o_proj, "bias")
        self.down_weight = take(merged_weight(mlp.down_proj))
        self.input_norm = take(full_tensor(layer.input_layernorm.weight))
        self.mlp_norm = take(full_tensor(layer.post_attention_layernorm.weight))
        self.query_norm = vector(getattr(attention, "q_norm", None), "weight")
        self.key_norm = vector(getattr(attention, "k_norm", None), "weight")


def _rotate(states: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary position embedding of [batch, heads, length, head size]."""
    left, right = states.chunk(2, dim=-1)
    return states * cos + torch.cat([-right, left], dim=-1) * sin
