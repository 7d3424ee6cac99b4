"""The decoding loop of `rollout.engine=torch`, on any device: slots, sampling, dropping finished sequences.

How the model runs is up to the subclasses: torch_engine.py, cuda_graph/engine.py. What is in which slot is in
scheduler.py.
"""

from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import ClassVar

import torch
from torch import Tensor

from tinyzero_trainer.rollout.engine import Group, OnProgress, SamplingEngine, SamplingParams
from tinyzero_trainer.rollout.torch.batch_state import BatchState
from tinyzero_trainer.rollout.torch.scheduler import Request, Sampled, Scheduler

REFILL_PART = 12  # slots are refilled when one in so many is free: reading prompts interrupts others for about a step
ADVANCE_CHECKS = 8  # checks for finished sequences in one call of `advance`, at most


class BatchedEngine(SamplingEngine):
    """Decodes many sequences at a time; finished ones leave every few steps, and others take their slots."""

    check_every: ClassVar[int]  # steps between two checks for finished sequences
    refills: ClassVar[bool]  # whether sequences enter while others are running
    _state: BatchState
    _slots: int
    _params: SamplingParams

    def __init__(self) -> None:
        self._scheduler = Scheduler(self._read)

    def submit(self, groups: Sequence[Group]) -> None:
        self._scheduler.add(groups)

    def advance(self, params: SamplingParams, on_progress: OnProgress = lambda _: None) -> list[Group]:
        scheduler = self._scheduler
        with self._session():
            for _ in range(ADVANCE_CHECKS):
                pending = scheduler.pending_reads
                on_progress(self._decode(params) if scheduler.unfinished else 0)
                scheduler.settle(pending if scheduler.unfinished else None)
                if complete := scheduler.take():
                    return complete
        return []

    def unfinished(self) -> list[Group]:
        with self._session():
            return self._scheduler.snapshot()

    @contextmanager
    def isolated(self) -> Iterator[None]:
        self._suspend()
        before, self._scheduler = self._scheduler, Scheduler(self._read, starts_anew=False)
        try:
            yield
        finally:
            self._scheduler = before
            self._leave_slots()

    def load_weights(self, version: int = 0) -> None:
        """After the subclass has taken over the weights: what is sampled from now on has this version."""
        super().load_weights(version)
        self._scheduler.mark(version)

    def _suspend(self) -> None:
        """Empty the slots; what was submitted enters them again when it goes on."""
        if self._scheduler.running:
            with self._session():
                self._scheduler.suspend()
            self._leave_slots()

    def _decode(self, params: SamplingParams) -> int:
        """Decode up to the next check, or to a limit of the lengths; how many sequences have left their slots.

        Free slots are refilled after the steps were launched: on a GPU these run while the host prepares what enters.
        """
        self._params, scheduler = params, self._scheduler
        if scheduler.running and scheduler.waiting and (not self._has_room(scheduler) or self._starts_anew(scheduler)):
            scheduler.suspend()
        anew = not scheduler.running
        if anew:
            self._slots = self._reserve(scheduler)
            scheduler.set_slots(self._slots)
            self._state.clear()
        self._state.set_params(params)
        if anew:
            self._refill(scheduler)
        # A decoder without slots goes on with all of its rows: past its limit, one may leave the model's context.
        due, limit = False, scheduler.limit(max if self.refills else min)
        while not due and scheduler.steps < limit:
            self._step(scheduler.steps + 1)
            scheduler.steps += 1
            due = (scheduler.steps + 1) % self.check_every == 0
        if self.refills and not anew:
            self._refill(scheduler)
        slots = scheduler.at_limit()
        if due and (check := self._finished()) is not None:
            finished, steps = check
            ended = finished.tolist()  # reading the tensor's elements one by one would take longer than the steps
            # What has entered since then is in the slot of another, which was finished.
            slots |= {request.slot for request in scheduler.running if ended[request.slot] and request.entered < steps}
        if slots:
            kept = scheduler.leave(slots)
            if scheduler.running:
                self._work_on(torch.tensor([request.slot for request in scheduler.running]), torch.tensor(kept))
        return len(slots)

    def _starts_anew(self, scheduler: Scheduler) -> bool:
        """Whether the contexts of all are read again, so that others can join them, where only few are left."""
        if self.refills or not scheduler.starts_anew:
            return False
        running = len(scheduler.running)
        return 2 * running <= self._slots and scheduler.next_size() <= self._slots - running

    def _refill(self, scheduler: Scheduler) -> None:
        """Let sequences that wait enter free slots, and sample a token of each."""
        entering = scheduler.next_to_enter(least=max(1, self._slots // REFILL_PART))
        if not entering:
            return
        slots = scheduler.enter(entering, self.version)
        contexts, rows = list[list[int]](), list[int]()
        for context in (request.context for request in entering):
            if not contexts or context != contexts[-1]:
                contexts.append(context)
            rows.append(len(contexts) - 1)
        self._state.enter(entering)
        self._prefill(contexts, rows, torch.tensor(slots))
        self._work_on(torch.tensor([request.slot for request in scheduler.running]))

    def _read(self, requests: Sequence[Request]) -> Callable[[], Sampled]:
        return self._state.read(requests, logprobs=self._params.logprobs)

    @abstractmethod
    def _session(self) -> AbstractContextManager[None]:
        """The context in which the model runs."""

    @abstractmethod
    def _reserve(self, scheduler: Scheduler) -> int:
        """Allocate `_state` and other buffers for what waits, while nothing is running; the number of slots."""

    def _has_room(self, scheduler: Scheduler) -> bool:
        """Whether the buffers are large enough for the sequences that wait."""
        return True

    def _leave_slots(self) -> None:  # buffers may stay
        """Nothing is in a slot any more."""

    @abstractmethod
    def _prefill(self, contexts: Sequence[list[int]], rows: Sequence[int], slots: Tensor) -> None:
        """Read contexts into slots (on the CPU), slot i the context `rows[i]`, and sample a token of each slot."""

    @abstractmethod
    def _work_on(self, running: Tensor, kept: Tensor | None = None) -> None:
        """Let the next steps work on these slots [n]: the new ones are last, or `kept` [n] are their former places."""

    @abstractmethod
    def _finished(self) -> tuple[Tensor, int] | None:
        """`BatchState.finished` on the CPU, and after how many steps it was so; None = not known at present."""

    @abstractmethod
    def _step(self, index: int) -> None:
        """Sample a token of every sequence; `index` counts the steps since nothing was running, from 1."""
