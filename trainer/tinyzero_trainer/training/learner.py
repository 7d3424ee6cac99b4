"""What policy and critic share: an optimizer, and updates in mini-batches."""

import gc
from collections.abc import Callable, Iterator, Sequence
from functools import partial
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
from tinyzero_trainer.training.micro_batches import MicroBatch, micro_batches
from tinyzero_trainer.training.optimizer import Optimizer, full_norms
from tinyzero_trainer.training.packing import choose_layout, shares_prompts
from tinyzero_trainer.training.update_metrics import MetricAccumulator
from tinyzero_trainer.types import Rollout


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
        self._split = partial(
            micro_batches,
            pad_id=language_model.pad_id,
            device=device_of(model),
            layout=choose_layout(model, optimizer.packing, name=language_model.name),
            share_prompts=shares_prompts(model),
        )
        self._losses: list[Tensor] = []  # of the present mini-batch's micro-batches, [] each
        self._diagnosis: Diagnosis | None = None
        self._freezes = device_of(model).type == "cuda"  # after its first update

    def _micro_batches(
        self, rollouts: Sequence[Rollout], ranks: DataParallelGroup | None = None
    ) -> Iterator[MicroBatch]:
        """This rank's micro-batches; `ranks` = None: divided over those of the model."""
        return self._split(rollouts, token_budget=self.micro_batch_tokens, ranks=ranks or self._ranks)

    def _updates(
        self, batch: TrainingBatch, update: Callable[[TrainingBatch, MetricAccumulator], None]
    ) -> MetricAccumulator:
        """Call `update` with each mini-batch; the metrics of all, of this rank."""
        metrics = MetricAccumulator()
        for mini_batch in batch.mini_batches(self._settings.num_mini_batches, self._settings.update_epochs):
            update(mini_batch, metrics)
        self._optimizer.end()
        if self._freezes:
            # Else each full collection scans a million objects of PyTorch's compiler: half a second, every few seconds.
            gc.collect()
            gc.freeze()
            self._freezes = False
        return metrics

    def _start_mini_batch(self, mini_batch: TrainingBatch) -> None:
        # Not train(): dropout would blur what is compared with log-probabilities and values from before the update.
        self._computes.eval()
        tokens = sum(len(one.prompt.token_ids) + len(one.generation.token_ids) for one in mini_batch.rollouts)
        self._optimizer.start(accumulates=tokens > self.micro_batch_tokens * self._ranks.world_size)
        self._losses = []
        if self._diagnosis is not None:
            self._diagnosis.updates.append(UpdateDiagnosis())

    def _micro_batches_of(self, rollouts: Sequence[Rollout]) -> Iterator[MicroBatch]:
        """This rank's micro-batches, whose gradients add up."""
        # The norms of a diagnosis are of gradients that are reduced.
        following: Iterator[MicroBatch | None] = chain(self._micro_batches(rollouts), [None])
        for batch, after in pairwise(following):
            assert batch is not None
            set_gradient_sync(self._computes, last=after is None or self._diagnosis is not None)
            yield batch

    def _backward(self, part: TrainingBatch, losses: Tensor, *, is_padding: bool) -> None:
        """Add the gradient of a micro-batch, with the [tokens] weighted losses of these completions."""
        loss = losses.sum()
        loss.backward()
        self._losses.append(loss.detach())
        if self._diagnosis is not None:
            self._diagnosis.add(part, losses.detach(), self._optimizer.gradient_norms(), is_padding=is_padding)

    def diagnose(self) -> None:
        """Record the updates of the next step, for `diagnosis`."""
        with on_device(self._computes):
            norms = full_norms(dict(self._trained.named_parameters()))
        self._diagnosis = Diagnosis(len(norms), nonfinite(norms))

    def diagnosis(self) -> Diagnosis:
        """Of the updates since `diagnose`, also of one that was the last before an UpdateError."""
        assert self._diagnosis is not None
        found, self._diagnosis = self._diagnosis, None
        found.gather(self._ranks)
        return found

    def _step(self, learning_rate: float, metrics: MetricAccumulator) -> None:
        norm = self._optimizer.gather_gradients(torch.stack(self._losses).sum())
        self._optimizer.step(learning_rate, norm)
        metrics.end_mini_batch(norm)
