"""The decoding loop of `rollout.engine=torch`, on any device: batches, sampling, dropping finished sequences.

How the model runs is up to the subclasses: torch_engine.py, cuda_graph/engine.py.
"""

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager

import torch
from torch import Tensor

from tinyzero_trainer.rollout.batch_state import BatchState
from tinyzero_trainer.rollout.engine import Groups, OnProgress, PromptBatch, RolloutEngine, SamplingParams
from tinyzero_trainer.types import Generation


class BatchedEngine(RolloutEngine, ABC):
    """Generates batch by batch; finished sequences leave the batch every few steps."""

    def generate_batch(self, batch: PromptBatch, on_progress: OnProgress) -> Groups:
        prompts, samples = batch.prompts, batch.samples
        rows = len(prompts) * samples
        if not rows:
            return [[] for _ in prompts]
        flat: list[Generation] = []
        with self._session():
            state, size = self._reserve(batch)
            for start in range(0, rows, size):
                prompt_indices = [row // samples for row in range(start, min(rows, start + size))]
                lengths, first = [len(prompts[index]) for index in prompt_indices], batch.first * samples + start
                state.reset(lengths, first, batch.params, batch.seed)
                self._prefill(state, batch, prompt_indices)
                self._decode(state, len(prompt_indices), batch.params, on_progress)
                flat += state.generations(len(prompt_indices), batch.params)
        return [flat[row : row + samples] for row in range(0, rows, samples)]

    def _decode(self, state: BatchState, rows: int, params: SamplingParams, on_progress: OnProgress) -> None:
        """Everything after the first token of each row."""
        active = torch.arange(rows)  # slots, on the CPU
        for index in range(1, params.max_tokens):
            finished = self._finished(state, index)
            if finished is not None:
                kept = (finished[active] == 0).nonzero().squeeze(1)
                on_progress(len(active) - len(kept))
                if len(kept) < len(active):
                    active = active[kept]
                    if not len(active):
                        break
                    self._keep(state, active, kept, params)
            self._step(state, index, params)
        on_progress(len(active))

    @abstractmethod
    def _session(self) -> AbstractContextManager[None]:
        """The context in which the model runs."""

    @abstractmethod
    def _reserve(self, batch: PromptBatch) -> tuple[BatchState, int]:
        """Allocate buffers; returns the state and the number of rows (prompts × samples) per batch."""

    @abstractmethod
    def _prefill(self, state: BatchState, batch: PromptBatch, prompt_indices: list[int]) -> None:
        """Start rows, row i with prompt `prompt_indices[i]`; samples the first token of each."""

    @abstractmethod
    def _finished(self, state: BatchState, index: int) -> Tensor | None:
        """`BatchState.finished` on the CPU, before token `index` is sampled; None = not checked at this step."""

    @abstractmethod
    def _keep(self, state: BatchState, active: Tensor, kept: Tensor, params: SamplingParams) -> None:
        """Drop finished sequences; `active` [n] are the slots of the others, `kept` [n] their places among the last."""

    @abstractmethod
    def _step(self, state: BatchState, index: int, params: SamplingParams) -> None:
        """Sample token `index` of every sequence."""
