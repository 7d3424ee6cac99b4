"""Which products of a model that is trained are in float8: `model.float8`. How they compute is in models/float8.py."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from tinyzero_sdk.errors import TinyZeroError
from tinyzero_trainer.config import ModelConfig
from tinyzero_trainer.distributed.fsdp import layers_of
from tinyzero_trainer.hardware.gpu import lacks_fp8
from tinyzero_trainer.models.float8 import ALIGNED, Float8Linear, Float8Mlp
from tinyzero_trainer.models.sizes import FLOAT8_LARGE
from tinyzero_trainer.models.spec import FUSED
from tinyzero_trainer.training.logprobs import plain_head


class Float8Error(TinyZeroError):
    """A model cannot compute in float8 on this machine, or this model cannot."""


def require_float8(device: torch.device) -> None:
    """A Float8Error if the device cannot compute in float8."""
    if device.type != "cuda":
        raise Float8Error("model.float8=rowwise needs a GPU; leave it out")
    capability = torch.cuda.get_device_capability(device) if torch.cuda.is_available() else None
    if problem := lacks_fp8("model.float8=rowwise", capability):
        raise Float8Error(problem)


def use_float8(model: Any, settings: ModelConfig) -> None:
    """Make products of a model that is not yet sharded compute as `model.float8` says; its weights stay as they are.

    Raises a Float8Error if no linear layer is suitable.
    """
    head, named = model.get_output_embeddings(), settings.float8_modules
    inside = {module for layer in layers_of(model) for module in layer.modules()}
    if plain_head(model) is not None:
        inside.add(head)
    linears = [
        (path.rpartition(".")[2], module)
        for path, module in model.named_modules()
        if module in inside and type(module) is nn.Linear and not any(size % ALIGNED for size in module.weight.shape)
    ]
    possible = sorted({name for name, _ in linears})
    if missing := sorted(set(named or ()) - set(possible)):
        raise Float8Error(
            f"model.float8_modules names {missing}, expected the last parts of names of linear layers whose sizes are "
            f"multiples of {ALIGNED}: some of {possible}"
        )
    chosen: set[Any] = {
        linear
        for name, linear in linears
        if (linear.weight.numel() >= FLOAT8_LARGE if named is None else name in named)
    }
    if not chosen:
        raise Float8Error(
            "model.float8=rowwise: no linear layer of this model is large enough to be faster; leave it out, or name "
            f"some of {possible} in model.float8_modules"
        )
    config = model.config.get_text_config()
    # Not all whose layers have these names compute what `Float8Mlp` does.
    if config.model_type in FUSED and config.hidden_act == "silu" and not getattr(config, "mlp_bias", False):
        for mlp in model.modules():
            inner = {getattr(mlp, projection, None) for projection in ("gate_proj", "up_proj", "down_proj")}
            if inner <= chosen:
                chosen -= inner
                chosen.add(mlp)
    for module in chosen:
        kind = Float8Linear if type(module) is nn.Linear else Float8Mlp
        module.plain_class, module.__class__ = type(module), kind


@contextmanager
def without_float8(model: nn.Module) -> Iterator[None]:
    """Within, the model computes as if it had not been converted, and not in compiled code."""
    modules: list[Any] = [module for module in model.modules() if isinstance(module, (Float8Linear, Float8Mlp))]
    if not modules:
        yield
        return
    kinds = [type(module) for module in modules]
    for module in modules:
        module.__class__ = module.plain_class
    try:
        with torch.compiler.set_stance("force_eager"):
            yield
    finally:
        for module, kind in zip(modules, kinds, strict=True):
            module.__class__ = kind
