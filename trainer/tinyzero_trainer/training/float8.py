"""Matrix products of a model's layers in 8-bit floating point, through torchao, which is imported only here.

Weights and their names stay as they are: a product casts what it multiplies, scaled by its largest element. What is
computed outside of layers, as the output head is, stays in the model's own type.
"""

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from tinyzero_sdk.errors import TinyZeroError
from tinyzero_trainer.config import ModelConfig
from tinyzero_trainer.distributed.fsdp import layers_of
from tinyzero_trainer.hardware.gpu import lacks_fp8

ALIGNED = 16
"""Of the sizes of a product: kernels for float8 take multiples. The gradient of a weight sums over tokens."""


class Float8Error(TinyZeroError):
    """Layers cannot compute in float8 on this machine, or not those of this model."""


def require_float8(recipe: str, device: torch.device) -> Any:
    """The library; a Float8Error if it cannot be imported, or the device cannot compute in float8."""
    need = f"model.float8={recipe} needs"
    if device.type != "cuda":
        raise Float8Error(f"{need} a GPU; leave it out")
    found = torch.cuda.get_device_capability(device) if torch.cuda.is_available() else None
    if problem := lacks_fp8(f"model.float8={recipe}", found):
        raise Float8Error(problem)
    try:
        return importlib.import_module("torchao.float8")
    except ImportError as error:
        reason = str(error).splitlines()[0]
        advice = "install it with: pip install 'tinyzero-trainer[float8]'"
        raise Float8Error(f"{need} torchao ({reason}); {advice}") from error


def use_float8(model: nn.Module, settings: ModelConfig, device: torch.device) -> None:
    """Make the linear layers in the layers of a model that is not yet sharded compute as `model.float8` says.

    Raises:
        Float8Error: see there; or no layer is suitable.
    """
    if (recipe := settings.float8) is None:
        return
    library, named = require_float8(recipe, device), settings.float8_modules
    is_large = library._auto_filter_for_recipe(recipe, [])  # from torchao's measurements on an H100

    def suits(layer: nn.Linear, name: str) -> bool:
        aligned = not any(size % ALIGNED for size in layer.weight.shape)
        return aligned and (is_large(layer, name) if named is None else name.rpartition(".")[2] in named)

    config = library.Float8LinearConfig.from_recipe_name(recipe)
    for layer in layers_of(model):
        library.convert_to_float8_training(layer, module_filter_fn=suits, config=config)
    found = {name.rpartition(".")[2] for name, _ in _converted(model)}
    if missing := sorted(set(named or ()) - found):
        raise Float8Error(
            f"model.float8_modules names {missing}, expected linear layers whose sizes are multiples of {ALIGNED}; "
            "leave these out"
        )
    if not found:
        raise Float8Error(
            f"model.float8={recipe}: no linear layer of this model is large enough to be faster; leave it out, or name "
            "some in model.float8_modules"
        )


def row_multiple(model: nn.Module) -> int:
    """The tokens of a packed row that is trained on must be a multiple of this."""
    return ALIGNED if any(_converted(model)) else 1


@contextmanager
def without_float8(model: nn.Module) -> Iterator[None]:
    """Within, the model computes as if it had not been converted, and not in compiled code."""
    layers = [layer for _, layer in _converted(model)]
    if not layers:
        yield
        return
    for layer in layers:
        layer.forward = partial(nn.Linear.forward, layer)
    try:
        with torch.compiler.set_stance("force_eager"):
            yield
    finally:
        for layer in layers:
            del layer.forward


def _converted(model: nn.Module) -> Iterator[tuple[str, Any]]:
    # Not isinstance, which would import torchao.
    return ((name, module) for name, module in model.named_modules() if type(module).__name__ == "Float8Linear")
