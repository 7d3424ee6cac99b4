"""The critic of PPO: what a completion is still worth, estimated before each of its tokens."""

import copy
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from tinyzero_trainer import ragged
from tinyzero_trainer.batching import MicroBatch, micro_batches, mini_batch_rows
from tinyzero_trainer.config import CriticConfig, OptimizerConfig
from tinyzero_trainer.experience import Experience
from tinyzero_trainer.forward import completion_states
from tinyzero_trainer.losses import token_weights, value_loss
from tinyzero_trainer.models import LanguageModel
from tinyzero_trainer.optimizing import Optimizer
from tinyzero_trainer.records import Sample

WEIGHTS_FILE = "critic.safetensors"
OPTIMIZER_FILE = "critic_optimizer.safetensors"


class ValueModel(nn.Module):
    """A language model's body with a scalar head, which starts at zero: at first nothing is known."""

    def __init__(self, language_model: LanguageModel) -> None:
        super().__init__()
        self.body = copy.deepcopy(language_model.model)
        self.body.get_output_embeddings().requires_grad_(False)  # tied or not, no token is predicted
        for parameter in self.body.get_input_embeddings().parameters():
            parameter.requires_grad_(True)
        hidden = self.body.config.get_text_config().hidden_size
        self.head = nn.Linear(hidden, 1, bias=False, device=self.body.device, dtype=torch.float32)
        nn.init.zeros_(self.head.weight)

    def forward(self, batch: MicroBatch) -> Tensor:
        """[tokens] V(s_t) before each completion token."""
        values: Tensor = self.head(completion_states(self.body, batch).float()).squeeze(-1)
        return values


class Critic:
    """The value model with its optimiser."""

    def __init__(self, language_model: LanguageModel, *, settings: CriticConfig, optimizer: OptimizerConfig) -> None:
        """
        Args:
            language_model: the start; its weights are copied.
            settings: learning rate and clip.
            optimizer: everything else about the updates, shared with the policy.
        """
        self.model = ValueModel(language_model)
        self._pad_id = language_model.pad_id
        self._settings, self._shared = settings, optimizer
        self._optimizer = Optimizer(self.model, optimizer)

    @torch.no_grad()
    def values(self, samples: Sequence[Sample]) -> Tensor:
        """[tokens] V(s_t) before each token of the completions, in their order."""
        self.model.eval()
        parts: list[Tensor] = [torch.empty(0)] * len(samples)
        for batch in self._micro_batches(samples):
            found = self.model(batch).cpu()
            for row, part in zip(batch.rows, found.split(batch.lengths.tolist()), strict=True):
                parts[row] = part
        return torch.cat(parts)

    def update(self, experience: Experience, *, group_size: int) -> dict[str, float]:
        """As many passes and mini-batches as the policy's; returns the metrics `critic/vf_*`.

        Raises:
            UpdateError: see `Optimizer.step`.
        """
        count, tally = len(experience.samples), _ValueTally()
        for _ in range(self._shared.epochs):
            for rows in mini_batch_rows(count // group_size, group_size, self._shared.mini_batches):
                counted = experience.counted(rows)
                if counted:
                    self._update_mini_batch(experience.select(counted), tally)
        return {"critic/lr": self._settings.learning_rate, **tally.metrics()}

    def _update_mini_batch(self, experience: Experience, tally: "_ValueTally") -> None:
        self.model.train()
        self._optimizer.begin()
        weights = token_weights(experience.lengths, "token-mean", max_tokens=1)
        for batch in self._micro_batches(experience.samples):
            part = experience.select(batch.rows)
            assert part.values is not None
            assert part.returns is not None
            old, returns = part.values.to(batch.tokens.device), part.returns.to(batch.tokens.device)
            values = self.model(batch)
            loss, clipped = value_loss(values, old, returns, clip=self._settings.value_clip)
            weight = weights[torch.tensor(batch.rows)].to(loss.device)
            (ragged.spread(weight, batch.lengths) * loss).sum().backward()
            tally.add(loss.detach(), clipped, old, returns)
        tally.norms.append(self._optimizer.step(self._settings.learning_rate).item())

    def _micro_batches(self, samples: Sequence[Sample]) -> Iterator[MicroBatch]:
        budget, device = self._shared.micro_batch_tokens, self.model.body.device
        return micro_batches(
            samples, token_budget=budget, pad_id=self._pad_id, device=device, layout=self._shared.layout
        )

    def save(self, directory: Path) -> None:
        """Write weights and moments."""
        # A tied head is the embedding itself, and safetensors keeps no tensor twice.
        tensors = {name: value.detach().cpu().contiguous() for name, value in self.model.named_parameters()}
        save_file(tensors, directory / WEIGHTS_FILE)
        self._optimizer.save(directory / OPTIMIZER_FILE)

    def load(self, directory: Path) -> None:
        """Read what `save` wrote."""
        parameters = dict(self.model.named_parameters())
        with torch.no_grad():
            for name, value in load_file(directory / WEIGHTS_FILE).items():
                parameters[name].copy_(value)
        self._optimizer.load(directory / OPTIMIZER_FILE)


class _ValueTally:
    """Sums over the tokens of an update."""

    def __init__(self) -> None:
        self.norms: list[float] = []
        self._loss: list[Tensor] = []
        self._clipped: list[Tensor] = []
        self._values: list[Tensor] = []
        self._returns: list[Tensor] = []

    def add(self, loss: Tensor, clipped: Tensor, values: Tensor, returns: Tensor) -> None:
        """Add one value a token."""
        columns = (self._loss, self._clipped, self._values, self._returns)
        for column, part in zip(columns, (loss, clipped.float(), values, returns), strict=True):
            column.append(part.cpu())

    def metrics(self) -> dict[str, float]:
        """Means over tokens; empty if nothing counted."""
        if not self._loss:
            return {}
        values, returns = torch.cat(self._values), torch.cat(self._returns)
        spread = returns.var(correction=0).item()
        metrics = {
            "critic/vf_loss": torch.cat(self._loss).mean().item(),
            "critic/vf_clipfrac": torch.cat(self._clipped).mean().item(),
            "critic/grad_norm": sum(self.norms) / len(self.norms),
            "critic/values/mean": values.mean().item(),
            "critic/values/max": values.max().item(),
            "critic/values/min": values.min().item(),
            "critic/returns/mean": returns.mean().item(),
            "critic/returns/max": returns.max().item(),
            "critic/returns/min": returns.min().item(),
        }
        if spread > 0:
            metrics["critic/vf_explained_var"] = 1 - (returns - values).var(correction=0).item() / spread
        return metrics
