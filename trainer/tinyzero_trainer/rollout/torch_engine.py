"""The rollout engine for any causal LM on any device; nothing to install, the weights are the policy's own."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from tinyzero_trainer.estimate.engine_memory import FEW_SEQUENCES
from tinyzero_trainer.models.loading import LanguageModel
from tinyzero_trainer.rollout.batch_state import BatchState
from tinyzero_trainer.rollout.batched_engine import BatchedEngine
from tinyzero_trainer.rollout.decoder import build_decoder
from tinyzero_trainer.rollout.engine import PromptBatch, SamplingParams

DROP_EVERY = 8
"""Steps between removals of finished sequences: copying the cache costs about as much as a step."""


class TorchEngine(BatchedEngine):
    """Generates with the policy's own model; the completions of one prompt share its prefill.

    Example:
        engine = TorchEngine(load_model("tiny", torch.device("cpu")))
        engine.generate([[5, 6, 7]], 8, SamplingParams(max_tokens=64), seed=0)
    """

    def __init__(self, language_model: LanguageModel, *, max_num_seqs: int = FEW_SEQUENCES) -> None:
        """
        Args:
            language_model: the policy's; call `load_weights` after its weights have changed.
            max_num_seqs: sequences generated at a time.
        """
        self._model, self._pad_id = language_model.model, language_model.pad_id
        self._eos_ids, self._max_num_seqs = language_model.eos_ids, max_num_seqs
        self._decoder = build_decoder(self._model)
        self._device = next(self._model.parameters()).device

    def load_weights(self) -> None:
        self._decoder.load_weights()

    def sleep(self) -> None:
        """Nothing to free: no memory is kept between two calls."""

    def close(self) -> None:
        """Nothing to free."""

    @contextmanager
    def _session(self) -> Iterator[None]:
        was_training = self._model.training
        self._model.eval()
        try:
            with torch.inference_mode():
                yield
        finally:
            self._decoder.end()
            self._model.train(was_training)

    def _reserve(self, batch: PromptBatch) -> tuple[BatchState, int]:
        size = batch.samples * min(len(batch.prompts), max(1, self._max_num_seqs // batch.samples))
        return BatchState(size, batch.params.max_tokens, self._eos_ids, self._device), size

    def _prefill(self, state: BatchState, batch: PromptBatch, prompt_indices: list[int]) -> None:
        prompts = batch.prompts[prompt_indices[0] : prompt_indices[-1] + 1]
        longest = max(map(len, prompts))
        tokens = [[self._pad_id] * (longest - len(prompt)) + prompt for prompt in prompts]
        mask = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts]
        tensors = torch.tensor(tokens, device=self._device), torch.tensor(mask, device=self._device)
        self._rows = len(prompt_indices)
        state.set_rows(torch.arange(self._rows), self._rows)
        state.sample(self._decoder.start(*tensors, self._rows // len(prompts)), self._rows, batch.params)

    def _finished(self, state: BatchState, index: int) -> Tensor | None:
        return None if index % DROP_EVERY else state.finished.cpu()

    def _keep(self, state: BatchState, active: Tensor, kept: Tensor, params: SamplingParams) -> None:
        self._rows = len(active)
        state.set_rows(active, self._rows)
        self._decoder.keep(kept.to(self._device))

    def _step(self, state: BatchState, index: int, params: SamplingParams) -> None:
        logits = self._decoder.step(state.last_token[state.slot_ids[: self._rows]])
        state.sample(logits, self._rows, params)
