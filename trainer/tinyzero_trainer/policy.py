"""The policy: the model that is trained, its optimiser, and one update from a scored batch."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel

from tinyzero_trainer import ragged
from tinyzero_trainer.batching import MicroBatch, micro_batches, mini_batch_rows
from tinyzero_trainer.config import AlgorithmConfig, OptimizerConfig
from tinyzero_trainer.experience import Experience
from tinyzero_trainer.forward import keeps_packed_apart, sampled_logprobs, token_statistics
from tinyzero_trainer.losses import Surroundings, find_policy_loss, token_weights
from tinyzero_trainer.mismatch import mismatch_metrics
from tinyzero_trainer.models import LanguageModel, ModelError
from tinyzero_trainer.optimizing import Optimizer
from tinyzero_trainer.records import Sample
from tinyzero_trainer.schedules import StepSettings

OPTIMIZER_FILE = "optimizer.safetensors"


class Policy:
    """A model with its optimiser."""

    def __init__(
        self,
        language_model: LanguageModel,
        *,
        algorithm: AlgorithmConfig,
        optimizer: OptimizerConfig,
        max_tokens: int,
        reference: PreTrainedModel | None,
    ) -> None:
        """
        Args:
            language_model: trained in place, in float32.
            algorithm: the loss.
            optimizer: the step.
            max_tokens: longest completion, the constant divisor of `seq-mean-token-sum-norm`.
            reference: what the KL term is measured to; needed if and only if its coefficient is above 0.

        Raises:
            ModelError: `optimizer.layout=packed` with an architecture that cannot keep packed sequences apart.
        """
        assert (reference is not None) == (algorithm.kl_coefficient > 0)
        self.language_model = language_model
        self._algorithm, self._settings = algorithm, optimizer
        self._policy_loss = find_policy_loss(algorithm.policy_loss)
        self._max_tokens, self._reference = max_tokens, reference
        self._optimizer = Optimizer(language_model.model, optimizer)
        if optimizer.layout == "packed" and not keeps_packed_apart(language_model.model):
            raise ModelError(
                f"{language_model.name} lets packed sequences see each other, so optimizer.layout='packed' would train "
                "it on something else; take padded"
            )

    def logprobs(self, samples: Sequence[Sample], temperature: float) -> Tensor:
        """[tokens] log π of every sampled token under the present weights."""
        return self._sampled_logprobs(self.language_model.model, samples, temperature)

    def reference_logprobs(self, samples: Sequence[Sample], temperature: float) -> Tensor:
        """[tokens] log π_ref of every sampled token."""
        assert self._reference is not None
        return self._sampled_logprobs(self._reference, samples, temperature)

    def _sampled_logprobs(self, model: PreTrainedModel, samples: Sequence[Sample], temperature: float) -> Tensor:
        model.eval()
        parts: list[Tensor] = [torch.empty(0)] * len(samples)
        for batch in self._micro_batches(samples):
            found = sampled_logprobs(model, batch, temperature=temperature).cpu()
            for row, part in zip(batch.rows, found.split(batch.lengths.tolist()), strict=True):
                parts[row] = part
        return torch.cat(parts)

    def _micro_batches(self, samples: Sequence[Sample]) -> Iterator[MicroBatch]:
        language_model = self.language_model
        return micro_batches(
            samples,
            token_budget=self._settings.micro_batch_tokens,
            pad_id=language_model.pad_id,
            device=language_model.model.device,
            layout=self._settings.layout,
        )

    def update(self, experience: Experience, *, group_size: int, now: StepSettings) -> dict[str, float]:
        """`optimizer.epochs` passes over a batch, each of `optimizer.mini_batches` updates.

        Args:
            experience: whole groups, one after another.
            group_size: completions of a prompt.
            now: what holds in this step.

        Returns:
            Metrics `actor/*`.

        Raises:
            UpdateError: after `optimizer.max_bad_steps` updates in a row that were not finite. Each was skipped.
        """
        count = len(experience.samples)
        assert count % group_size == 0, "a group was cut in two"
        assert experience.old_logprobs is not None or self._settings.mini_batches == self._settings.epochs == 1
        tally = _Tally()
        for _ in range(self._settings.epochs):
            for rows in mini_batch_rows(count // group_size, group_size, self._settings.mini_batches):
                counted = experience.counted(rows)
                if counted:
                    self._update_mini_batch(experience.select(counted), now, tally)
        return {"actor/lr": now.learning_rate, **tally.metrics()}

    def _update_mini_batch(self, experience: Experience, now: StepSettings, tally: "_Tally") -> None:
        model = self.language_model.model
        model.train()
        self._optimizer.begin()
        # The weights know the whole mini-batch: however it is split, the gradients add up to the same.
        weights = token_weights(experience.lengths, self._algorithm.aggregation, max_tokens=self._max_tokens)
        for batch in self._micro_batches(experience.samples):
            part, weight = experience.select(batch.rows), weights[torch.tensor(batch.rows)]
            loss = self._token_losses(batch, part, now, tally)
            (ragged.spread(weight.to(loss.device), batch.lengths) * loss).sum().backward()
        tally.end_mini_batch(self._optimizer.step(now.learning_rate))

    def _token_losses(self, batch: MicroBatch, part: Experience, now: StepSettings, tally: "_Tally") -> Tensor:
        """[tokens] the whole loss of each token of a micro-batch."""
        algorithm, device = self._algorithm, batch.tokens.device
        in_loss = algorithm.kl_in == "loss"
        statistics = token_statistics(
            self.language_model.model,
            batch,
            temperature=now.temperature,
            reference=self._reference if in_loss else None,
            estimator=algorithm.kl_estimator,
            entropy_gradient=algorithm.entropy_coefficient > 0,
        )
        current = statistics.logprobs.detach()
        surroundings = Surroundings(
            old_logprobs=current if part.old_logprobs is None else part.old_logprobs.to(device),
            advantages=part.advantages.to(device),
            lengths=batch.lengths,
            clip_low=algorithm.clip_low,
            clip_high=algorithm.clip_high,
            dual_clip=algorithm.dual_clip,
        )
        surrogate = self._policy_loss(statistics.logprobs, surroundings)
        loss = surrogate.loss if part.importance is None else part.importance.to(device) * surrogate.loss
        tally.add("pg_loss", loss)
        tally.add("pg_clipfrac", surrogate.clipped.float())
        tally.add("entropy", statistics.entropy)
        outside = (surrogate.ratio < 1 - algorithm.clip_low) | (surrogate.ratio > 1 + algorithm.clip_high)
        tally.add("is_clip/outside_frac", outside.float())
        tally.add_ratios(current, surroundings.old_logprobs, part.engine_logprobs)
        if statistics.divergence is not None:
            tally.add("kl_loss", statistics.divergence)
            # Plus: minimising the loss must draw the policy towards the reference.
            loss = loss + now.kl_coefficient * statistics.divergence
        if algorithm.entropy_coefficient:
            loss = loss - algorithm.entropy_coefficient * statistics.entropy
        return loss

    def save(self, directory: Path) -> None:
        """Write the optimiser's moments."""
        self._optimizer.save(directory / OPTIMIZER_FILE)

    def load(self, directory: Path) -> None:
        """Read what `save` wrote; the weights are loaded with the model."""
        self._optimizer.load(directory / OPTIMIZER_FILE)


