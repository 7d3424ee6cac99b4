"""Matrix products in 8-bit floating point (e4m3) for training: gated MLPs, other linear layers, and logits.

A layer's result and the gradient of its input are products in float8, with a scale for each row of both factors: no
token depends on the others. The gradient of its weight, which sums over tokens, is in the model's own type.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tinyzero_trainer.models.float8_format import FP8, FP8_MAX, SMALLEST_SCALE

ALIGNED = 16
"""The kernels for float8 take multiples of it as sizes of a weight."""


Rounded = tuple[Tensor, Tensor]
"""Numbers in float8 [rows, columns], contiguous, and the scale of each row [rows, 1], by which to multiply."""


def to_float8(numbers: Tensor) -> Rounded:
    """Round, with the scale at which a row's largest element is the largest number."""
    scales = (numbers.abs().amax(dim=-1, keepdim=True).float() / FP8_MAX).clamp(min=SMALLEST_SCALE)
    return (numbers.float() * (1.0 / scales)).to(FP8).contiguous(), scales


def cast(numbers: Tensor) -> Rounded:
    """`to_float8` outside of a compiled layer, on a GPU by a kernel of its own."""
    return _compiled_cast()(numbers) if numbers.is_cuda else to_float8(numbers)


@cache
def _compiled_cast() -> Callable[[Tensor], Rounded]:
    return torch.compile(to_float8, dynamic=True)


def product(left: Rounded, right: Rounded, dtype: torch.dtype) -> Tensor:
    """left · rightᵀ"""
    scales = {"scale_a": left[1], "scale_b": right[1].t()}
    return torch._scaled_mm(left[0], right[0].t(), **scales, out_dtype=dtype, use_fast_accum=True)


@torch._dynamo.allow_in_graph
class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor) -> Tensor:
        ctx.save_for_backward(states, weight)
        return product(to_float8(states), to_float8(weight), states.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        states, weight = ctx.saved_tensors
        grad_states = product(to_float8(gradient), to_float8(weight.t()), states.dtype)
        return grad_states, gradient.t() @ states


class Float8Linear(nn.Linear):
    """A linear layer that becomes this class."""

    plain_class: type[nn.Module]
    """What it was."""

    def forward(self, states: Tensor) -> Tensor:
        """[…, in] → […, out]"""
        output = _Linear.apply(states.flatten(0, -2), self.weight).unflatten(0, states.shape[:-1])
        return output if self.bias is None else output + self.bias


class Float8Mlp(nn.Module):
    """A gated MLP, down · (SiLU(gate · x) * (up · x)), that becomes this class."""

    plain_class: type[nn.Module]
    """What it was."""

    gate_proj: nn.Linear
    up_proj: nn.Linear
    down_proj: nn.Linear

    def forward(self, states: Tensor) -> Tensor:
        """[…, hidden] → […, hidden]"""
        weights = self.gate_proj.weight, self.up_proj.weight, self.down_proj.weight
        output: Tensor = _GatedMlp.apply(states.flatten(0, -2), *weights).unflatten(0, states.shape[:-1])
        return output


@torch._dynamo.allow_in_graph
class _GatedMlp(torch.autograd.Function):
    """Gate and up are one product, of weights side by side."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, gate_weight: Tensor, up_weight: Tensor, down_weight: Tensor) -> Tensor:
        (gate_rows, gate_scales), (up_rows, up_scales) = to_float8(gate_weight), to_float8(up_weight)
        gate_up_weight = torch.cat([gate_rows, up_rows]), torch.cat([gate_scales, up_scales])
        gate_up = product(to_float8(states), gate_up_weight, states.dtype)
        ctx.save_for_backward(states, gate_up, gate_weight, up_weight, down_weight)
        return product(gate(gate_up), to_float8(down_weight), states.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, ...]:
        states, gate_up, gate_weight, up_weight, down_weight = ctx.saved_tensors
        grad_gated = product(to_float8(gradient), to_float8(down_weight.t()), states.dtype)
        gated, grad_gate_up, *rounded = gate_backward(grad_gated, gate_up)
        gate_up_weight = torch.cat([gate_weight, up_weight]).t()
        grad_states = product((rounded[0], rounded[1]), to_float8(gate_up_weight), states.dtype)
        grad_gate, grad_up = (grad_gate_up.t() @ states).chunk(2)
        return grad_states, grad_gate, grad_up, gradient.t() @ gated


@torch.library.custom_op("tinyzero::float8_gate", mutates_args=())
def gate(gate_up: Tensor) -> Rounded:
    """SiLU of the first half of each row times the second, as `to_float8` rounds it."""
    if gate_up.is_cuda:
        from tinyzero_trainer.models import float8_triton

        return float8_triton.gate(gate_up)
    first, second = gate_up.float().chunk(2, dim=-1)
    return to_float8(F.silu(first) * second)


@gate.register_fake
def _(gate_up: Tensor) -> Rounded:
    rows, width = gate_up.shape
    return gate_up.new_empty(rows, width // 2, dtype=FP8), gate_up.new_empty(rows, 1, dtype=torch.float32)


@torch.library.custom_op("tinyzero::float8_gate_backward", mutates_args=())
def gate_backward(gradient: Tensor, gate_up: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What `gate` rounds, the gradient of its argument given that of its result, and the latter rounded."""
    if gate_up.is_cuda:
        from tinyzero_trainer.models import float8_triton

        return float8_triton.gate_backward(gradient, gate_up)
    first, second = gate_up.float().chunk(2, dim=-1)
    chance = torch.sigmoid(first)
    silu, upstream = first * chance, gradient.float()
    grad_first = upstream * second * (chance + silu * (1 - chance))
    grad_gate_up = torch.cat([grad_first, upstream * silu], dim=-1)
    return (silu * second).to(gradient.dtype), grad_gate_up.to(gradient.dtype), *to_float8(grad_gate_up)


@gate_backward.register_fake
def _(gradient: Tensor, gate_up: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    scales = gate_up.new_empty(len(gate_up), 1, dtype=torch.float32)
    return torch.empty_like(gradient), torch.empty_like(gate_up), torch.empty_like(gate_up, dtype=FP8), scales
