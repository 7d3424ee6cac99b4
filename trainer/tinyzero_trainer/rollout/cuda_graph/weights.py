"""The weights of a Llama-like model as the graph engine uses them: fused, in one type, at addresses that stay."""

import re
from typing import Any

import torch
from torch import Tensor

from tinyzero_trainer.rollout.weight_sync import WeightSource

_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)")


class GraphWeights:
    """By names of its own: `embed`, `head`, `norm`, and for each layer `0.qkv`, `0.qkv_bias`, `0.gate_up` and so on."""

    def __init__(self, config: Any, source: WeightSource, *, dtype: torch.dtype, device: torch.device) -> None:
        """
        Args:
            config: the model's, of transformers.
            source: of the weights, by the names that they have in transformers.
            dtype: to keep them in.
            device: to keep them on.
        """
        self._source, self._dtype, self._device = source, dtype, device
        self._tied = bool(config.tie_word_embeddings)
        self._places = _places(config)
        self._tensors: dict[str, Tensor] = {}

    def __getitem__(self, name: str) -> Tensor:
        return self._tensors[name]

    def get(self, name: str) -> Tensor | None:
        """The tensor, or None if the model has none of this name."""
        return self._tensors.get(name)

    @property
    def loaded(self) -> bool:
        """Whether there are any."""
        return bool(self._tensors)

    @torch.no_grad()
    def load(self) -> None:
        """Take over the source's weights as they are now, into the same memory if there is any."""
        for name, tensor in self._source():
            target, rows = self._place(name)
            if target is None:
                continue
            if target not in self._tensors:
                shape = (len(tensor) if rows is None else rows[2], *tensor.shape[1:])
                self._tensors[target] = torch.empty(shape, dtype=self._dtype, device=self._device)
            part = self._tensors[target] if rows is None else self._tensors[target][rows[0] : rows[1]]
            part.copy_(tensor)
        if self._tied:
            self._tensors["head"] = self._tensors["embed"]

    def drop(self) -> None:
        """Give their memory back, until they are loaded anew."""
        self._tensors.clear()

    def _place(self, name: str) -> tuple[str | None, tuple[int, int, int] | None]:
        """What a tensor of the source belongs to, and its first row, the row after its last, and the rows in all."""
        if name == "lm_head.weight" and self._tied:
            return None, None
        found = _LAYER.fullmatch(name)
        if found is None:
            return self._places[name]
        target, rows = self._places[found[2]]
        return f"{found[1]}.{target}", rows


def _places(config: Any) -> dict[str, tuple[str, tuple[int, int, int] | None]]:
    heads, kv_heads, mlp = config.num_attention_heads, config.num_key_value_heads, config.intermediate_size
    size = getattr(config, "head_dim", None) or config.hidden_size // heads
    query, both, every = heads * size, (heads + kv_heads) * size, (heads + 2 * kv_heads) * size
    places: dict[str, tuple[str, tuple[int, int, int] | None]] = {
        "model.embed_tokens.weight": ("embed", None),
        "model.norm.weight": ("norm", None),
        "lm_head.weight": ("head", None),
        "input_layernorm.weight": ("norm1", None),
        "post_attention_layernorm.weight": ("norm2", None),
        "self_attn.q_norm.weight": ("q_norm", None),
        "self_attn.k_norm.weight": ("k_norm", None),
        "self_attn.o_proj.weight": ("out", None),
        "self_attn.o_proj.bias": ("out_bias", None),
        "mlp.gate_proj.weight": ("gate_up", (0, mlp, 2 * mlp)),
        "mlp.up_proj.weight": ("gate_up", (mlp, 2 * mlp, 2 * mlp)),
        "mlp.down_proj.weight": ("down", None),
    }
    for kind, target in (("weight", "qkv"), ("bias", "qkv_bias")):
        places |= {
            f"self_attn.q_proj.{kind}": (target, (0, query, every)),
            f"self_attn.k_proj.{kind}": (target, (query, both, every)),
            f"self_attn.v_proj.{kind}": (target, (both, every, every)),
        }
    return places
