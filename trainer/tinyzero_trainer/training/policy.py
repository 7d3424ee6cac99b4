"""The policy: the model that is trained, its optimiser, and one update from a scored batch."""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from tinyzero_trainer.algorithms.batch import TrainingBatch
from tinyzero_trainer.algorithms.importance_sampling import mismatch_metrics
from tinyzero_trainer.algorithms.losses import LossInputs, find_policy_loss, token_weights
from tinyzero_trainer.algorithms.schedules import StepSettings
from tinyzero_trainer.config import AlgorithmConfig, OptimizerConfig
from tinyzero_trainer.distributed.fsdp import device_of, on_device, ranks_of
from tinyzero_trainer.distributed.groups import ALONE, DataParallelGroup
from tinyzero_trainer.models.loading import LanguageModel, save_model
from tinyzero_trainer.monitoring.performance import GpuMemoryUsage, memory_usage
from tinyzero_trainer.training import micro_batches as batching
from tinyzero_trainer.training.logprobs import PolicyModel, TokenStatistics, frozen
from tinyzero_trainer.training.loss import policy_objective
from tinyzero_trainer.training.micro_batches import (
    MicroBatch,
    completion_lengths,
    fill_budget,
    in_row_order,
    micro_batches,
)
from tinyzero_trainer.training.optimizer import Optimizer
from tinyzero_trainer.training.packing_checks import choose_layout
from tinyzero_trainer.training.update_metrics import MetricAccumulator
from tinyzero_trainer.types import Rollout
from tinyzero_trainer.utils import jagged as ragged

OPTIMIZER = "optimizer"
"""Of a checkpoint: a file of one rank's, or a directory with the parts of several."""

SMALL = 256
"""Tokens of the smaller micro-batch before the first step. Where tokens · hidden size is below some bound, 5 · 2²⁰ in
PyTorch 2.11, compiled layers have kernels of their own, and what is left over of a mini-batch is often below it: that
shall not stop a step."""


