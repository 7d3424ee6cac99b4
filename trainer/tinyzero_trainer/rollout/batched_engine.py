"""The decoding loop of `rollout.engine=torch`, on any device: slots, sampling, dropping finished sequences.

One loop serves `generate` and the groups that go on while the weights change. How the model runs is up to the
subclasses: torch_engine.py, cuda_graph/engine.py. What is in which slot is in decoding.py.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import ClassVar

import torch
from torch import Tensor

from tinyzero_trainer.rollout.batch_state import BatchState
from tinyzero_trainer.rollout.decoding import Decoded, Decoding, Sampled
from tinyzero_trainer.rollout.engine import (
    NOTHING,
    Group,
    Groups,
    OnProgress,
    PromptBatch,
    SamplingParams,
    StreamingEngine,
)

REFILL_PART = 16
"""Slots are refilled when one in so many is free: reading prompts interrupts the others for about a step."""

ADVANCE_CHECKS = 8
"""Checks for finished sequences in one call of `advance`, at most."""


class BatchedEngine(StreamingEngine, ABC):
    """Decodes many sequences at a time; finished ones leave every few steps, and others take their slots."""

    check_every: ClassVar[int]
    """Steps between two checks for finished sequences."""

    refills: ClassVar[bool]
    """Whether sequences enter while others are active."""

    concurrent = False
    version = 0
    """Of the weights."""

    _state: BatchState
    _slots: int
    _params: SamplingParams

    def __init__(self) -> None:
        self._stream = Decoding()  # what was submitted; in slots unless something else has needed these

    def generate_batch(self, batch: PromptBatch, on_progress: OnProgress) -> Groups:
        if not batch.prompts or not batch.samples:
            return [[] for _ in batch.prompts]
        decoding = Decoding(
            Group(place, prompt, (NOTHING,) * batch.samples, batch.params.max_tokens, batch.seed, batch.first + place)
            for place, prompt in enumerate(batch.prompts)
        )
        self._suspend()
        with self._session():
            try:
                while decoding.unfinished:
                    pending = decoding.pending_reads
                    on_progress(self._decode(decoding, batch.params, None))
                    decoding.settle(pending)
                decoding.settle()
            finally:
                self._leave_slots()
        return [list(group.completions) for group in sorted(decoding.take(), key=lambda group: group.number)]

    def submit(self, groups: Sequence[Group]) -> None:
        self._stream.add(groups)

    def advance(self, params: SamplingParams, on_progress: OnProgress = lambda _: None) -> list[Group]:
        stream = self._stream
        with self._session():
            for _ in range(ADVANCE_CHECKS):
                pending = stream.pending_reads
                on_progress(self._decode(stream, params, self.version) if stream.unfinished else 0)
                stream.settle(pending if stream.unfinished else None)
                if complete := stream.take():
                    return complete
        return []

    def unfinished(self) -> list[Group]:
        with self._session():
            return self._stream.snapshot(self._read)

    def load_weights(self, version: int = 0) -> None:
        """See `StreamingEngine`; sequences in slots go on, with the keys and values of their tokens so far."""
        self._load()
        self.version = version
        self._stream.mark(version)

    def _suspend(self) -> None:
        """Empty the slots; what was submitted enters them again when it goes on."""
        if self._stream.active:
            with self._session():
                self._stream.suspend(self._read)
            self._leave_slots()

    def _decode(self, decoding: Decoding, params: SamplingParams, version: int | None) -> int:
        """Decode up to the next check, or to the limit of a length; how many sequences have left their slots.

        `version` of the weights is recorded, unless it is None.
        """
        self._params = params
        if (
            decoding.active
            and decoding.waiting
            and (not self._has_room(decoding) or self._starts_anew(decoding, version))
        ):
            decoding.suspend(self._read)
        if not decoding.active:
            self._slots = self._reserve(decoding)
            decoding.set_slots(self._slots)
            self._state.clear()
        self._state.set_params(params)
        if self.refills or not decoding.active:
            self._refill(decoding, version)
        due = False
        while not due and not decoding.at_limit():
            self._step(decoding.steps + 1)
            decoding.steps += 1
            due = (decoding.steps + 1) % self.check_every == 0
        slots = decoding.at_limit()
        if due and (finished := self._finished()) is not None:
            ended = finished.tolist()  # reading the tensor's elements one by one would take longer than the steps
            slots |= {decoded.slot for decoded in decoding.active if ended[decoded.slot]}
        if slots:
            kept = decoding.leave(slots, self._read)
            if decoding.active:
                self._keep(torch.tensor([decoded.slot for decoded in decoding.active]), torch.tensor(kept))
        return len(slots)

    def _starts_anew(self, decoding: Decoding, version: int | None) -> bool:
        """Whether the contexts of all are read again, so that others can join them, where only few are left.

        Not in `generate`, where that would change the last bits of what is sampled.
        """
        few = 2 * len(decoding.active) <= self._slots and decoding.next_size() <= self._slots - len(decoding.active)
        return few and not self.refills and version is not None

    def _refill(self, decoding: Decoding, version: int | None) -> None:
        """Let sequences that wait enter free slots, and sample a token of each."""
        entering = decoding.next_to_enter(least=max(1, self._slots // REFILL_PART))
        if not entering:
            return
        slots = decoding.enter(entering, version)
        contexts, rows = list[list[int]](), list[int]()
        for place, each in enumerate(entering):
            before = entering[place - 1]
            # Completions of which nothing is sampled yet have the prompt in common.
            if not place or each.begun or before.begun or before.group is not each.group:
                contexts.append(each.context)
            rows.append(len(contexts) - 1)
        self._state.enter(entering)
        self._prefill(contexts, rows, torch.tensor(slots))
        self._work_on(torch.tensor([decoded.slot for decoded in decoding.active]))

    def _read(self, decoded: Sequence[Decoded]) -> Callable[[], Sampled]:
        return self._state.read(decoded, logprobs=self._params.logprobs)

    @abstractmethod
    def _load(self) -> None:
        """Take over the policy's current weights."""

    @abstractmethod
    def _session(self) -> AbstractContextManager[None]:
        """The context in which the model runs."""

    @abstractmethod
    def _reserve(self, decoding: Decoding) -> int:
        """Allocate `_state` and other buffers for what waits, while nothing is active; the number of slots."""

    @abstractmethod
    def _has_room(self, decoding: Decoding) -> bool:
        """Whether the buffers are large enough for the sequences that wait."""

    @abstractmethod
    def _leave_slots(self) -> None:
        """Nothing is in a slot any more."""

    @abstractmethod
    def _prefill(self, contexts: Sequence[list[int]], rows: Sequence[int], slots: Tensor) -> None:
        """Read contexts into slots (on the CPU), slot i the context `rows[i]`, and sample a token of each slot."""

    @abstractmethod
    def _work_on(self, active: Tensor) -> None:
        """After a prefill: let the next steps work on these slots [n], the new ones last."""

    @abstractmethod
    def _finished(self) -> Tensor | None:
        """`BatchState.finished` on the CPU, perhaps as it was some steps before; None = not known at present."""

    @abstractmethod
    def _keep(self, active: Tensor, kept: Tensor) -> None:
        """Drop finished sequences; `active` [n] are the slots of the others, `kept` [n] their places among the last."""

    @abstractmethod
    def _step(self, index: int) -> None:
        """Sample a token of every sequence; `index` counts the steps since nothing was active, from 1."""
