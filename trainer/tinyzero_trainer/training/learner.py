"""What policy and critic share: an optimizer, and updates in mini-batches."""

import gc
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, pairwise

import torch
from torch import Tensor, nn

from tinyzero_trainer.algorithms.batch import TrainingBatch
from tinyzero_trainer.config import OptimizerConfig
from tinyzero_trainer.distributed.fsdp import device_of, on_device, ranks_of, set_gradient_sync
from tinyzero_trainer.distributed.groups import DataParallelGroup
from tinyzero_trainer.models.loading import LanguageModel
from tinyzero_trainer.training.diagnosis import Diagnosis, UpdateDiagnosis, nonfinite
from tinyzero_trainer.training.logprobs import TokenModel
from tinyzero_trainer.training.micro_batches import MicroBatch, to_device
from tinyzero_trainer.training.optimizer import Optimizer, full_norms
from tinyzero_trainer.training.packing import splitter
from tinyzero_trainer.training.update_metrics import MetricAccumulator
from tinyzero_trainer.types import Rollout
from tinyzero_trainer.utils import jagged

TokenLosses = Callable[[MicroBatch, TrainingBatch, Tensor, MetricAccumulator], Tensor]
"""From a micro-batch, its rows of the batch, and the weight of each token, which only metrics need: [tokens] losses."""


class Learner:
    """A model with its optimizer; all its ranks are called with the whole batch at the same time."""

    def __init__(
        self, model: TokenModel, trained: nn.Module, language_model: LanguageModel, optimizer: OptimizerConfig
    ) -> None:
        """`model` computes, `trained` has its parameters under the names of checkpoints; both sharded if they are."""
        self._computes, self._trained, self._settings, self._ranks = model, trained, optimizer, ranks_of(model)
        self._optimizer = Optimizer(trained, optimizer)
        self.micro_batch_tokens = optimizer.token_budget
        """Lower than the setting where a GPU's memory is too small for it."""
        self._split = splitter(language_model, model, optimizer.packing)
        self._diagnosis: Diagnosis | None = None
        self._freezes = device_of(model).type == "cuda"  # after its first update

    def _micro_batches(
        self, rollouts: Sequence[Rollout], ranks: DataParallelGroup | None = None
    ) -> Iterator[MicroBatch]:
        """This rank's micro-batches; `ranks` = None: divided over those of the model."""
        return self._split(rollouts, token_budget=self.micro_batch_tokens, ranks=ranks or self._ranks)

    def _update(
        self,
        batch: TrainingBatch,
        learning_rate: float,
        weights_of: Callable[[Tensor], Tensor],
        losses_of: TokenLosses,
    ) -> MetricAccumulator:
        """`update_epochs` passes over a batch, each of `num_mini_batches` updates; the metrics of this rank.

        `weights_of` gives from the lengths of a mini-batch's completions the weight of each one's tokens.
        """
        metrics = MetricAccumulator()
        # Not train(): dropout would blur what is compared with log-probabilities and values from before the update.
        self._computes.eval()
        for mini_batch in batch.mini_batches(self._settings.num_mini_batches, self._settings.update_epochs):
            self._update_mini_batch(mini_batch, learning_rate, weights_of, losses_of, metrics)
        self._optimizer.end()
        if self._freezes:
            # Else each full collection scans a million objects of PyTorch's compiler: half a second, every few seconds.
            gc.collect()
            gc.freeze()
            self._freezes = False
        return metrics

    def _update_mini_batch(
        self,
        mini_batch: TrainingBatch,
        learning_rate: float,
        weights_of: Callable[[Tensor], Tensor],
        losses_of: TokenLosses,
        metrics: MetricAccumulator,
    ) -> None:
        # Over the whole mini-batch: however it is split, the gradients add up to the same.
        weights = jagged.repeat_to_tokens(weights_of(mini_batch.lengths), mini_batch.lengths)  # [tokens]
        tokens = sum(len(r.prompt.token_ids) + len(r.generation.token_ids) for r in mini_batch.rollouts)
        self._optimizer.start(accumulates=tokens > self.micro_batch_tokens * self._ranks.world_size)
        if self._diagnosis is not None:
            self._diagnosis.updates.append(UpdateDiagnosis())
        total = list[Tensor]()  # the loss of each micro-batch, []
        following: Iterator[MicroBatch | None] = chain(self._micro_batches(mini_batch.rollouts), [None])
        for batch, after in pairwise(following):
            assert batch is not None
            # The norms of a diagnosis are of gradients that are reduced.
            set_gradient_sync(self._computes, last=after is None or self._diagnosis is not None)
            part = mini_batch.select(batch.indices)
            weight = jagged.select(weights, mini_batch.lengths, batch.indices)
            weight = to_device(torch.zeros_like(weight) if batch.is_padding else weight, batch.tokens.device)
            counted = MetricAccumulator() if batch.is_padding else metrics
            losses = weight * losses_of(batch, part, weight, counted)
            loss = losses.sum()
            loss.backward()
            total.append(loss.detach())
            if self._diagnosis is not None:
                norms = self._optimizer.gradient_norms()
                self._diagnosis.add(part, losses.detach(), norms, is_padding=batch.is_padding)
        norm = self._optimizer.gather_gradients(torch.stack(total).sum())
        self._optimizer.step(learning_rate, norm)
        metrics.end_mini_batch(norm)

    def diagnose(self) -> None:
        """Record the updates of the next step, for `diagnosis`."""
        with on_device(self._computes):
            norms = full_norms(dict(self._trained.named_parameters()))
        self._diagnosis = Diagnosis(len(norms), nonfinite(norms))

    def diagnosis(self) -> Diagnosis:
        """What the updates since `diagnose` did, also one that was the last before an UpdateError."""
        assert self._diagnosis is not None
        diagnosis, self._diagnosis = self._diagnosis, None
        diagnosis.gather(self._ranks)
        return diagnosis
