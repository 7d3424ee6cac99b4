"""A rollout engine that samples on in a thread, on a CUDA stream of its own, while the policy is trained.

New weights come between two tokens of what it is sampling: by `load_weights` alone if the engine has a copy of its own,
else they may only change while it is paused.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Condition, Lock

import torch

from tinyzero_trainer.rollout.engine import Completions, Group, OnProgress, PromptBatch, RolloutEngine, SamplingParams

POLL_SECONDS = 0.05  # for `advance` to wait for a group that is complete


class BackgroundEngine(RolloutEngine):
    """Decodes whenever something is submitted and no other method has the engine."""

    concurrent = True

    def __init__(self, engine: RolloutEngine, device: torch.device) -> None:
        self._engine, self._closed, self.shares_weights = engine, False, engine.shares_weights
        self._free = Condition()  # held by whoever uses the engine
        self._waiting, self._count = 0, Lock()  # threads that want it, so that decoding lets them
        self._params: SamplingParams | None = None
        self._news = Condition()  # of what follows
        self._complete, self._finished, self._submitted = list[Group](), 0, 0
        self._error: BaseException | None = None
        # Its many small kernels go first: what is trained beside them fills the GPU anyway.
        self._stream = torch.cuda.Stream(device, priority=-1) if device.type == "cuda" else None
        self._thread = threading.Thread(target=self._decode, name="rollouts", daemon=True)
        self._thread.start()

    @contextmanager
    def paused(self) -> Iterator[None]:
        with self._count:
            self._waiting += 1
        with self._free:
            with self._count:
                self._waiting -= 1
            try:
                yield
            finally:
                self._free.notify_all()

    def load_weights(self, version: int = 0) -> None:
        with self._in_turn():
            self._engine.load_weights(version)

    def sleep(self) -> None:
        with self._in_turn():
            self._engine.sleep()

    def close(self) -> None:
        self._closed = True
        with self._in_turn():
            self._engine.close()
        self._thread.join()

    def generate_batch(self, batch: PromptBatch, on_progress: OnProgress) -> Completions:
        with self._in_turn():
            return self._engine.generate_batch(batch, on_progress)

    def submit(self, groups: Sequence[Group]) -> None:
        with self.paused():
            self._engine.submit(groups)
            with self._news:
                self._submitted += len(groups)

    def advance(self, params: SamplingParams, on_progress: OnProgress) -> list[Group]:
        """Groups completed since the last call, after a moment's wait if there are none; `params` hold from now on."""
        self._params = params
        with self._news:
            if not self._complete and self._error is None:
                self._news.wait(POLL_SECONDS)
            if self._error is not None:
                raise self._error
            finished, self._finished = self._finished, 0
        on_progress(finished)
        with self._news:
            complete, self._complete = self._complete, []
            self._submitted -= len(complete)
            return complete

    def unfinished(self) -> list[Group]:
        with self.paused(), torch.cuda.stream(self._stream):
            return [*self._complete, *self._engine.unfinished()]

    def _decode(self) -> None:
        """In the thread."""
        while not self._closed:
            with self._free:
                if self._waiting or self._params is None or len(self._complete) == self._submitted:
                    self._free.wait(POLL_SECONDS)
                    continue
                try:
                    with torch.cuda.stream(self._stream):
                        complete = self._engine.advance(self._params, self._add_finished)
                except BaseException as error:  # raised where completions are waited for
                    self._error = error
                    return
                with self._news:
                    self._complete += complete
                    self._news.notify_all()

    def _add_finished(self, count: int) -> None:
        with self._news:
            self._finished += count

    @contextmanager
    def _in_turn(self) -> Iterator[None]:
        """Work on the engine's stream while the thread is paused, in turn with what the caller's own stream does."""
        with self.paused():
            if self._stream is None:
                yield
                return
            others = torch.cuda.current_stream(self._stream.device)
            self._stream.wait_stream(others)
            with torch.cuda.stream(self._stream):
                yield
            others.wait_stream(self._stream)
