"""The graph engine's model with a decoding step's matrix products in fp8, for `rollout.quantization=fp8`.

Each weight has one scale. Normalized states are bounded, so their scale is fixed; gated states have one for each row.
The product after attention, the smallest, stays in the model's dtype. Prompts are read without fp8.
"""

import math
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tinyzero_trainer.models.float8_format import FP8, FP8_MAX, SMALLEST_SCALE
from tinyzero_trainer.rollout.torch.batch_state import BatchState
from tinyzero_trainer.rollout.torch.cuda_graph.model import Cache, GraphModel
from tinyzero_trainer.rollout.torch.fused_weights import FusedWeights

MULTIPLE = 16  # both sizes of a weight must be multiples of it for PyTorch's product
PART = 2**24  # numbers of a weight that are rounded at a time

_NORM_BEFORE = {"qkv": "norm1", "gate_up": "norm2", "down": None, "head": "norm"}


def to_fp8(states: Tensor, scales: Tensor | float) -> Tensor:
    """States divided by their scales, in fp8; what is too large becomes the largest number."""
    return (states.float() / scales).clamp(-FP8_MAX, FP8_MAX).to(FP8)


def plain_product(
    states: Tensor, weight: Tensor, scale: Tensor | None, bias: Tensor | None, dtype: torch.dtype
) -> Tensor:
    """States [rows, in] · weightᵀ [out, in], of one type; `scale` [] float32 is for the result of a product in fp8."""
    if scale is None:
        return F.linear(states, weight, bias)
    unit = _unit(states.device)
    return torch._scaled_mm(states, weight.T, unit, scale, bias=bias, out_dtype=dtype, use_fast_accum=True)


@cache
def _unit(device: torch.device) -> Tensor:
    return torch.ones((), device=device)


class Fp8Weights(FusedWeights):
    """For each weight of a product, besides, `0.qkv_fp8`, and `0.qkv_scale` [] float32, for what the product gives.

    The weight of the norm before a product is part of it. A head whose size does not fit stays as it is.
    """

    @staticmethod
    def misfit(config: Any) -> str | None:
        """What keeps a model of transformers that `FusedDecoder.fits` from this; None = nothing."""
        if config.model_type == "olmo2":
            return "it normalizes a layer's output, not its input"
        heads = config.num_attention_heads + 2 * config.num_key_value_heads
        head_size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        sizes = config.hidden_size, getattr(config, "intermediate_size", 0), heads * head_size
        return None if not any(size % MULTIPLE for size in sizes) else f"its sizes are no multiples of {MULTIPLE}"

    @torch.no_grad()
    def load(self) -> None:
        super().load()
        for name in list(self):
            place, dot, leaf = name.rpartition(".")
            if leaf in _NORM_BEFORE and not (leaf == "head" and len(self[name]) % MULTIPLE):
                norm = _NORM_BEFORE[leaf]
                self._quantize(name, None if norm is None else self[f"{place}{dot}{norm}"])

    def _quantize(self, name: str, norm: Tensor | None) -> None:
        """In parts, as a large head in float32 would take some GB."""
        weight, factor = self[name], 1.0 if norm is None else norm.float()
        states_scale = 1.0 if norm is None else math.sqrt(weight.shape[1]) / FP8_MAX  # see `normalize_fp8`
        parts = weight.split(max(1, PART // weight.shape[1]))
        largest = torch.stack([(part.float() * factor).abs().amax() for part in parts]).amax()
        if f"{name}_fp8" not in self:
            self[f"{name}_fp8"], self[f"{name}_scale"] = torch.empty_like(weight, dtype=FP8), torch.empty_like(largest)
        scale = (largest / FP8_MAX).clamp(min=SMALLEST_SCALE)
        self[f"{name}_scale"].copy_(scale * states_scale)
        for part, numbers in zip(parts, self[f"{name}_fp8"].split(len(parts[0])), strict=True):
            numbers.copy_(to_fp8(part.float() * factor, scale))


class Fp8GraphModel(GraphModel):
    """A graph model whose decoding steps compute their products in fp8; its `weights` are `Fp8Weights`."""

    def step(self, state: BatchState, rows: int, cache: Cache) -> Tensor:
        weights, kernels = self._weights, self.kernels
        hidden = F.embedding(state.last_token[state.slot_ids[:rows]], weights["embed"])  # [rows, hidden]
        pieces = kernels.split(state, rows, self.kv_heads, cache.length)
        added = scales = None  # what attention or MLP gave, to be added before the next norm
        for layer in range(self.layers):
            states = kernels.normalize_fp8(hidden, weights.eps, added, scales)
            fused = self._product(states, f"{layer}.qkv")
            fused = weights.normalize_heads(layer, fused.unflatten(1, (-1, self.head_size))).flatten(1)
            attended = kernels.attend(fused, cache.tables[layer], state, rows, cache.layers[layer], self.heads, pieces)
            added = self._product(attended, f"{layer}.out", in_parts=True)
            states = kernels.normalize_fp8(hidden, weights.eps, added)
            gated, scales = kernels.gated_fp8(self._product(states, f"{layer}.gate_up"))
            added = self._product(gated, f"{layer}.down", in_parts=True)
        states = kernels.normalize_fp8(hidden, weights.eps, added, scales)
        return self._product(states, "head") if "head_fp8" in weights else self._logits(hidden)

    def _product(self, states: Tensor, name: str, *, in_parts: bool = False) -> Tensor:
        """States · weightᵀ, with the weight in fp8 if there is one; perhaps in parts, which the next norm adds up."""
        weights, scale = self._weights, self._weights.get(f"{name}_scale")
        weight = weights[name if scale is None else f"{name}_fp8"]
        return self.kernels.product(states, weight, scale, weights.get(f"{name}_bias"), self.dtype, in_parts=in_parts)
