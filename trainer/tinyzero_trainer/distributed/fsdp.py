"""Where the models of the training roles live: FSDP2 over one rank or many, on a CPU or on GPUs.

Wraps a model in place, once its modules and parameters are final: activations checkpointed, layers compiled, weights
sharded. Whoever computes with such a model goes through `call`; whoever reads its weights, through
`rollout/weight_sync.py` within `on_device`. What is computed is not in here.
"""

import copy
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.utils.checkpoint import checkpoint

from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.config.run import compiles
from tinyzero_trainer.distributed.dtensor import local_shard
from tinyzero_trainer.distributed.groups import ALONE, DataParallelGroup
from tinyzero_trainer.distributed.mesh import build_mesh
from tinyzero_trainer.distributed.offload import CpuOffload

Model = TypeVar("Model", bound=nn.Module)


@dataclass(frozen=True, slots=True)
class FsdpOptions:
    """How a run's models are placed."""

    device: torch.device
    """What this rank computes on."""

    dtype: torch.dtype
    """What the networks compute in; the weights that an optimiser steps are in float32."""

    activation_checkpointing: bool = False
    """Keep only each layer's input for the backward pass."""

    compile: bool | None = None
    """Compile each layer; None = see `config.run.compiles`."""

    offload: Literal["idle", "always"] | None = None
    """See `memory.cpu_offload`."""

    replicas: int = 1
    """See `parallel.dp_replicate`."""

    sequence_parallel: int = 1
    """See `parallel.sequence_parallel`."""

    @classmethod
    def of(cls, config: TrainConfig, device: torch.device) -> "FsdpOptions":
        """What the configuration says for this device; on a CPU nothing can be offloaded."""
        return cls(
            device,
            compute_dtype(config.model.dtype, device),
            config.memory.activation_checkpointing,
            config.model.compile,
            config.memory.cpu_offload if device.type == "cuda" else None,
            config.parallel.dp_replicate,
            config.parallel.sequence_parallel,
        )

    @property
    def saves_memory(self) -> bool:
        """Whether speed is to be given up for memory."""
        return self.activation_checkpointing or self.offload is not None

    @property
    def loading_device(self) -> torch.device:
        """Where a model is to be until it is sharded: one that is larger than a GPU is never on it as a whole."""
        several = dist.is_initialized() and dist.get_world_size() > 1
        return torch.device("cpu") if several or self.offload == "always" else self.device


def compute_dtype(name: str, device: torch.device) -> torch.dtype:
    """`auto` = bfloat16 on a GPU that computes in it, else float32."""
    if name == "auto":
        name = "bfloat16" if device.type == "cuda" and torch.cuda.is_bf16_supported(False) else "float32"
    return cast(torch.dtype, getattr(torch, name))


def offload_note(config: TrainConfig, device: torch.device) -> str | None:
    """What is to be said of a setting that has no effect on this device."""
    if config.memory.cpu_offload is None or device.type == "cuda":
        return None
    return f"memory.cpu_offload={config.memory.cpu_offload} has no effect: there is no GPU whose memory it would save"


@contextmanager
def process_group(device: torch.device) -> Iterator[None]:
    """Within, there is a process group: the one that was there already, or one of this process alone (no network).

    Args:
        device: of this rank; on a GPU it becomes the current one.
    """
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if dist.is_initialized():
        yield
        return
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        if dist.is_initialized():  # vLLM in this process ends it with itself
            dist.destroy_process_group()


@dataclass(frozen=True, slots=True)
class _Sharded:
    """What is kept on a sharded model and on its submodules."""

    root: nn.Module
    """The module that was given to `shard`."""

    options: FsdpOptions

    ranks: DataParallelGroup

    offload: CpuOffload | None
    """With `memory.cpu_offload=idle`."""


def shard(model: nn.Module, placement: FsdpOptions, *, exact: Iterable[nn.Module] = ()) -> None:
    """Shard a model in place: each layer is gathered by itself, and all the rest (embeddings, head) together.

    Needs a process group. After it, no module or parameter may be added or replaced.

    Args:
        model: in float32; one that is not trained may be in the type that it computes in.
        placement: of the run.
        exact: parts of the model that compute in float32 whatever the others do.
    """
    meshes = build_mesh(placement.device.type, placement.replicas, placement.sequence_parallel)
    mesh = meshes.weights
    trained = any(parameter.requires_grad for parameter in model.parameters())
    # With one rank to hold all, what is gathered is a copy in the type that is computed in. The backward pass need not
    # make it again if there is room for that of all layers; where there is none it would only be in the way.
    again = placement.saves_memory or mesh.shape[-1] > 1 or not trained
    layers = layers_of(model)
    for layer in layers:
        if placement.activation_checkpointing and trained:
            _checkpoint(layer)
        # Not where ranks exchange heads in the midst of a layer, which is nothing for the compiler.
        gpu, alone = placement.device.type == "cuda", placement.sequence_parallel == 1
        if alone and compiles(placement.compile, _size(model), gpu=gpu):
            _compile(layer)
    for part in exact:
        _fully_shard(part, mesh, placement, torch.float32, reshard=again)
    for layer in layers:
        _fully_shard(layer, mesh, placement, placement.dtype, reshard=again)
    _fully_shard(model, mesh, placement, placement.dtype, reshard=False)
    if hasattr(model, "states"):
        register_fsdp_forward_method(model, "states")
    offload = CpuOffload(partial(_shards, model)) if placement.offload == "idle" else None
    sharded = _Sharded(model, placement, meshes.ranks, offload)
    for module in (model, *model.children()):
        module._sharded = sharded  # type: ignore[assignment]


