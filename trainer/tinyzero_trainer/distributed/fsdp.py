"""Shards the models of a run with FSDP2, over one rank or many, on a CPU or on GPUs.

Wraps a model in place, once its modules and parameters are final: activations are checkpointed, layers compiled,
weights sharded. Passes over a sharded model run within `on_device`; its weights are read through
`rollout/weight_source.py`.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, cast

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


@dataclass(frozen=True, slots=True)
class FsdpOptions:
    """How the models of a run are sharded: the settings of `model`, `memory` and `parallel`, on this rank's device."""

    device: torch.device
    dtype: torch.dtype
    """Type that passes compute in; trained weights are kept in float32."""

    activation_checkpointing: bool = False
    compile: bool | None = None
    """Compile each layer; None = if `config.run.compiles` says so."""

    offload: Literal["idle", "always"] | None = None
    replicas: int = 1
    sequence_parallel: int = 1
    recompute_logits: bool = True
    reshard_after_forward: bool = True
    """With several ranks; False = weights are gathered, and gradients reduced, once a mini-batch."""

    @classmethod
    def of(cls, config: TrainConfig, device: torch.device) -> "FsdpOptions":
        """The configuration's options on this device; on a CPU nothing is offloaded."""
        memory, parallel = config.memory, config.parallel
        return cls(
            device,
            dtype=compute_dtype(config.model.dtype, device),
            activation_checkpointing=memory.activation_checkpointing is True,
            compile=config.model.compile,
            offload=memory.offload if device.type == "cuda" else None,
            replicas=parallel.dp_replicate,
            sequence_parallel=parallel.sequence_parallel,
            recompute_logits=memory.recompute_logits is not False,
            reshard_after_forward=memory.reshard_after_forward is not False,
        )

    @property
    def loading_device(self) -> torch.device:
        """Where a model is loaded before it is sharded: the CPU if it may be larger than a GPU."""
        is_distributed = dist.is_initialized() and dist.get_world_size() > 1
        return torch.device("cpu") if is_distributed or self.offload == "always" else self.device


def compute_dtype(name: str, device: torch.device) -> torch.dtype:
    """`auto` = bfloat16 on a GPU that computes in it, else float32."""
    if name == "auto":
        name = "bfloat16" if device.type == "cuda" and torch.cuda.is_bf16_supported(False) else "float32"
    return cast(torch.dtype, getattr(torch, name))


@contextmanager
def process_group(device: torch.device) -> Iterator[None]:
    """Within, there is a process group: the existing one, or one of this process alone; a GPU is the current one."""
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
        if dist.is_initialized():  # vLLM in this process destroys it with itself
            dist.destroy_process_group()


@dataclass(frozen=True, slots=True)
class _Sharded:
    """Kept on a sharded model and on its children."""

    root: nn.Module  # the module that was passed to `shard`
    options: FsdpOptions
    ranks: DataParallelGroup
    offload: CpuOffload | None  # with `memory.cpu_offload=idle`
    reductions: "list[_OwnGradients]"  # of one rank
    gathers_once: bool  # of several, see `set_gradient_sync`


def shard(model: nn.Module, options: FsdpOptions, *, exact: Iterable[nn.Module] = ()) -> None:
    """Shard a model in place: each layer is a unit that is gathered alone, the rest (embeddings, head) another.

    Needs a process group. Afterwards no module or parameter may be added or replaced. Besides `forward`, a method
    `states` of the model gathers its weights. `exact` modules compute in float32 whatever the others do.
    """
    mesh, ranks = build_mesh(options.device.type, options.replicas, options.sequence_parallel)
    trained = any(parameter.requires_grad for parameter in model.parameters())
    # On one rank, what is gathered is a copy in the type that is computed in. With room for those of all layers, the
    # backward pass need not make them again.
    saves_memory = options.activation_checkpointing or options.offload is not None
    several = mesh.shape[-1] > 1
    reshard = (options.reshard_after_forward if several else saves_memory) or not trained
    # Ranks exchange heads within a layer, which the compiler cannot handle.
    gpu, one_slice = options.device.type == "cuda", options.sequence_parallel == 1
    compiled = one_slice and compiles(options.compile, _size(model), gpu=gpu)
    if compiled:
        # Otherwise a layer's constants, as the size of its heads, are symbols: compiled code proves hundreds of facts
        # about them each time it is loaded.
        torch._dynamo.config.specialize_float = torch._dynamo.config.specialize_int = True
    layers = layers_of(model)
    for layer in layers:
        # In place: a module around the layer would change the names of its parameters. Compiled is only its forward,
        # so that FSDP2's hooks stay outside.
        if options.activation_checkpointing and trained:
            layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
        if compiled:
            layer.forward = torch.compile(layer.forward, dynamic=True)
    units = [(module, torch.float32, reshard) for module in exact]
    units += [(layer, options.dtype, reshard) for layer in layers]
    units.append((model, options.dtype, False))
    reductions = []
    for module, dtype, resharded in units:
        _fully_shard(module, mesh, options, dtype, reshard=resharded)
        if mesh.size() == 1:
            reductions.append(_OwnGradients())
            cast(Any, module).set_custom_reduce_scatter(reductions[-1])
    if hasattr(model, "states"):
        register_fsdp_forward_method(model, "states")
    offload = None
    if options.offload == "idle":
        offload = CpuOffload(lambda: [local_shard(parameter) for parameter in model.parameters()])
    gathers_once = mesh.size() > 1 and trained and not options.reshard_after_forward
    sharded = _Sharded(model, options, ranks, offload, reductions, gathers_once)
    for module in (model, *model.children()):
        module._sharded = sharded  # type: ignore[assignment]


