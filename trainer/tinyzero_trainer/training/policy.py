"""The policy: the trained model with its optimizer, and an update from a batch with advantages."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tinyzero_trainer.algorithms.batch import TrainingBatch
from tinyzero_trainer.algorithms.losses import LossInputs, find_policy_loss, token_weights
from tinyzero_trainer.algorithms.rollout_correction import mismatch_metrics
from tinyzero_trainer.algorithms.schedules import StepSettings
from tinyzero_trainer.config import AlgorithmConfig, OptimizerConfig
from tinyzero_trainer.distributed.fsdp import device_of, on_device, set_gradient_sync
from tinyzero_trainer.distributed.groups import DataParallelGroup
from tinyzero_trainer.models.loading import LanguageModel, save_model
from tinyzero_trainer.monitoring.performance import GpuMemoryUsage, memory_usage
from tinyzero_trainer.training.learner import Learner
from tinyzero_trainer.training.logprobs import PolicyModel, TokenStatistics, frozen
from tinyzero_trainer.training.micro_batches import MicroBatch, fill_budget, in_batch_order, to_device
from tinyzero_trainer.training.objective import policy_objective
from tinyzero_trainer.training.update_metrics import MetricAccumulator
from tinyzero_trainer.types import Rollout

OPTIMIZER = "optimizer"
"""In a checkpoint: a file, or with several ranks a directory."""

SMALL = 256
"""Tokens of the smaller warm-up micro-batch. Below some tokens · hidden size, 5 · 2²⁰ in PyTorch 2.11, compiled layers
use other kernels. The last micro-batch of a mini-batch is often that small, and must not stop a step to compile."""


class Policy(Learner):
    """A language model with its optimizer; each rank computes its shard of a batch, and returns the results of all."""

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
            language_model: trained in place, in float32; already sharded if it ever is.
            max_tokens: longest completion, the constant divisor of `seq-mean-token-sum-norm`.
            reference: what the KL is measured to; the policy's own model stands for itself with its adapter off.
        """
        assert (reference is not None) == (algorithm.kl_coefficient > 0)
        self.language_model, self.model = language_model, PolicyModel.of(language_model.model)
        self._algorithm, self._policy_loss = algorithm, find_policy_loss(algorithm.policy_loss)
        self._max_tokens, self._reference = max_tokens, reference
        self._entropies: Tensor | None = None
        super().__init__(self.model, language_model.model, language_model, optimizer)

    @property
    def world_size(self) -> int:
        return self._ranks.world_size

    def gpu_memory(self) -> list[GpuMemoryUsage]:
        use = memory_usage(device_of(self.model))
        return [] if use is None else [use]

    def logprobs(self, rollouts: Sequence[Rollout], temperature: float) -> Tensor:
        """[tokens] log π of every sampled token under the current weights."""
        self.model.eval()
        with on_device(self.model), torch.no_grad():
            return self._logprobs(self.model, rollouts, temperature)

    def reference_logprobs(self, rollouts: Sequence[Rollout], temperature: float) -> Tensor:
        """[tokens] log π_ref of every sampled token."""
        assert self._reference is not None
        # In this order: what peft changes on the shards (requires_grad) it has to change back on the shards.
        with frozen(self._reference.body), on_device(self._reference):
            return self._logprobs(self._reference, rollouts, temperature)

    def _logprobs(self, model: PolicyModel, rollouts: Sequence[Rollout], temperature: float) -> Tensor:
        batches = self._micro_batches(rollouts)
        return in_batch_order(
            batches, lambda batch: model(batch, temperature=temperature).logprobs, rollouts, self._ranks
        )

    def update(self, batch: TrainingBatch, settings: StepSettings) -> dict[str, float]:
        """`optimizer.update_epochs` passes over a batch, each of `optimizer.num_mini_batches` updates.

        The batch is of whole groups, with advantages. Returns the metrics `actor/*`.
        """
        single_update = self._settings.num_mini_batches == self._settings.update_epochs == 1
        assert batch.old_logprobs is not None or single_update
        batch = replace(batch, indices=())  # those of its parts are in itself
        weights_of = partial(token_weights, mode=self._algorithm.loss_aggregation, max_tokens=self._max_tokens)
        losses_of = partial(self._token_losses, settings)
        with self._updating(changed=True):
            metrics = self._update(batch, settings.learning_rate, weights_of, losses_of)
        metrics.gather(self._ranks)
        self._entropies = _entropies(metrics, batch.lengths)
        return {"actor/lr": settings.learning_rate, **_metrics(metrics)}

    def entropies(self) -> Tensor | None:
        """[tokens] `TrainingBatch.entropies` of the last update, in its last pass; None if it trained on nothing."""
        return self._entropies

    @contextmanager
    def _updating(self, *, changed: bool) -> Iterator[None]:
        """Within, everything an update needs is on the device."""
        reference = None if self._algorithm.kl_in_reward else self._reference
        reference_on_device = nullcontext() if reference is None else on_device(reference)
        with on_device(self.model, changed=changed), self._optimizer.on_device(changed=changed), reference_on_device:
            yield

    def warm_up(self, settings: StepSettings, most: int | None = None, *, accumulates: bool = False) -> None:
        """Run the largest micro-batch once, so that the allocator reserves its blocks, then a small one: all compiles.

        Nothing is trained. `most` is the most tokens of a micro-batch, where a mini-batch does not fill the budget, or
        a sequence is longer; `accumulates`: see `Optimizer.start`.
        """
        self.model.eval()
        group, context = self._ranks.sequence_group, self.language_model.context
        budget = most or self.micro_batch_tokens * (1 if group is None else group.size)
        short = min(self._max_tokens, SMALL // 5)  # several of them, of unequal length as in training
        with self._updating(changed=False):
            self._optimizer.start(accumulates=accumulates)
            for last, size, longest in ((not accumulates, budget, self._max_tokens), (True, min(budget, SMALL), short)):
                set_gradient_sync(self.model, last=last)
                rollouts = fill_budget(size, longest, context=context)
                tokens = sum(len(rollout.generation.token_ids) for rollout in rollouts)
                whole = TrainingBatch.of(rollouts, advantages=torch.zeros(tokens))
                for batch in self._micro_batches(rollouts, ranks=DataParallelGroup(sequence_group=group)):
                    part = whole.select(batch.indices)
                    weight = torch.zeros(int(part.lengths.sum()), device=batch.tokens.device)
                    loss = self._token_losses(settings, batch, part, weight, MetricAccumulator())
                    (weight * loss).sum().backward()
            self._optimizer.zero_grad()

    def _token_losses(
        self, settings: StepSettings, batch: MicroBatch, part: TrainingBatch, weight: Tensor, metrics: MetricAccumulator
    ) -> Tensor:
        """The policy loss of each token, with KL and entropy terms; a `TokenLosses`."""
        algorithm = self._algorithm
        on_batch_device = partial(to_device, device=batch.tokens.device)
        statistics: TokenStatistics = self.model(
            batch,
            temperature=settings.temperature,
            reference=None if algorithm.kl_in_reward else self._reference,
            estimator=algorithm.kl_estimator,
            entropy_gradient=algorithm.entropy_coefficient > 0,
        )
        current = statistics.logprobs.detach()
        assert part.advantages is not None
        inputs = LossInputs(
            old_logprobs=current if part.old_logprobs is None else on_batch_device(part.old_logprobs),
            advantages=on_batch_device(part.advantages),
            lengths=batch.lengths,
            clip_ratio_low=algorithm.clip_ratio_low,
            clip_ratio_high=algorithm.clip_ratio_high,
            dual_clip_c=algorithm.dual_clip_c,
        )
        loss, values = policy_objective(
            statistics,
            inputs,
            policy_loss=self._policy_loss,
            entropy_coefficient=algorithm.entropy_coefficient,
            kl_coefficient=settings.kl_coefficient,
            is_weights=None if part.is_weights is None else on_batch_device(part.is_weights),
        )
        # Entropy, KL and fractions are means over tokens, whatever the weights.
        metrics.add_weighted_sum(pg_loss=weight * values.pop("pg_loss"))
        metrics.extend(log_ratio=values.pop("log_ratio"), ratio=values.pop("ratio"), entropy=values["entropy"])
        metrics.extend(indices=torch.tensor(part.indices))
        metrics.add(**values)
        if part.engine_logprobs is not None and not metrics.mini_batches:
            metrics.extend(before=current, engine=part.engine_logprobs)
        return loss

    def export(self, directory: Path) -> None:
        save_model(directory, self.language_model)

    def save(self, directory: Path) -> None:
        """Write the optimizer's moments."""
        self._optimizer.save(directory, OPTIMIZER)

    def load(self, directory: Path) -> None:
        """Read what `save` wrote; the weights are loaded with the model."""
        self._optimizer.load(directory, OPTIMIZER)


def _entropies(metrics: MetricAccumulator, lengths: Tensor) -> Tensor | None:
    values, indices = metrics.column("entropy"), metrics.column("indices")
    if values is None or indices is None:
        return None
    sizes, rows = lengths.tolist(), indices.tolist()
    # Of a completion in several passes the last part; whole parts, since an index for each token takes several times
    # as long.
    parts = dict(zip(rows, values.float().split([sizes[row] for row in rows]), strict=True))
    return torch.cat([parts[row] if row in parts else torch.full((size,), torch.nan) for row, size in enumerate(sizes)])


def _metrics(metrics: MetricAccumulator) -> dict[str, float]:
    """Under verl's names; empty if no token counted in the loss."""
    log_ratios, ratios, before, engine = map(metrics.column, ("log_ratio", "ratio", "before", "engine"))
    if log_ratios is None or ratios is None:
        return {}
    values = metrics.weighted_sums() | metrics.means() | metrics.updates()
    p95 = max(0, round(0.95 * len(ratios)) - 1)
    return {
        **{f"actor/{name}": value for name, value in values.items()},
        "actor/ppo_kl": -log_ratios.mean().item(),
        "actor/is_log_ratio/std": log_ratios.std(correction=0).item(),
        "actor/ratio/mean": ratios.mean().item(),
        "actor/ratio/std": ratios.std(correction=0).item(),
        "actor/ratio/p95": float(np.partition(ratios.numpy(), p95)[p95]),  # kthvalue takes ten times as long
        **({} if before is None or engine is None else mismatch_metrics(before, engine)),
    }