def cast_weights(model: nn.Module, dtype: torch.dtype) -> None:
    """Keep a model's weights in another type, in place; its buffers, frequencies of positions above all, stay exact.

    `Module.to` would round those too, and a token's place would be another than for the policy.
    """
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)


def cast_copy(model: Model, dtype: torch.dtype) -> Model:
    """A copy with weights in another type, as `cast_weights` leaves them, and not to be trained.

    There is never a whole copy in the type that the model has.
    """
    weights = {
        id(weight): nn.Parameter(weight.detach().to(dtype, copy=True), requires_grad=False)
        for weight in model.parameters()
    }
    return copy.deepcopy(model, weights)


def layers_of(model: nn.Module) -> list[nn.Module]:
    """The repeated blocks of a network: those that transformers says not to split, else the largest list of modules."""
    named = {name for module in model.modules() for name in getattr(module, "_no_split_modules", None) or ()}
    found: list[nn.Module] = []
    for module in model.modules():
        if type(module).__name__ in named and not any(module is inner for outer in found for inner in outer.modules()):
            found.append(module)
    if found:
        return found
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    return list(max(lists, key=_size, default=[]))


@contextmanager
def on_device(model: nn.Module, *, changed: bool = False) -> Iterator[None]:
    """Within, a model's shards are on its device; afterwards none of its weights stays gathered.

    A pass without a backward pass leaves weights gathered, and the next one, after a step of the optimizer, would use
    the old ones. So all passes over a sharded model run within this.

    Args:
        model: sharded or not.
        changed: whether its weights are written to.
    """
    sharded = _sharded(model)
    if sharded is None:
        yield
        return
    with nullcontext() if sharded.offload is None else sharded.offload.on_device(changed=changed):
        try:
            yield
        finally:
            reshard(sharded.root)


def root_of(model: nn.Module) -> nn.Module:
    """What `shard` was called with to shard this model: it, or the module around it. A plain model is its own."""
    sharded = _sharded(model)
    return model if sharded is None else sharded.root


def placement_of(model: nn.Module) -> FsdpOptions | None:
    """How a model was sharded; None = it was not."""
    sharded = _sharded(model)
    return None if sharded is None else sharded.options


def ranks_of(model: nn.Module) -> DataParallelGroup:
    """Those that a model is sharded over, each of which takes a part of a batch; a plain model is alone."""
    sharded = _sharded(model)
    return ALONE if sharded is None else sharded.ranks


def device_of(model: nn.Module) -> torch.device:
    """What a model computes on, which need not be where its shards are."""
    placement = placement_of(model)
    return next(model.parameters()).device if placement is None else placement.device


def reshard(model: nn.Module) -> None:
    """Give back every gathered weight of a model."""
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def _fully_shard(
    module: nn.Module, mesh: DeviceMesh, placement: FsdpOptions, dtype: torch.dtype, *, reshard: bool
) -> None:
    mixed = MixedPrecisionPolicy()
    if dtype != torch.float32:
        mixed = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    offload = OffloadPolicy()
    if placement.offload == "always":
        offload = CPUOffloadPolicy(pin_memory=placement.device.type == "cuda")
    fully_shard(module, mesh=mesh, reshard_after_forward=reshard, mp_policy=mixed, offload_policy=offload)
    if mesh.size() > 1:
        # A rank's loss is its part of the whole mini-batch's, so gradients are added and not averaged.
        cast(FSDPModule, module).set_gradient_divide_factor(1.0)
        cast(FSDPModule, module).set_force_sum_reduction_for_comms(True)  # gloo has no other kind


def _checkpoint(layer: nn.Module) -> None:
    """In place and without a module around it, which would change the parameters' names."""
    layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)


def _compile(layer: nn.Module) -> None:
    """Only its forward, so that FSDP2's hooks stay outside of what is compiled."""
    layer.forward = torch.compile(layer.forward, dynamic=True)


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def _shards(model: nn.Module) -> list[Tensor]:
    return [local_shard(parameter) for parameter in model.parameters()]


def _sharded(model: nn.Module) -> _Sharded | None:
    return cast("_Sharded | None", getattr(model, "_sharded", None))
