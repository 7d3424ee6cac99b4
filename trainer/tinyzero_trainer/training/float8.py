"""Which products of a model that is trained are in float8: `model.float8`. How they compute is in models/float8.py."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from tinyzero_sdk.errors import TinyZeroError
from tinyzero_trainer.config import ModelConfig
from tinyzero_trainer.distributed.fsdp import layers_of
from tinyzero_trainer.hardware.gpu import lacks_fp8
from tinyzero_trainer.models.float8 import ALIGNED, Float8Linear, Float8Mlp

LARGE = 2**22
"""Elements of a weight from which its products are in float8: rounding what a smaller one takes costs what it saves."""


class Float8Error(TinyZeroError):
    """A model cannot compute in float8 on this machine, or this model cannot."""


def require_float8(device: torch.device) -> None:
    """A Float8Error if the device cannot compute in float8."""
    if device.type != "cuda":
        raise Float8Error("model.float8=rowwise needs a GPU; leave it out")
    found = torch.cuda.get_device_capability(device) if torch.cuda.is_available() else None
    if problem := lacks_fp8("model.float8=rowwise", found):
        raise Float8Error(problem)


def use_float8(model: PreTrainedModel, settings: ModelConfig) -> None:
    """Make products of a model that is not yet sharded compute as `model.float8` says; its weights stay as they are.

    Raises:
        Float8Error: no linear layer is suitable.
    """
    names = {module: name.rpartition(".")[2] for name, module in model.named_modules()}
    named, head = settings.float8_modules, model.get_output_embeddings()
    linears = [module for layer in layers_of(model) for module in layer.modules()] + [head]
    chosen = {linear for linear in linears if _is_aligned(linear)}
    chosen = {one for one in chosen if (one.weight.numel() >= LARGE if named is None else names[one] in named)}
    if missing := sorted(set(named or ()) - {names[one] for one in chosen}):
        raise Float8Error(
            f"model.float8_modules names {missing}, expected linear layers whose sizes are multiples of {ALIGNED}; "
            "leave these out"
        )
    if not chosen:
        raise Float8Error(
            "model.float8=rowwise: no linear layer of this model is large enough to be faster; leave it out, or name "
            "some in model.float8_modules"
        )
    for mlp in names:
        inner = {getattr(mlp, projection, None) for projection in ("gate_proj", "up_proj", "down_proj")}
        if inner <= chosen and _is_gated(mlp):
            chosen -= inner
            chosen.add(mlp)
    for module in chosen:
        module.plain_class, module.__class__ = type(module), Float8Linear if type(module) is nn.Linear else Float8Mlp


def _is_aligned(module: Any) -> bool:
    return type(module) is nn.Linear and not any(size % ALIGNED for size in module.weight.shape)


@torch.no_grad()
def _is_gated(module: Any) -> bool:
    """Whether a module computes what `Float8Mlp` does: not all whose layers have these names do."""
    gate, up, down = module.gate_proj, module.up_proj, module.down_proj
    if any(linear.bias is not None for linear in (gate, up, down)):
        return False
    states = torch.linspace(-4, 4, 2 * gate.in_features, device=gate.weight.device).to(gate.weight.dtype).view(2, -1)
    expected = F.linear(F.silu(F.linear(states, gate.weight)) * F.linear(states, up.weight), down.weight)
    return torch.allclose(module(states), expected, rtol=1e-3, atol=1e-5)


@contextmanager
def without_float8(model: nn.Module) -> Iterator[None]:
    """Within, the model computes as if it had not been converted, and not in compiled code."""
    modules = [module for module in model.modules() if isinstance(module, (Float8Linear, Float8Mlp))]
    if not modules:
        yield
        return
    for module in modules:
        module.forward = partial(module.plain_class.forward, module)  # type: ignore[method-assign]
    try:
        with torch.compiler.set_stance("force_eager"):
            yield
    finally:
        for module in modules:
            del module.forward
