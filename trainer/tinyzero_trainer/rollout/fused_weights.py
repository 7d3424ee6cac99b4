"""The weights of a Llama-like model as our decoders use them: query, key and value in one matrix, gate and up too."""

import re
from typing import Any

import torch
from torch import Tensor

from tinyzero_trainer.rollout.weight_sync import WeightSource

_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)")


class FusedWeights:
    """Tensors `embed`, `head`, `norm`, and for each layer `0.qkv`, `0.qkv_bias`, `0.gate_up` and so on."""

    def __init__(
        self, config: Any, source: WeightSource, *, dtype: torch.dtype, device: torch.device, share: bool = False
    ) -> None:
        """
        Args:
            config: the model's, of transformers.
            source: yields the weights under their names in transformers.
            dtype: to keep them in.
            device: to keep them on.
            share: whether to keep what is not fused as the source yields it, instead of a copy at a fixed address.
        """
        self.heads: int = config.num_attention_heads
        self.kv_heads: int = config.num_key_value_heads
        self.head_size: int = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self._source, self._dtype, self._device, self._share = source, dtype, device, share
        self._tied = bool(config.tie_word_embeddings)
        self._targets = self._find_targets(config.intermediate_size)
        self._tensors: dict[str, Tensor] = {}

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]

    def get(self, name: str) -> Tensor | None:
        """The tensor; None if the model has none of this name."""
        return self._tensors.get(name)

    @property
    def loaded(self) -> bool:
        """Whether there are any."""
        return bool(self._tensors)

    @torch.no_grad()
    def load(self) -> None:
        """Take over the source's current weights."""
        for name, tensor in self._source():
            if name == "lm_head.weight" and self._tied:
                continue
            layer = _LAYER.fullmatch(name)
            target, rows = self._targets[name if layer is None else layer[2]]
            target = target if layer is None else f"{layer[1]}.{target}"
            if rows is None and self._share:
                self._tensors[target] = tensor
                continue
            if target not in self._tensors:
                shape = (len(tensor) if rows is None else rows[2], *tensor.shape[1:])
                self._tensors[target] = torch.empty(shape, dtype=self._dtype, device=self._device)
            whole = self._tensors[target]
            (whole if rows is None else whole[rows[0] : rows[1]]).copy_(tensor)
        if self._tied:
            self._tensors["head"] = self._tensors["embed"]

    def drop(self) -> None:
        """Free their memory, until they are loaded again."""
        self._tensors.clear()

    def _find_targets(self, mlp_size: int) -> dict[str, tuple[str, tuple[int, int, int] | None]]:
        """For each name in transformers: the tensor here, and its first row, the one after its last, and all rows."""
        query = self.heads * self.head_size
        key, value = query + self.kv_heads * self.head_size, query + 2 * self.kv_heads * self.head_size
        targets: dict[str, tuple[str, tuple[int, int, int] | None]] = {
            "model.embed_tokens.weight": ("embed", None),
            "model.norm.weight": ("norm", None),
            "lm_head.weight": ("head", None),
            "input_layernorm.weight": ("norm1", None),
            "post_attention_layernorm.weight": ("norm2", None),
            "self_attn.q_norm.weight": ("q_norm", None),
            "self_attn.k_norm.weight": ("k_norm", None),
            "self_attn.o_proj.weight": ("out", None),
            "self_attn.o_proj.bias": ("out_bias", None),
            "mlp.gate_proj.weight": ("gate_up", (0, mlp_size, 2 * mlp_size)),
            "mlp.up_proj.weight": ("gate_up", (mlp_size, 2 * mlp_size, 2 * mlp_size)),
            "mlp.down_proj.weight": ("down", None),
        }
        for leaf, target in (("weight", "qkv"), ("bias", "qkv_bias")):
            targets |= {
                f"self_attn.q_proj.{leaf}": (target, (0, query, value)),
                f"self_attn.k_proj.{leaf}": (target, (query, key, value)),
                f"self_attn.v_proj.{leaf}": (target, (key, value, value)),
            }
        return targets
