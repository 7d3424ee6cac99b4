"""The critic of PPO: the value of a completion so far, estimated before each of its tokens."""

import copy
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from tinyzero_trainer.algorithms.batch import TrainingBatch
from tinyzero_trainer.algorithms.losses import token_weights, value_loss
from tinyzero_trainer.config import CriticConfig, OptimizerConfig
from tinyzero_trainer.distributed import ulysses
from tinyzero_trainer.distributed.fsdp import FsdpOptions, on_device, shard
from tinyzero_trainer.models.loading import LanguageModel
from tinyzero_trainer.training.learner import Learner
from tinyzero_trainer.training.logprobs import TokenModel, completion_states
from tinyzero_trainer.training.micro_batches import MicroBatch, in_batch_order, to_device
from tinyzero_trainer.training.optimizer import load_tensors, save_tensors
from tinyzero_trainer.training.update_metrics import MetricAccumulator
from tinyzero_trainer.types import Rollout

WEIGHTS, OPTIMIZER = "critic", "critic_optimizer"
"""In a checkpoint: files, or with several ranks directories."""


class ValueModel(TokenModel):
    """A language model's body with a scalar head, initialised to zero."""

    def __init__(self, language_model: LanguageModel) -> None:
        super().__init__(copy.deepcopy(language_model.model))
        self.body.get_output_embeddings().requires_grad_(False)  # tied or not, no token is predicted
        for parameter in self.body.get_input_embeddings().parameters():
            parameter.requires_grad_(True)
        hidden = self.body.config.get_text_config().hidden_size
        self.head = nn.Linear(hidden, 1, bias=False, device=self.body.device, dtype=torch.float32)
        nn.init.zeros_(self.head.weight)

    def forward(self, batch: MicroBatch) -> Tensor:
        """[tokens] V(s_t) before each completion token."""
        local_values = self.head(completion_states(self.body, batch).float()).squeeze(-1)
        (values,) = ulysses.all_gather([local_values], batch.counts, batch.sequence_group)
        return values


class Critic(Learner):
    """The value model with its optimizer; over several ranks as the policy is."""

    def __init__(
        self,
        language_model: LanguageModel,
        *,
        settings: CriticConfig,
        optimizer: OptimizerConfig,
        options: FsdpOptions | None = None,
    ) -> None:
        """Copies the language model, which is not yet sharded, and shards the copy if there are `options`."""
        self.model = ValueModel(language_model)
        if options is not None:
            shard(self.model, options, exact=[self.model.head])
        self._own_settings = settings
        super().__init__(self.model, self.model, language_model, optimizer)

    @property
    def parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.model.parameters())

    @torch.no_grad()
    def values(self, rollouts: Sequence[Rollout]) -> Tensor:
        """[tokens] V(s_t) before each token of the completions."""
        self.model.eval()
        with on_device(self.model):
            batches = self._micro_batches(rollouts)
            return in_batch_order(batches, self.model, rollouts, self._ranks)

    def update(self, batch: TrainingBatch) -> dict[str, float]:
        """As many passes and mini-batches as the policy's; returns the metrics `critic/*`."""
        weights_of = partial(token_weights, mode="token-mean", max_tokens=1)
        with on_device(self.model, changed=True), self._optimizer.on_device(changed=True):
            metrics = self._update(batch, self._own_settings.learning_rate, weights_of, self._token_losses)
        metrics.gather(self._ranks)
        return {"critic/lr": self._own_settings.learning_rate, **_metrics(metrics)}

    def _token_losses(self, batch: MicroBatch, part: TrainingBatch, _: Tensor, metrics: MetricAccumulator) -> Tensor:
        """The clipped value loss of each token; a `TokenLosses`."""
        assert part.values is not None
        assert part.returns is not None
        old, returns = (to_device(column, batch.tokens.device) for column in (part.values, part.returns))
        loss, clipped = value_loss(self.model(batch), old, returns, clip=self._own_settings.value_clip_range)
        metrics.extend(loss=loss, clipped=clipped.float(), values=old, returns=returns)
        return loss

    def save(self, directory: Path) -> None:
        """Write weights and moments."""
        with on_device(self.model):
            save_tensors(directory / WEIGHTS, self._weights(), sharded=self._ranks.is_distributed)
        self._optimizer.save(directory, OPTIMIZER)

    def load(self, directory: Path) -> None:
        """Read what `save` wrote, on any number of ranks; a DamagedCheckpointError if it is not this model's."""
        with on_device(self.model, changed=True):
            load_tensors(directory / WEIGHTS, self._weights())
        self._optimizer.load(directory, OPTIMIZER)

    def _weights(self) -> dict[str, Tensor]:
        """By name; a tied head is the embedding, and comes once."""
        return {name: value.detach() for name, value in self.model.named_parameters()}


def _metrics(metrics: MetricAccumulator) -> dict[str, float]:
    """Empty if no token counted in the loss."""
    loss, clipped, values, returns = map(metrics.column, ("loss", "clipped", "values", "returns"))
    if loss is None or clipped is None or values is None or returns is None:
        return {}
    summary = {
        "critic/vf_loss": loss.mean().item(),
        "critic/vf_clipfrac": clipped.mean().item(),
        **{f"critic/{name}": value for name, value in metrics.updates().items()},
    }
    for name, column in (("values", values), ("returns", returns)):
        summary[f"critic/{name}/mean"] = column.mean().item()
        summary[f"critic/{name}/max"] = column.max().item()
        summary[f"critic/{name}/min"] = column.min().item()
    variance = returns.var(correction=0).item()
    if variance > 0:
        summary["critic/vf_explained_var"] = 1 - (returns - values).var(correction=0).item() / variance
    return summary
