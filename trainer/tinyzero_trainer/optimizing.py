"""One model's optimiser: AdamW, clipped gradients, and updates that are skipped because they are not finite."""

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from tinyzero_sdk.errors import TinyZeroError
from tinyzero_trainer.config import OptimizerConfig


class UpdateError(TinyZeroError):
    """Too many updates in a row had a loss or gradient that is not finite."""


class Optimizer:
    """AdamW over a model's parameters."""

    def __init__(self, model: nn.Module, settings: OptimizerConfig) -> None:
        """
        Args:
            model: its parameters that require a gradient are trained.
            settings: decay rates, weight decay and the gradient's bound; the learning rate comes with each step.
        """
        self._model, self._settings = model, settings
        self._bad_updates = 0  # in a row
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        matrices = [parameter for parameter in trained if parameter.ndim >= 2]
        vectors = [parameter for parameter in trained if parameter.ndim < 2]
        self._adamw = torch.optim.AdamW(
            [{"params": matrices, "weight_decay": settings.weight_decay}, {"params": vectors, "weight_decay": 0.0}],
            betas=(settings.beta1, settings.beta2),
            fused=True,
        )

    def begin(self) -> None:
        """Forget the gradients of the mini-batch before."""
        self._adamw.zero_grad(set_to_none=True)

    def step(self, rate: float) -> Tensor:
        """Update the weights, unless the gradient is not finite; returns its norm before it was clipped.

        Raises:
            UpdateError: after `optimizer.max_bad_steps` such updates in a row. Each was skipped.
        """
        for group in self._adamw.param_groups:
            group["lr"] = rate
        norm = torch.nn.utils.clip_grad_norm_(self._model.parameters(), self._settings.max_grad_norm)
        if torch.isfinite(norm):
            self._adamw.step()
            self._bad_updates = 0
            return norm
        # One NaN that reaches AdamW's moments stays there for good.
        self._bad_updates += 1
        if self._bad_updates >= self._settings.max_bad_steps:
            raise UpdateError(
                f"{self._bad_updates} updates in a row had a gradient that is not finite (each was skipped); "
                f"resume from the last checkpoint, and if that fails start anew with a learning rate below {rate:g}"
            )
        return norm

    def save(self, path: Path) -> None:
        """Write the moments, by parameter name, as safetensors."""
        tensors: dict[str, Tensor] = {}
        for name, parameter in self._model.named_parameters():
            for key, value in self._adamw.state.get(parameter, {}).items():
                tensors[f"{key}/{name}"] = value.detach().cpu().contiguous()
        save_file(tensors, path)

    def load(self, path: Path) -> None:
        """Read what `save` wrote; the weights are loaded with the model."""
        parameters = dict(self._model.named_parameters())
        for full_name, tensor in load_file(path).items():
            key, name = full_name.split("/", 1)
            # AdamW keeps its step count on the parameter's device when fused.
            self._adamw.state[parameters[name]][key] = tensor.to(parameters[name].device)
