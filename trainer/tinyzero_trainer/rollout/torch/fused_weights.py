"""The weights of a Llama-like model as our decoders use them: query, key and value in one matrix, gate and up too."""

import re
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tinyzero_trainer.rollout.weight_source import WeightSource

_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)")


class FusedWeights(dict[str, Tensor]):
    """Tensors `embed`, `head`, `norm`, and for each layer `0.qkv`, `0.qkv_bias`, `0.gate_up` and so on."""

    def __init__(
        self, config: Any, source: WeightSource, *, dtype: torch.dtype, device: torch.device, share: bool = False
    ) -> None:
        """
        Args:
            config: the model's, of transformers.
            share: whether to keep what is not fused as the source yields it, instead of a copy at a fixed address.
        """
        self.heads: int = config.num_attention_heads
        self.kv_heads: int = config.num_key_value_heads
        self.head_size: int = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self._source, self._dtype, self._device, self._share = source, dtype, device, share
        self._tied = bool(config.tie_word_embeddings)
        self.eps: float = config.rms_norm_eps
        # For each layer whether it encodes positions; empty = all do.
        self.rotates: list[bool] = [bool(layer) for layer in getattr(config, "no_rope_layers", None) or ()]
        # It normalizes what attention and MLP give, not what they get, and all heads together.
        self._is_olmo2 = config.model_type == "olmo2"
        self._targets = self._find_targets(config.intermediate_size)

    @torch.no_grad()
    def load(self) -> None:
        """Take over the source's current weights; after `clear`, in new memory."""
        for name, tensor in self._source():
            if name == "lm_head.weight" and self._tied:
                continue
            layer = _LAYER.fullmatch(name)
            target, rows = self._targets[name if layer is None else layer[2]]
            target = target if layer is None else f"{layer[1]}.{target}"
            if rows is None and self._share:
                self[target] = tensor
                continue
            if target not in self:
                shape = (len(tensor) if rows is None else rows[2], *tensor.shape[1:])
                self[target] = torch.empty(shape, dtype=self._dtype, device=self._device)
            whole = self[target]
            (whole if rows is None else whole[rows[0] : rows[1]]).copy_(tensor)
        if self._tied:
            self["head"] = self["embed"]

    def norm(self, name: str, hidden: Tensor) -> Tensor:
        """RMSNorm over the last dimension; without a weight of this name nothing changes."""
        weight = self.get(name)
        return hidden if weight is None else F.rms_norm(hidden, (hidden.shape[-1],), weight, self.eps)

    def project(self, layer: int, hidden: Tensor) -> Tensor:
        """Query, key and value [..., heads + 2 × kv heads, head size], normalized if the model does so, not rotated."""
        fused = F.linear(self.norm(f"{layer}.norm1", hidden), self[f"{layer}.qkv"], self.get(f"{layer}.qkv_bias"))
        return self.normalize_heads(layer, fused.unflatten(-1, (-1, self.head_size)))

    def normalize_heads(self, layer: int, fused: Tensor) -> Tensor:
        """The part of `project` after the product, [..., heads + 2 × kv heads, head size]."""
        if f"{layer}.q_norm" not in self:
            return fused
        query, key, value = fused.split([self.heads, self.kv_heads, self.kv_heads], dim=-2)
        if self._is_olmo2:
            query, key = query.flatten(-2), key.flatten(-2)
        query, key = self.norm(f"{layer}.q_norm", query), self.norm(f"{layer}.k_norm", key)
        if self._is_olmo2:
            query, key = (part.unflatten(-1, (-1, self.head_size)) for part in (query, key))
        return torch.cat([query, key, value], dim=-2)

    def _find_targets(self, mlp_size: int) -> dict[str, tuple[str, tuple[int, int, int] | None]]:
        """For each name in transformers: the tensor here, and its first row, the one after its last, and all rows."""
        query = self.heads * self.head_size
        key, value = query + self.kv_heads * self.head_size, query + 2 * self.kv_heads * self.head_size
        targets: dict[str, tuple[str, tuple[int, int, int] | None]] = {
            "model.embed_tokens.weight": ("embed", None),
            "model.norm.weight": ("norm", None),
            "lm_head.weight": ("head", None),
            "input_layernorm.weight": ("norm1", None),
            "post_attention_layernorm.weight": ("out_norm" if self._is_olmo2 else "norm2", None),
            "post_feedforward_layernorm.weight": ("down_norm", None),
            "self_attn.q_norm.weight": ("q_norm", None),
            "self_attn.k_norm.weight": ("k_norm", None),
            "self_attn.o_proj.weight": ("out", None),
            "self_attn.o_proj.bias": ("out_bias", None),
            "mlp.gate_proj.weight": ("gate_up", (0, mlp_size, 2 * mlp_size)),
            "mlp.up_proj.weight": ("gate_up", (mlp_size, 2 * mlp_size, 2 * mlp_size)),
            "mlp.down_proj.weight": ("down", None),
            "self_attn.qkv_proj.weight": ("qkv", None),
            "mlp.gate_up_proj.weight": ("gate_up", None),
        }
        for leaf, target in (("weight", "qkv"), ("bias", "qkv_bias")):
            targets |= {
                f"self_attn.q_proj.{leaf}": (target, (0, query, value)),
                f"self_attn.k_proj.{leaf}": (target, (query, key, value)),
                f"self_attn.v_proj.{leaf}": (target, (key, value, value)),
            }
        return targets