class _Tally:
    """Sums over the tokens of an update, from which its metrics are made."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._log_ratios: list[Tensor] = []
        self._before: list[tuple[Tensor, Tensor]] = []  # log π and the engine's, before any optimiser update
        self._norms: list[float] = []

    def add(self, name: str, values: Tensor) -> None:
        """Add one value a token."""
        self._sums[name] = self._sums.get(name, 0.0) + values.detach().sum().item()

    def add_ratios(self, logprobs: Tensor, old_logprobs: Tensor, engine_logprobs: Tensor | None) -> None:
        """Compare the policy with what it was and, if the engine was asked, with what the tokens were sampled from."""
        self._log_ratios.append((logprobs - old_logprobs).cpu())
        if engine_logprobs is not None and not self._norms:  # later the policy has moved
            self._before.append((logprobs.cpu(), engine_logprobs))

    def end_mini_batch(self, norm: Tensor) -> None:
        """Take the gradient's norm before clipping."""
        self._norms.append(norm.item())

    def metrics(self) -> dict[str, float]:
        """Means over tokens, under verl's names; empty if nothing counted in the loss."""
        if not self._log_ratios:
            return {}
        log_ratios = torch.cat(self._log_ratios)
        ratios = log_ratios.exp()
        skipped = sum(norm != norm or norm == float("inf") for norm in self._norms)
        return {
            **{f"actor/{name}": total / len(log_ratios) for name, total in self._sums.items()},
            "actor/ppo_kl": -log_ratios.mean().item(),
            "actor/is_log_ratio/mean": log_ratios.mean().item(),
            "actor/is_log_ratio/std": log_ratios.std(correction=0).item(),
            "actor/is_ratio/mean": ratios.mean().item(),
            "actor/is_ratio/std": ratios.std(correction=0).item(),
            "actor/is_ratio/p95": ratios.kthvalue(max(1, round(0.95 * len(ratios)))).values.item(),
            "actor/grad_norm": sum(self._norms) / len(self._norms),
            "actor/skipped_updates": float(skipped),
            **(mismatch_metrics(*map(torch.cat, zip(*self._before, strict=True))) if self._before else {}),
        }
