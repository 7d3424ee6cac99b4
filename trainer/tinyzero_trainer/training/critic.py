"""The critic of PPO: what a completion is still worth, estimated before each of its tokens."""

import copy
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from tinyzero_trainer.algorithms.batch import TrainingBatch
from tinyzero_trainer.algorithms.losses import token_weights, value_loss
from tinyzero_trainer.checkpoint.sharded_tensors import load_parts, save_parts
from tinyzero_trainer.config import CriticConfig, OptimizerConfig
from tinyzero_trainer.distributed import ulysses
from tinyzero_trainer.distributed.dtensor import assign, full_tensor
from tinyzero_trainer.distributed.fsdp import FsdpOptions, device_of, on_device, ranks_of, shard
from tinyzero_trainer.models.loading import LanguageModel
from tinyzero_trainer.training import micro_batches as batching
from tinyzero_trainer.training.logprobs import TokenModel, completion_states
from tinyzero_trainer.training.micro_batches import MicroBatch, completion_lengths, in_row_order, micro_batches
from tinyzero_trainer.training.optimizer import Optimizer
from tinyzero_trainer.training.packing_checks import choose_layout
from tinyzero_trainer.training.update_metrics import MetricAccumulator
from tinyzero_trainer.types import Rollout
from tinyzero_trainer.utils import jagged as ragged

WEIGHTS, OPTIMIZER = "critic", "critic_optimizer"
"""Of a checkpoint: files of one rank's, or directories with the parts of several."""


class ValueModel(TokenModel):
    """A language model's body with a scalar head, which starts at zero: at first nothing is known."""

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
        own = self.head(completion_states(self.body, batch).float()).squeeze(-1)
        (values,) = ulysses.all_gather([own], batch.counts, batch.line)
        return values


class Critic:
    """The value model with its optimiser; over several ranks as the policy is."""

    def __init__(
        self,
        language_model: LanguageModel,
        *,
        settings: CriticConfig,
        optimizer: OptimizerConfig,
        placement: FsdpOptions | None = None,
    ) -> None:
        """
        Args:
            language_model: the start, not yet sharded; its weights are copied.
            settings: learning rate and clip.
            optimizer: everything else about the updates, shared with the policy.
            placement: how the value model is sharded; None = it is not.

        Raises:
            ModelError: see `choose_layout`.
        """
        self.model = ValueModel(language_model)
        if placement is not None:
            shard(self.model, placement, exact=[self.model.head])
        self._ranks, self._pad_id = ranks_of(self.model), language_model.pad_id
        self._settings, self._shared = settings, optimizer
        self._optimizer = Optimizer(self.model, optimizer)
        self._layout = choose_layout(self.model, optimizer.packing, name=language_model.name)

    @property
    def parameters(self) -> int:
        """How many the value model has."""
        return sum(parameter.numel() for parameter in self.model.parameters())

    @torch.no_grad()
    def values(self, samples: Sequence[Rollout]) -> Tensor:
        """[tokens] V(s_t) before each token of the completions, in their order."""
        self.model.eval()
        with on_device(self.model):
            lengths = completion_lengths(samples)
            return in_row_order(self._micro_batches(samples), self.model, lengths, self._ranks)

    def update(self, batch: TrainingBatch) -> dict[str, float]:
        """As many passes and mini-batches as the policy's; returns the metrics `critic/*`.

        Raises:
            UpdateError: see `Optimizer.step`.
        """
        tally = MetricAccumulator()
        with on_device(self.model, changed=True), self._optimizer.on_device(changed=True):
            for mini_batch in batch.mini_batches(self._shared):
                self._update_mini_batch(mini_batch, tally)
            self._optimizer.end()
        tally.gather(self._ranks)
        return {"critic/lr": self._settings.learning_rate, **_metrics(tally)}

    def _update_mini_batch(self, mini_batch: TrainingBatch, tally: MetricAccumulator) -> None:
        self.model.eval()  # without dropout, as the old values were found
        self._optimizer.begin()
        of_completions = token_weights(mini_batch.lengths, "token-mean", max_tokens=1)
        weights = ragged.repeat_to_tokens(of_completions, mini_batch.lengths)  # [tokens]
        for batch in self._micro_batches(mini_batch.rollouts):
            part = mini_batch.select(batch.rows)
            assert part.values is not None
            assert part.returns is not None
            given = (part.values, part.returns, ragged.select(weights, mini_batch.lengths, batch.rows))
            old, returns, weight = (batching.to_device(column, batch.tokens.device) for column in given)
            values = self.model(batch)
            loss, clipped = value_loss(values, old, returns, clip=self._settings.value_clip_range)
            ((torch.zeros_like(weight) if batch.filler else weight) * loss).sum().backward()
            if not batch.filler:
                tally.keep(loss=loss, clipped=clipped.float(), values=old, returns=returns)
        tally.end_mini_batch(self._optimizer.step(self._settings.learning_rate))

    def _micro_batches(self, samples: Sequence[Rollout]) -> Iterator[MicroBatch]:
        budget, device = self._shared.micro_batch_tokens, device_of(self.model)
        return micro_batches(
            samples,
            token_budget=budget,
            pad_id=self._pad_id,
            device=device,
            layout=self._layout,
            ranks=self._ranks,
        )

    def save(self, directory: Path) -> None:
        """Write weights and moments."""
        # A tied head is the embedding itself, and safetensors keeps no tensor twice.
        tensors = {name: value.detach() for name, value in self.model.named_parameters()}
        with on_device(self.model):
            if self._ranks.several:
                save_parts(directory / WEIGHTS, tensors)
            else:
                found = {name: full_tensor(tensor).cpu().contiguous() for name, tensor in tensors.items()}
                save_file(found, directory / f"{WEIGHTS}.safetensors")
        self._optimizer.save(directory, OPTIMIZER)

    def load(self, directory: Path) -> None:
        """Read what `save` wrote, on any number of ranks."""
        parameters, file = dict(self.model.named_parameters()), directory / f"{WEIGHTS}.safetensors"
        with on_device(self.model, changed=True):
            if file.exists():
                for name, value in load_file(file).items():
                    assign(parameters[name], value)
            else:
                load_parts(directory / WEIGHTS, {name: value.detach() for name, value in parameters.items()})
        self._optimizer.load(directory, OPTIMIZER)


def _metrics(tally: MetricAccumulator) -> dict[str, float]:
    """Empty if nothing counted."""
    loss, clipped, values, returns = map(tally.column, ("loss", "clipped", "values", "returns"))
    if loss is None or clipped is None or values is None or returns is None:
        return {}
    metrics = {
        "critic/vf_loss": loss.mean().item(),
        "critic/vf_clipfrac": clipped.mean().item(),
        **{f"critic/{name}": value for name, value in tally.updates().items()},
    }
    for name, column in (("values", values), ("returns", returns)):
        metrics[f"critic/{name}/mean"] = column.mean().item()
        metrics[f"critic/{name}/max"] = column.max().item()
        metrics[f"critic/{name}/min"] = column.min().item()
    spread = returns.var(correction=0).item()
    if spread > 0:
        metrics["critic/vf_explained_var"] = 1 - (returns - values).var(correction=0).item() / spread
    return metrics
