"""What policy and critic share: an optimizer, and updates in mini-batches that another process can continue."""

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain, islice, pairwise
from threading import Lock

import torch
from torch import Tensor, nn

from tinyzero_sdk.errors import TinyZeroError
from tinyzero_trainer.algorithms.batch import TrainingBatch
from tinyzero_trainer.config import OptimizerConfig
from tinyzero_trainer.distributed.fsdp import device_of, on_device, ranks_of, set_gradient_sync
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
        self._micro_batches = partial(
            micro_batches,
            token_budget=optimizer.token_budget,
            pad_id=language_model.pad_id,
            device=device_of(model),
            layout=choose_layout(model, optimizer.packing, name=language_model.name),
            share_prompts=shares_prompts(model),
        )
        self._metrics, self._unfinished = MetricAccumulator(), MetricAccumulator()
        self._losses: list[Tensor] = []  # of the present mini-batch's micro-batches, [] each
        self._diagnosis: Diagnosis | None = None
        self._stepping = Lock()
        self._freezes = device_of(model).type == "cuda"  # after its first update

    @property
    def micro_batch_tokens(self) -> int:
        """Starts as `optimizer.micro_batch_tokens`."""
        tokens: int = self._micro_batches.keywords["token_budget"]
        return tokens

    def continue_with(self, micro_batch_tokens: int, metrics: MetricAccumulator | None = None) -> None:
        """Split by another budget; the next call continues an update that was interrupted.

        `metrics` are of the mini-batches done; None = this object's own.
        """
        self._micro_batches = partial(self._micro_batches, token_budget=micro_batch_tokens)
        self._unfinished = self._metrics if metrics is None else metrics

    def _updates(
        self, batch: TrainingBatch, update: Callable[[TrainingBatch, MetricAccumulator], None]
    ) -> MetricAccumulator:
        """Call `update` with each mini-batch that is still to do; the metrics of all, of this rank."""
        self._metrics, self._unfinished = self._unfinished, MetricAccumulator()
        for mini_batch in islice(batch.mini_batches(self._settings), self._metrics.mini_batches, None):
            update(mini_batch, self._metrics.copy())  # of a mini-batch that fails midway nothing is kept
        self._optimizer.end()
        if self._freezes:
            # Else each full collection scans a million objects of PyTorch's compiler: half a second, every few seconds.
            gc.collect()
            gc.freeze()
            self._freezes = False
        metrics, self._metrics = self._metrics, MetricAccumulator()
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
        following: Iterator[MicroBatch | None] = chain(self._micro_batches(rollouts, ranks=self._ranks), [None])
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
        is_finite = bool(torch.isfinite(norm))  # here a GPU may wait for a rank that failed; `stop` must not
        with self._stepping:
            self._optimizer.step(learning_rate, norm, is_finite=is_finite)
            metrics.end_mini_batch(norm)
            self._metrics = metrics

    # ---- from a rank to the one that takes its place: both have the same shards ------------------------------------

    def stop(self, seconds: float) -> None:
        """From another thread: make no further step.

        Raises:
            TinyZeroError: the present step does not end in time.
        """
        if not self._stepping.acquire(timeout=seconds):
            raise TinyZeroError(f"a step of the optimizer did not end within {seconds:g} s")

    def done(self) -> MetricAccumulator:
        """Of the mini-batches done of an update, on the CPU."""
        return self._metrics.copy(on_cpu=True)

    @contextmanager
    def local_state(self, *, changed: bool) -> Iterator[Iterator[Tensor]]:
        """This rank's shards and moments, in an order that is the same for all of its kind, `changed` or read."""
        with on_device(self._computes, changed=changed), self._optimizer.on_device(changed=changed):
            yield self._optimizer.local_state()
