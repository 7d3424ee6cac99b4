"""One model's optimiser: AdamW, clipped gradients, and updates that are skipped because they are not finite."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from tinyzero_sdk.errors import TinyZeroError
from tinyzero_trainer.checkpoint.sharded_tensors import load_parts, save_parts, shapes
from tinyzero_trainer.config import OptimizerConfig
from tinyzero_trainer.distributed.dtensor import as_dtensor, full_tensor, local_of_whole, local_shard
from tinyzero_trainer.distributed.fsdp import placement_of, ranks_of
from tinyzero_trainer.distributed.offload import CpuOffload


class UpdateError(TinyZeroError):
    """Too many updates in a row had a loss or gradient that is not finite."""


class Optimizer:
    """AdamW over a model's parameters."""

    def __init__(self, model: nn.Module, settings: OptimizerConfig) -> None:
        """
        Args:
            model: its parameters that require a gradient are trained; sharded by now, if it ever is.
            settings: decay rates, weight decay and the gradient's bound; the learning rate comes with each step.
        """
        self._settings = settings
        self._bad_updates = 0  # in a row
        self._parameters = {name: value for name, value in model.named_parameters() if value.requires_grad}
        # What AdamW does to an element needs nothing but that element, so plain tensors will do: this rank's shards.
        self._shards = {name: local_shard(value) for name, value in self._parameters.items()}
        matrices = [shard for shard in self._shards.values() if shard.ndim >= 2]
        vectors = [shard for shard in self._shards.values() if shard.ndim < 2]
        self._adamw = torch.optim.AdamW(
            [{"params": matrices, "weight_decay": settings.weight_decay}, {"params": vectors, "weight_decay": 0.0}],
            betas=(settings.beta1, settings.beta2),
            fused=True,
        )
        for shard in self._shards.values():  # now, and not at the first step: until then others would take the room
            moments = {"exp_avg": torch.zeros_like(shard), "exp_avg_sq": torch.zeros_like(shard)}
            self._adamw.state[shard] = {"step": torch.zeros((), device=shard.device), **moments}
        self._ranks, placement = ranks_of(model), placement_of(model)
        self._sharded = placement is not None
        self._waiting = CpuOffload(self._moments) if placement is not None and placement.offload == "idle" else None

    def end(self) -> None:
        """After the last mini-batch: the gradients' memory is others' until the next update.

        A model that is not sharded keeps them, for whoever wants to look.
        """
        if self._sharded:
            self.begin()

    def begin(self) -> None:
        """Forget the gradients of the mini-batch before."""
        for parameter in self._parameters.values():
            parameter.grad = None
        for shard in self._shards.values():
            shard.grad = None

    def on_device(self, *, changed: bool = False) -> AbstractContextManager[None]:
        """Within, the moments are where the weights are, from wherever they wait.

        Args:
            changed: whether steps are made.
        """
        return nullcontext() if self._waiting is None else self._waiting.on_device(changed=changed)

    def step(self, rate: float) -> Tensor:
        """Update the weights, unless the gradient is not finite; returns its norm before it was clipped.

        Raises:
            UpdateError: after `optimizer.max_nonfinite_updates` such updates in a row. Each was skipped.
        """
        for group in self._adamw.param_groups:
            group["lr"] = rate
        norm = self._gather_gradients()
        torch.nn.utils.clip_grads_with_norm_(self._shards.values(), self._settings.max_grad_norm, norm)
        if torch.isfinite(norm):
            self._adamw.step()
            self._bad_updates = 0
            return norm
        # One NaN that reaches AdamW's moments stays there for good.
        self._bad_updates += 1
        if self._bad_updates >= self._settings.max_nonfinite_updates:
            raise UpdateError(
                f"{self._bad_updates} updates in a row had a gradient that is not finite (each was skipped); "
                f"resume from the last checkpoint, and if that fails start anew with a learning rate below {rate:g}"
            )
        return norm

    def _gather_gradients(self) -> Tensor:
        """Hand each shard its gradient; the norm of all of them, over all ranks."""
        for name, parameter in self._parameters.items():
            self._shards[name].grad = None if parameter.grad is None else local_shard(parameter.grad)
        gradients = [shard.grad for shard in self._shards.values() if shard.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        meshes = {parameter.device_mesh for parameter in self._parameters.values() if isinstance(parameter, DTensor)}
        for mesh in meshes:  # one at most, and none without shards
            if mesh.size() > 1:
                squared = norm.to(mesh.device_type) ** 2
                # Over all ranks, though each replica has all gradients: its bits must be the same on all of them, or
                # the replicas would drift apart.
                dist.all_reduce(squared)
                replicas = mesh.size() // mesh.shape[-1]
                norm = (squared / replicas).sqrt().to(norm.device)
        return norm

    def _moments(self) -> Iterator[Tensor]:
        for state in self._adamw.state.values():
            yield from (value for value in state.values() if value.ndim)

    def save(self, directory: Path, name: str) -> None:
        """Write the moments, by parameter name: one rank into a file, several in parts into a directory.

        Args:
            directory: an existing one.
            name: of the file or directory in it, without a suffix.
        """
        tensors: dict[str, Tensor] = {}
        with self.on_device():
            for parameter_name, parameter in self._parameters.items():
                for key, value in self._adamw.state[self._shards[parameter_name]].items():
                    tensors[f"{key}/{parameter_name}"] = as_dtensor(value.detach(), parameter)
            if self._ranks.several:
                save_parts(directory / name, tensors)
            else:
                found = {key: full_tensor(tensor).cpu().contiguous() for key, tensor in tensors.items()}
                save_file(found, directory / f"{name}.safetensors")

    def load(self, directory: Path, name: str) -> None:
        """Read what `save` wrote, on any number of ranks; the weights are loaded with the model."""
        file, parts = directory / f"{name}.safetensors", directory / name
        with self.on_device(changed=True):
            if file.exists():
                for full_name, tensor in load_file(file).items():
                    self._take(full_name, local_of_whole(tensor, self._parameters[full_name.partition("/")[2]]))
                return
            tensors = {}
            for full_name, shape in shapes(parts).items():
                like = self._parameters[full_name.partition("/")[2]]
                empty = (
                    torch.empty_like(local_shard(like))
                    if shape == like.shape
                    else torch.empty(shape, device=like.device)
                )
                tensors[full_name] = as_dtensor(empty.detach(), like)
            load_parts(parts, tensors)
            for full_name, tensor in tensors.items():
                self._take(full_name, local_shard(tensor))

    def _take(self, full_name: str, value: Tensor) -> None:
        key, _, name = full_name.partition("/")
        self._adamw.state[self._shards[name]][key].copy_(value)