def cast_weights(model: nn.Module, dtype: torch.dtype) -> None:
    """Cast a model's weights in place, and not the frequencies of positions, as `Module.to` would."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)


def layers_of(model: nn.Module) -> list[nn.Module]:
    """The repeated blocks of a network: those that transformers does not split, else the largest list of modules."""
    named = {name for module in model.modules() for name in getattr(module, "_no_split_modules", None) or ()}
    layers: list[nn.Module] = []
    for module in model.modules():
        if type(module).__name__ in named and not any(module is inner for outer in layers for inner in outer.modules()):
            layers.append(module)
    if layers:
        return layers
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    return list(max(lists, key=_size, default=[]))


@contextmanager
def on_device(model: nn.Module, *, changed: bool = False) -> Iterator[None]:
    """Within, a model's shards are on its device; `changed` = its weights are written to.

    All passes over a sharded model run within this: one without a backward pass leaves weights gathered, which are
    freed here, or after an optimizer step the next pass would use the old ones.
    """
    if (sharded := _find(model)) is None:
        yield
        return
    with nullcontext() if sharded.offload is None else sharded.offload.on_device(changed=changed):
        try:
            yield
        except BaseException:
            _forget_pass(sharded)
            raise
        finally:
            for module in sharded.root.modules():
                if isinstance(module, FSDPModule):
                    module.reshard()


def set_gradient_sync(model: nn.Module, *, last: bool) -> None:
    """Before a micro-batch, whether it is the `last` of those whose gradients add up.

    With `memory.reshard_after_forward=false` only the last one's backward pass reduces gradients and frees weights.
    """
    if (sharded := _find(model)) is not None and sharded.gathers_once:
        root = cast(FSDPModule, sharded.root)
        root.set_requires_gradient_sync(last)
        root.set_reshard_after_backward(last)


def _forget_pass(sharded: _Sharded) -> None:
    """Forget a pass that failed midway, so that the next one may be of the same model.

    Only on one rank: with several, the others still wait in this pass.
    """
    for parameter in sharded.root.parameters():  # of a gathered layer they are the gathered ones: FSDP2 keeps those
        parameter.grad = None
    for reduction in sharded.reductions:
        reduction.sent = None
    root = cast(FSDPModule, sharded.root)
    state: Any = root._get_fsdp_state()
    if sharded.ranks.is_distributed or not state._is_root:  # it has not begun
        return
    if hasattr(root, "reset_iter_state"):  # since PyTorch 2.13
        root.reset_iter_state()
    else:
        state._root_post_backward_final_callback()
        state._state_ctx.iter_forward_root = None


def root_of(model: nn.Module) -> nn.Module:
    """The module that was passed to `shard`: the model or its parent; the model if it is not sharded."""
    return model if (sharded := _find(model)) is None else sharded.root


def options_of(model: nn.Module) -> FsdpOptions | None:
    """How a model is sharded; None = it is not."""
    return None if (sharded := _find(model)) is None else sharded.options


def ranks_of(model: nn.Module) -> DataParallelGroup:
    """The ranks that a model is sharded over."""
    return ALONE if (sharded := _find(model)) is None else sharded.ranks


def device_of(model: nn.Module) -> torch.device:
    """What a model computes on; its shards may be elsewhere."""
    options = options_of(model)
    return next(model.parameters()).device if options is None else options.device


def _find(model: nn.Module) -> _Sharded | None:
    return cast("_Sharded | None", getattr(model, "_sharded", None))


def _fully_shard(
    module: nn.Module, mesh: DeviceMesh, options: FsdpOptions, dtype: torch.dtype, *, reshard: bool
) -> None:
    half = dtype != torch.float32
    precision = MixedPrecisionPolicy(dtype if half else None, torch.float32 if half else None)
    on_cpu = CPUOffloadPolicy(pin_memory=options.device.type == "cuda")
    offload = on_cpu if options.offload == "always" else OffloadPolicy()
    fully_shard(module, mesh=mesh, reshard_after_forward=reshard, mp_policy=precision, offload_policy=offload)
    if mesh.size() > 1:
        # A rank's loss is its share of the mini-batch's, so gradients are summed, not averaged.
        cast(FSDPModule, module).set_gradient_divide_factor(1.0)
        cast(FSDPModule, module).set_force_sum_reduction_for_comms(True)  # gloo has no other reduction


class _OwnGradients:
    """FSDP2's reduce-scatter of one rank, which would copy what it sends to what it receives."""

    def __init__(self) -> None:
        self.sent: Tensor | None = None

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """What is sent, on the first call of a backward pass, and the same tensor on the second, to receive it."""
        sent, self.sent = self.sent, None
        if sent is not None and sent.shape == torch.Size(size) and sent.dtype == dtype:
            if sent.is_cuda:  # read on the stream of the second call, and freed on that of the first
                sent.record_stream(torch.cuda.current_stream(device))
            return sent
        self.sent = torch.empty(size, dtype=dtype, device=device)
        return self.sent

    def __call__(self, output_tensor: Tensor, input_tensor: Tensor, **_: Any) -> None:
        """Called by versions of PyTorch that ask one rank to reduce as well."""
        if output_tensor is not input_tensor:
            output_tensor.copy_(input_tensor)


def _size(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
