"""LoRA (arXiv 2106.09685): small matrices trained alongside frozen weights, through peft, which is imported only here.

From outside it is a plain model: the engine and the export read merged weights (W + scale · B·A), recomputed and never
written back, so the frozen weights stay as they were bit for bit, and are the KL reference too.
"""

import copy
import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from tinyzero_sdk.errors import TinyZeroError
from tinyzero_sdk.seeds import derive_seed
from tinyzero_trainer.checkpoint.sharded_tensors import load_whole
from tinyzero_trainer.config import LoraConfig
from tinyzero_trainer.distributed.dtensor import assign, full_tensor
from tinyzero_trainer.distributed.fsdp import ranks_of

DIRECTORY = "adapter"
WEIGHTS_FILE = "adapter_model.safetensors"
_NAME = "default"  # peft's own for an adapter that is the only one
_PREFIX = "base_model.model."  # peft's names are those within its wrapper
_DIGEST_VALUES = 1024


class LoraError(TinyZeroError):
    """LoRA cannot be used on this machine, or on this model, or not with this adapter."""


class Adapter:
    """The adapter of a model, attached in place; nothing else in the model is trained."""

    def __init__(self, model: PreTrainedModel, settings: LoraConfig, *, seed: int, start: str | None) -> None:
        """Attach an adapter that changes nothing yet; equal seeds give equal weights on every device.

        `start` is the model's directory or name on the Hub, stored with the adapter; None = the tiny one.
        """
        peft = import_peft(settings)
        layers = adaptable_layers(model, settings)
        self._model, self._start = model, start
        self._config = peft.LoraConfig(
            r=settings.rank,
            lora_alpha=2 * settings.rank if settings.alpha is None else settings.alpha,
            use_rslora=settings.rslora,
            target_modules=list(settings.target_modules) or sorted(layers),
            fan_in_fan_out=Conv1D in layers.values(),
            task_type="CAUSAL_LM",
            base_model_name_or_path=start,
        )
        with torch.random.fork_rng(devices=[]):  # peft draws on the CPU
            torch.manual_seed(derive_seed("lora", seed))
            peft.inject_adapter_in_model(self._config, model, adapter_name=_NAME)

    def save(self, directory: Path) -> None:
        """Write the adapter as peft does; all ranks must call this, and the first writes."""
        tensors, digest, is_main = {}, self._digest(), ranks_of(self._model).is_main
        for name, tensor in self._tensors().items():
            whole = full_tensor(tensor.detach())
            if is_main:
                tensors[name] = whole.cpu().contiguous()
        if not is_main:
            return
        directory.mkdir()
        config = copy.copy(self._config)
        config.inference_mode = True
        config.target_modules = sorted(config.target_modules)  # peft keeps a set, whose order changes from run to run
        config.save_pretrained(directory)
        save_file(tensors, directory / WEIGHTS_FILE, metadata={"format": "pt", "start": digest})

    def load(self, directory: Path) -> None:
        """Read what `save` wrote; a LoraError if the model is not the one that the adapter was trained on."""
        path, parameters = directory / WEIGHTS_FILE, self._tensors()
        tensors = load_whole(path, {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in parameters.items()})
        with safe_open(path, framework="pt") as file, torch.no_grad():
            if file.metadata()["start"] != self._digest():
                raise LoraError(
                    f"{self._start or 'the tiny model'} is not the model that the run started from; put that back, or "
                    f"start a run in another --output with --model {directory.parent}, which is merged"
                )
            for name, parameter in parameters.items():
                assign(parameter, tensors[name])

    def forget_model(self) -> None:
        """Release the model; what is left only says that there is an adapter."""
        del self._model

    def _tensors(self) -> dict[str, nn.Parameter]:
        trained = ((name, tensor) for name, tensor in self._model.named_parameters() if tensor.requires_grad)
        return {_PREFIX + name.replace(f".{_NAME}.", "."): tensor for name, tensor in trained}

    def _digest(self) -> str:
        """Distinguishes starting models, by values spread over each of their weights."""
        digest = hashlib.sha256()
        for name, tensor in self._model.named_parameters():
            if not tensor.requires_grad:
                values = full_tensor(tensor.detach()).flatten()[:: max(1, tensor.numel() // _DIGEST_VALUES)]
                digest.update(f"{name} {tuple(tensor.shape)}".encode() + values.float().cpu().clone().numpy().tobytes())
        return digest.hexdigest()


def import_peft(settings: LoraConfig) -> Any:
    """The library; a LoraError if it cannot be imported."""
    try:
        import peft
    except ImportError as error:
        reason = str(error).splitlines()[0]
        advice = "install it with: pip install 'tinyzero-trainer[lora]'"
        raise LoraError(f"lora.rank={settings.rank} needs peft ({reason}); {advice}") from error
    return peft


@torch.no_grad()
def _merged_weight(layer: Any) -> Tensor:
    """The weight of a linear layer with the adapter's product added; peft's own function does not support shards."""
    weight = full_tensor(layer.weight)
    added = full_tensor(layer.lora_B[_NAME].weight) @ full_tensor(layer.lora_A[_NAME].weight)
    return weight + (added.T if layer.fan_in_fan_out else added) * layer.scaling[_NAME]


def merged_weights(model: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    """The weights of the equivalent plain model, gathered and merged one after another; all ranks must iterate.

    A weight that has no adapter and is not sharded is not copied.
    """
    adapted = dict(_adapted_layers(model))
    for name, tensor in model.state_dict().items():
        path, _, leaf = name.rpartition(".")
        owner = path.removesuffix(".base_layer")
        if owner in adapted:
            yield f"{owner}.{leaf}", _merged_weight(adapted[owner]) if leaf == "weight" else full_tensor(tensor)
        elif ".lora_" not in name:
            yield name, full_tensor(tensor)


def adapter_weights(model: PreTrainedModel) -> Iterator[tuple[str, Tensor]]:
    """The adapter's own matrices, shards gathered; nothing without an adapter. All ranks must iterate."""
    return ((name, full_tensor(tensor)) for name, tensor in model.state_dict().items() if ".lora_" in name)


def has_adapter(model: PreTrainedModel) -> bool:
    return next(_adapted_layers(model), None) is not None


@contextmanager
def switched_off(model: PreTrainedModel) -> Iterator[None]:
    """Within the block the model is the starting model, on the same weights; without an adapter nothing changes."""
    layers = [layer for _, layer in _adapted_layers(model)]
    for layer in layers:
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)


def _adapted_layers(model: nn.Module) -> Iterator[tuple[str, Any]]:
    # Not isinstance, which would import peft.
    return ((name, module) for name, module in model.named_modules() if hasattr(module, "get_delta_weight"))


def adaptable_layers(model: PreTrainedModel, settings: LoraConfig) -> dict[str, type]:
    """Names (last component) and types of the body's linear layers; a LoraError if `target_modules` names others."""
    head = model.get_output_embeddings()
    layers = {
        name.rpartition(".")[2]: type(module)
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | Conv1D) and module is not head
    }
    missing = [name for name in settings.target_modules if name not in layers]
    if missing or not layers:
        have = f"it has {', '.join(sorted(layers))}" if layers else "it has none"
        kind = model.config.model_type
        raise LoraError(f"lora.target_modules names {missing}, expected linear layers of a {kind} model's body: {have}")
    return layers