class Policy:
    """A model with its optimiser.

    Where the model is sharded over several ranks, each of them is called with the whole batch, takes its share of it,
    and returns what all of them have found.
    """

    def __init__(
        self,
        language_model: LanguageModel,
        *,
        algorithm: AlgorithmConfig,
        optimizer: OptimizerConfig,
        max_tokens: int,
        reference: PolicyModel | None,
    ) -> None:
        """
        Args:
            language_model: trained in place, in float32.
            algorithm: the loss.
            optimizer: the step.
            max_tokens: longest completion, the constant divisor of `seq-mean-token-sum-norm`.
            reference: what the KL term is measured to; needed if and only if its coefficient is above 0.

        Raises:
            ModelError: `optimizer.packing=packed` with an architecture that cannot keep packed sequences apart.
        """
        assert (reference is not None) == (algorithm.kl_coefficient > 0)
        self.language_model, self.model = language_model, PolicyModel.of(language_model.model)
        self._algorithm, self._settings = algorithm, optimizer
        self._policy_loss = find_policy_loss(algorithm.policy_loss)
        self._max_tokens, self._reference = max_tokens, reference
        self._ranks = ranks_of(language_model.model)
        self._optimizer = Optimizer(language_model.model, optimizer)
        self._layout = choose_layout(self.model, optimizer.packing, name=language_model.name)

    @property
    def ranks(self) -> int:
        """How many share the work."""
        return self._ranks.processes

    def cards(self) -> list[GpuMemoryUsage]:
        """The GPU of this one; none on the CPU."""
        use = memory_usage(device_of(self.model))
        return [] if use is None else [use]

    def logprobs(self, samples: Sequence[Rollout], temperature: float) -> Tensor:
        """[tokens] log π of every sampled token under the present weights."""
        self.model.eval()
        with on_device(self.model), torch.no_grad():
            return self._logprobs(self.model, samples, temperature)

    def reference_logprobs(self, samples: Sequence[Rollout], temperature: float) -> Tensor:
        """[tokens] log π_ref of every sampled token."""
        assert self._reference is not None
        # In this order: what peft changes on the shards (requires_grad) it has to change back on the shards.
        with frozen(self._reference.body), on_device(self._reference):
            return self._logprobs(self._reference, samples, temperature)

    def _logprobs(self, model: PolicyModel, samples: Sequence[Rollout], temperature: float) -> Tensor:
        def compute(batch: MicroBatch) -> Tensor:
            statistics: TokenStatistics = model(batch, temperature=temperature)
            return statistics.logprobs

        batches = self._micro_batches(samples, self._ranks)
        return in_row_order(batches, compute, completion_lengths(samples), self._ranks)

    def _micro_batches(self, samples: Sequence[Rollout], ranks: DataParallelGroup = ALONE) -> Iterator[MicroBatch]:
        language_model = self.language_model
        return micro_batches(
            samples,
            token_budget=self._settings.micro_batch_tokens,
            pad_id=language_model.pad_id,
            device=device_of(self.model),
            layout=self._layout,
            ranks=ranks,
        )

    def update(self, batch: TrainingBatch, now: StepSettings) -> dict[str, float]:
        """`optimizer.update_epochs` passes over a batch, each of `optimizer.num_mini_batches` updates.

        Args:
            batch: whole groups, with advantages.
            now: learning rate, temperature and KL coefficient of this step.

        Returns:
            Metrics `actor/*`.

        Raises:
            UpdateError: after `optimizer.max_nonfinite_updates` updates in a row that were not finite. Each was
            skipped.
        """
        single_update = self._settings.num_mini_batches == self._settings.update_epochs == 1
        assert batch.old_logprobs is not None or single_update
        tally = MetricAccumulator()
        with self._updating(changed=True):
            for mini_batch in batch.mini_batches(self._settings):
                self._update_mini_batch(mini_batch, now, tally)
            self._optimizer.end()
        tally.gather(self._ranks)
        return {"actor/lr": now.learning_rate, **_metrics(tally)}

    @contextmanager
    def _updating(self, *, changed: bool) -> Iterator[None]:
        """Within, all that an update needs is on the device."""
        with ExitStack() as stack:
            stack.enter_context(on_device(self.model, changed=changed))
            stack.enter_context(self._optimizer.on_device(changed=changed))
            if self._reference is not None and not self._algorithm.kl_in_reward:
                stack.enter_context(on_device(self._reference))
            yield

    def warm_up(self, now: StepSettings, most: int | None = None) -> None:
        """Let the allocator meet its largest micro-batch first, so that later ones find room in what it has then.

        A whole forward and backward pass over made-up completions, and one over a few short ones, so that the update's
        passes are compiled by then where sequences are packed; nothing is learnt.

        Args:
            now: of the first step.
            most: tokens that a micro-batch can have, where a mini-batch does not fill the budget; None = it does.
        """
        self.model.eval()
        line, context = self._ranks.line, self.language_model.context
        budget = self._settings.micro_batch_tokens * (1 if line is None else line.count)
        budget = budget if most is None else min(budget, most)
        few = min(self._max_tokens, SMALL // 5)  # so that there are several, of unequal length as ever
        with self._updating(changed=False):
            for size, longest in ((budget, self._max_tokens), (min(budget, SMALL), few)):
                samples = fill_budget(size, longest, context=context)
                lengths = completion_lengths(samples)
                part = TrainingBatch.of(samples, advantages=torch.zeros(int(lengths.sum())))
                for batch in self._micro_batches(samples, DataParallelGroup(line=line)):
                    weight = torch.zeros(int(lengths[batch.rows].sum()), device=batch.tokens.device)
                    loss = self._token_losses(batch, part.select(batch.rows), weight, now, MetricAccumulator())
                    (weight * loss).sum().backward()
            self._optimizer.begin()

    def _update_mini_batch(self, mini_batch: TrainingBatch, now: StepSettings, tally: MetricAccumulator) -> None:
        # Not train(): dropout would blur the ratios to the old log-probabilities, which were found without.
        self.model.eval()
        self._optimizer.begin()
        # The weights know the whole mini-batch: however it is split, the gradients add up to the same.
        of_completions = token_weights(
            mini_batch.lengths, self._algorithm.loss_aggregation, max_tokens=self._max_tokens
        )
        weights = ragged.repeat_to_tokens(of_completions, mini_batch.lengths)  # [tokens]
        for batch in self._micro_batches(mini_batch.rollouts, self._ranks):
            weight = ragged.select(weights, mini_batch.lengths, batch.rows)
            weight = batching.to_device(torch.zeros_like(weight) if batch.filler else weight, batch.tokens.device)
            part, measured = mini_batch.select(batch.rows), MetricAccumulator() if batch.filler else tally
            loss = self._token_losses(batch, part, weight, now, measured)
            (weight * loss).sum().backward()
        tally.end_mini_batch(self._optimizer.step(now.learning_rate))

    def _token_losses(
        self, batch: MicroBatch, part: TrainingBatch, weight: Tensor, now: StepSettings, tally: MetricAccumulator
    ) -> Tensor:
        """[tokens] the whole loss of each token of a micro-batch; its `weight` [tokens] is for the metrics alone."""
        algorithm = self._algorithm
        there = partial(batching.to_device, device=batch.tokens.device)
        statistics: TokenStatistics = self.model(
            batch,
            temperature=now.temperature,
            reference=None if algorithm.kl_in_reward else self._reference,
            estimator=algorithm.kl_estimator,
            entropy_gradient=algorithm.entropy_coefficient > 0,
        )
        current = statistics.logprobs.detach()
        assert part.advantages is not None
        inputs = LossInputs(
            old_logprobs=current if part.old_logprobs is None else there(part.old_logprobs),
            advantages=there(part.advantages),
            lengths=batch.lengths,
            clip_low=algorithm.clip_ratio_low,
            clip_high=algorithm.clip_ratio_high,
            dual_clip=algorithm.dual_clip_c,
        )
        loss, metrics = policy_objective(
            statistics,
            inputs,
            policy_loss=self._policy_loss,
            algorithm=algorithm,
            kl_coefficient=now.kl_coefficient,
            is_weights=None if part.is_weights is None else there(part.is_weights),
        )
        # Entropy, KL and fractions are means over tokens, whatever the weights.
        tally.add_weighted(pg_loss=weight * metrics.pop("pg_loss"))
        tally.keep(log_ratio=metrics.pop("log_ratio"), ratio=metrics.pop("ratio"))
        tally.add(**metrics)
        if part.engine_logprobs is not None and not tally.began:  # later the policy has moved
            tally.keep(before=current, engine=part.engine_logprobs)
        return loss

    def export(self, directory: Path) -> None:
        """Write the model as others load it; see `save_model`."""
        save_model(directory, self.language_model)

    def save(self, directory: Path) -> None:
        """Write the optimiser's moments."""
        self._optimizer.save(directory, OPTIMIZER)

    def load(self, directory: Path) -> None:
        """Read what `save` wrote; the weights are loaded with the model."""
        self._optimizer.load(directory, OPTIMIZER)


def _metrics(tally: MetricAccumulator) -> dict[str, float]:
    """Under verl's names; empty if nothing counted in the loss."""
    log_ratios, ratios, before, engine = map(tally.column, ("log_ratio", "ratio", "before", "engine"))
    if log_ratios is None or ratios is None:
        return {}
    found = tally.aggregated() | tally.means() | tally.updates()
    return {
        **{f"actor/{name}": value for name, value in found.items()},
        "actor/ppo_kl": -log_ratios.mean().item(),
        "actor/is_log_ratio/std": log_ratios.std(correction=0).item(),
        "actor/ratio/mean": ratios.mean().item(),
        "actor/ratio/std": ratios.std(correction=0).item(),
        "actor/ratio/p95": ratios.kthvalue(max(1, round(0.95 * len(ratios)))).values.item(),
        **({} if before is None or engine is None else mismatch_metrics(before, engine)),
    }
