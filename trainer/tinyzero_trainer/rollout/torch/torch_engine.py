"""The rollout engine for any causal LM on any device; nothing to install, the weights are the policy's own."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from tinyzero_trainer.models.loading import LanguageModel
from tinyzero_trainer.rollout.torch.batch_state import BatchState
from tinyzero_trainer.rollout.torch.batched_engine import BatchedEngine
from tinyzero_trainer.rollout.torch.cost_model import FEW_SEQUENCES
from tinyzero_trainer.rollout.torch.decoder import build_decoder
from tinyzero_trainer.rollout.torch.scheduler import Scheduler


class TorchEngine(BatchedEngine):
    """Generates with the policy's own model; the completions of one prompt share its prefill.

    Its sequences grow together, so others join only when all enter again, with keys and values computed anew: where few
    are left, and after new weights (as in AReaL, arXiv 2505.24298). So a resumed run, which has tokens only, goes on
    alike.

    Example:
        engine = TorchEngine(load_model("tiny", torch.device("cpu")))
        engine.generate([[5, 6, 7]], 8, SamplingParams(max_tokens=64), seed=0)
    """

    shares_weights = True
    check_every = 8  # copying the cache costs about as much as a step
    refills = False

    def __init__(self, language_model: LanguageModel, *, max_num_seqs: int = FEW_SEQUENCES) -> None:
        """
        Args:
            language_model: the policy's; call `load_weights` after its weights have changed.
            max_num_seqs: sequences generated at a time.
        """
        super().__init__()
        self._model, self._pad_id = language_model.model, language_model.pad_id
        self._eos_ids, self._max_num_seqs = language_model.eos_ids, max_num_seqs
        self._decoder = build_decoder(self._model)
        self._device = next(self._model.parameters()).device

    def load_weights(self, version: int = 0) -> None:
        self._suspend()
        self._decoder.load_weights()
        super().load_weights(version)

    @contextmanager
    def _session(self) -> Iterator[None]:
        was_training = self._model.training
        self._model.eval()
        try:
            with torch.inference_mode():
                yield
        finally:
            self._model.train(was_training)

    def _reserve(self, scheduler: Scheduler) -> int:
        largest = max(len(request.group.completions) for request in scheduler.waiting)
        slots = min(len(scheduler.waiting), max(self._max_num_seqs, largest))
        longest = max(request.group.max_tokens for request in scheduler.waiting)
        self._state = BatchState(slots, longest, self._eos_ids, self._device)
        return slots

    def _leave_slots(self) -> None:
        self._decoder.end()

    def _prefill(self, contexts: Sequence[list[int]], rows: Sequence[int], slots: Tensor) -> None:
        longest = max(map(len, contexts))
        tokens = [[self._pad_id] * (longest - len(context)) + context for context in contexts]
        mask = [[0] * (longest - len(context)) + [1] * len(context) for context in contexts]
        tensors = torch.tensor(tokens, device=self._device), torch.tensor(mask, device=self._device)
        self._work_on(slots)
        logits = self._decoder.start(*tensors, torch.tensor(rows, device=self._device).bincount())
        self._state.sample(logits, self._rows, self._params)

    def _work_on(self, running: Tensor, kept: Tensor | None = None) -> None:
        self._rows = len(running)
        self._state.set_rows(running, self._rows)
        if kept is not None:
            self._decoder.keep(kept.to(self._device))

    def _finished(self) -> tuple[Tensor, int] | None:
        return self._state.finished.cpu(), self._steps

    def _step(self, index: int) -> None:
        state, self._steps = self._state, index
        logits = self._decoder.step(state.last_token[state.slot_ids[: self._rows]])
        state.sample(logits, self._rows, self._params)
