"""The optimizer of one model: AdamW, gradient clipping, and updates skipped because they are not finite."""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from tinyzero_sdk.errors import TinyZeroError
from tinyzero_trainer.checkpoint.sharded_tensors import Kind, check_sharded, load_sharded, load_whole, save_sharded
from tinyzero_trainer.config import OptimizerConfig
from tinyzero_trainer.distributed.dtensor import as_dtensor, assign, full_tensor, local_shard
from tinyzero_trainer.distributed.fsdp import options_of, ranks_of
from tinyzero_trainer.distributed.offload import CpuOffload

ALIGNED = 64
"""Elements to whose multiples each gradient in a block begins, so that kernels read several at a time."""


class UpdateError(TinyZeroError):
    """Too many consecutive updates had a loss or gradient that is not finite."""


class Optimizer:
    """AdamW over a model's parameters."""

    def __init__(self, model: nn.Module, settings: OptimizerConfig) -> None:
        """The model is already sharded if it ever is; its parameters that require a gradient are trained."""
        self._settings = settings
        self._nonfinite_updates = torch.zeros((), dtype=torch.long)  # consecutive
        self._parameters = {name: value for name, value in model.named_parameters() if value.requires_grad}
        # AdamW treats each element alone, so it steps plain tensors: this rank's shards.
        self._shards = {name: local_shard(value) for name, value in self._parameters.items()}
        matrices = [shard for shard in self._shards.values() if shard.ndim >= 2]
        vectors = [shard for shard in self._shards.values() if shard.ndim < 2]
        self._adamw = torch.optim.AdamW(
            [{"params": matrices, "weight_decay": settings.weight_decay}, {"params": vectors, "weight_decay": 0.0}],
            betas=(settings.beta1, settings.beta2),
            fused=True,
        )
        for shard in self._shards.values():  # now, and not at the first step: an engine would have taken the memory
            moments = {"exp_avg": torch.zeros_like(shard), "exp_avg_sq": torch.zeros_like(shard)}
            self._adamw.state[shard] = {"step": torch.zeros((), device=shard.device), **moments}
        self._is_distributed, options = ranks_of(model).is_distributed, options_of(model)
        self._is_sharded = options is not None
        self._offloads_gradients = options is not None and options.offload == "always"
        self._reached: set[str] | None = None  # parameters that a backward pass has reached; None = not recorded
        if self._is_sharded and not self._offloads_gradients:
            for name, parameter in self._parameters.items():
                parameter.register_post_accumulate_grad_hook(partial(self._reach, name))
        self._offload = CpuOffload(self._moments) if options is not None and options.offload == "idle" else None

    def zero_grad(self) -> None:
        for tensor in (*self._parameters.values(), *self._shards.values()):
            tensor.grad = None

    def start(self, *, accumulates: bool) -> None:
        """Before a mini-batch; `accumulates` = several micro-batches add to its gradient.

        Then the gradients of a sharded model are made now, in one block. A backward pass would leave each where
        activations were just freed, in whose place the next micro-batch's would not fit any more.
        """
        self.zero_grad()
        self._reached = None
        if not (accumulates and self._is_sharded) or self._offloads_gradients:
            return
        self._reached = set()
        sizes = [-(-shard.numel() // ALIGNED) * ALIGNED for shard in self._shards.values()]
        block = torch.zeros(sum(sizes), device=next(iter(self._shards.values())).device)
        for (name, shard), part in zip(self._shards.items(), block.split(sizes), strict=True):
            parameter = self._parameters[name]
            parameter.grad = as_dtensor(part[: shard.numel()].view(shard.shape), parameter)

    def _reach(self, name: str, _: Tensor) -> None:
        if self._reached is not None:
            self._reached.add(name)

    def end(self) -> None:
        """After the last mini-batch: free the gradients of a sharded model; a plain one keeps them for inspection."""
        if self._is_sharded:
            self.zero_grad()

    def on_device(self, *, changed: bool = False) -> AbstractContextManager[None]:
        """Within, the moments are on the device of the weights; `changed` = steps are made."""
        return nullcontext() if self._offload is None else self._offload.on_device(changed=changed)

    def step(self, learning_rate: float, norm: Tensor) -> None:
        """Update the weights, or skip an update whose norm, as `gather_gradients` returned it, is not finite.

        Raises an UpdateError after `optimizer.max_nonfinite_updates` of these in a row.
        """
        for group in self._adamw.param_groups:
            group["lr"] = learning_rate
        if norm.isfinite():
            torch.nn.utils.clip_grads_with_norm_(self._shards.values(), self._settings.max_grad_norm, norm)
            self._adamw.step()
            self._nonfinite_updates.zero_()
            return
        # A NaN in AdamW's moments would stay there.
        count = int(self._nonfinite_updates.add_(1))
        if count >= self._settings.max_nonfinite_updates:
            raise UpdateError(f"{count} updates in a row had a loss or gradient that is not finite, and were skipped")

    def gather_gradients(self, loss: Tensor) -> Tensor:
        """Give each shard its gradient; returns the norm over all ranks, NaN if the loss [] of one is not finite."""
        for name, parameter in self._parameters.items():
            if self._reached is not None and name not in self._reached:
                parameter.grad = None  # else AdamW would decay a weight that nothing uses
            self._shards[name].grad = None if parameter.grad is None else local_shard(parameter.grad)
        gradients = [shard.grad for shard in self._shards.values() if shard.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        norm = norm.where(loss.to(norm.device).isfinite(), torch.nan)
        return _over_ranks(norm, self._parameters.values())

    def gradient_norms(self) -> dict[str, float]:
        """The norm of the gradient of each parameter that has one, over all ranks."""
        return full_norms({name: value.grad for name, value in self._parameters.items() if value.grad is not None})

    def _moments(self) -> Iterator[Tensor]:
        for state in self._adamw.state.values():
            yield from (value for value in state.values() if value.ndim)

    def save(self, directory: Path, name: str) -> None:
        """Write the moments by parameter name; see `save_tensors`."""
        with self.on_device():
            save_tensors(directory / name, self._named_state(), sharded=self._is_distributed)

    def load(self, directory: Path, name: str) -> None:
        """Read what `save` wrote, on any number of ranks; a DamagedCheckpointError if it is not this model's."""
        with self.on_device(changed=True):
            load_tensors(directory / name, self._named_state())

    def _named_state(self) -> dict[str, Tensor]:
        """Moments and step counts, in whose memory AdamW reads them; moments are sharded as the parameters are."""
        return {
            f"{key}/{name}": as_dtensor(value, self._parameters[name])
            for name, shard in self._shards.items()
            for key, value in self._adamw.state[shard].items()
        }


def _over_ranks(norms: Tensor, tensors: Iterable[Tensor]) -> Tensor:
    """Norms over all ranks, from those over this rank's shards of the tensors."""
    meshes = {tensor.device_mesh for tensor in tensors if isinstance(tensor, DTensor)}
    for mesh in meshes:  # at most one
        if mesh.size() > 1:
            squared = norms.to(mesh.device_type) ** 2
            # Over all ranks, though each replica has all gradients: the norm's bits must be equal on all of them,
            # or the replicas would drift apart.
            dist.all_reduce(squared)
            replicas = mesh.size() // mesh.shape[-1]
            norms = (squared / replicas).sqrt().to(norms.device)
    return norms


def full_norms(tensors: Mapping[str, Tensor]) -> dict[str, float]:
    """The norm of each whole tensor; every rank must call it."""
    local_norms = torch.stack([torch.linalg.vector_norm(local_shard(tensor)).cpu() for tensor in tensors.values()])
    return dict(zip(tensors, _over_ranks(local_norms, tensors.values()).tolist(), strict=True))


def save_tensors(path: Path, tensors: Mapping[str, Tensor], *, sharded: bool) -> None:
    """Write tensors: one rank to `path`.safetensors, several each their shards to the directory `path`."""
    if sharded:
        save_sharded(path, tensors)
        return
    full = {name: full_tensor(tensor).cpu().contiguous() for name, tensor in tensors.items()}
    save_file(full, path.with_suffix(".safetensors"))


def load_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Read what `save_tensors` wrote, on any number of ranks, into tensors; all ranks must call it.

    Raises a DamagedCheckpointError if its names, shapes or types are others.
    """
    expected: dict[str, Kind] = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in tensors.items()}
    if (file := path.with_suffix(".safetensors")).exists():
        for name, value in load_whole(file, expected).items():
            assign(tensors[name], value)
        return
    check_sharded(path, expected)
    load_sharded(path, tensors)
