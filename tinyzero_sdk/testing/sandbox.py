"""The parent's side of the child that scores: it asks, waits, and replaces a child that hangs or dies."""

import pickle
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from tinyzero_sdk.errors import BrokenTaskError, TinyZeroError
from tinyzero_sdk.records import Item, Json, Split
from tinyzero_sdk.tasks.task import Task
from tinyzero_sdk.testing.gold import Gold
from tinyzero_sdk.testing.sandbox_child import ENOUGH, Fate, Observation, serve
from tinyzero_sdk.workers.process import WorkerProcess

TIME_LIMIT = 1.0
"""Seconds that a scorer may take for a completion of up to a megabyte."""

_START_SECONDS = 120.0
_TICK_SECONDS = 0.05
_HUNT_BLOCK = 20_000


class _Lost(Exception):
    """The child hung or died."""

    def __init__(self, fate: Fate, index: int) -> None:
        super().__init__(fate)
        self.fate = fate
        self.index = index


class ObservedProcess:
    """A child process that judges completions; as a context manager it ends with the block."""

    def __init__(self, task: Task, *, hash_seed: int, warm_up: Sequence[tuple[str, Json]] = ()) -> None:
        """
        Args:
            task: from `load_task`; the child loads it anew.
            hash_seed: `PYTHONHASHSEED` of the child, by which sets and dicts of text are ordered.
            warm_up: completions and ground truths to score first, unwatched.
        """
        self.patience = 1.5 * TIME_LIMIT
        """Seconds after which a child is taken to hang."""
        self.kills = 0
        """How many children hung or died so far."""
        self._name = task.name
        self._task = pickle.dumps(task)
        self._environment = {"PYTHONHASHSEED": str(hash_seed)}
        self._warm_up = list(warm_up)
        self._worker: WorkerProcess | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the child; the next question starts another."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    def observe(self, text: str, truth: Json, *, oracle: bool = False, weigh: bool = False) -> Observation:
        """What comes of scoring a completion.

        Args:
            text: the completion.
            truth: its ground truth.
            oracle: ask the oracle as well.
            weigh: measure the memory, which takes a tenth of a millisecond.
        """
        try:
            seen = self._ask("observe", text, truth, oracle, weigh)
        except _Lost as loss:
            in_oracle: Fate = "hung in oracle" if loss.fate == "hung" else "died in oracle"
            return Observation(fate=in_oracle if loss.index == 1 else loss.fate)
        assert isinstance(seen, Observation)
        return seen

    def candidates(self, split: Split, size: int, *, seed: int, start: int) -> list[str]:
        """What `generate_dataset` makes in the child, as JSON."""
        try:
            made: list[str] = self._ask("candidates", split, size, seed, start)
        except _Lost:
            raise BrokenTaskError(f"task {self._name!r}: generate_dataset ended its process") from None
        return made

    def solve(self, item: Item) -> Gold | None:
        """The gold completion of an item that the task did not make; None where it fails, hangs or dies over it."""
        try:
            gold: Gold | None = self._ask("solve", item)
        except _Lost:
            return None
        return gold

    def hunt(
        self, golds: Sequence[Gold], *, seed: int, count: int, seconds: float
    ) -> tuple[int, list[tuple[int, str, bool]]]:
        """Look for completions on which scorer and oracle differ, see `observer`; how many were tried, and those."""
        until = time.monotonic() + seconds
        done, tried = 0, 0
        found: list[tuple[int, str, bool]] = []
        is_ready = False
        while done < count and len(found) < ENOUGH and (left := until - time.monotonic()) > 0:
            try:
                if not is_ready:
                    self._ask("prepare_hunt", list(golds), seed)
                    is_ready = True
                reached, differing = self._ask("hunt", done, min(done + _HUNT_BLOCK, count), left)
            except _Lost as loss:
                is_ready = False
                tried += max(0, loss.index - done)
                done = max(done, loss.index) + 1
                continue
            found += differing
            tried += reached - done
            done = reached
        return tried, found

    def _ask(self, *request: Any) -> Any:
        worker = self._worker or self._start()
        try:
            worker.connection.send(request)
        except OSError:
            raise self._lose(worker, "died") from None
        while True:
            if worker.connection.poll(_TICK_SECONDS):
                try:
                    return worker.connection.recv()
                except (EOFError, OSError):
                    raise self._lose(worker, "died") from None
            if worker.has_ended() and not worker.connection.poll():
                raise self._lose(worker, "died")
            if worker.timer.seconds > self.patience:
                raise self._lose(worker, "hung")

    def _lose(self, worker: WorkerProcess, fate: Fate) -> _Lost:
        index = worker.timer.index
        self.kills += 1
        self.close()
        return _Lost(fate, -1 if index is None else index)

    def _start(self) -> WorkerProcess:
        self._worker = worker = WorkerProcess(self._task, serve, self._environment)
        until = time.monotonic() + _START_SECONDS
        while not worker.connection.poll(_TICK_SECONDS):
            has_ended = worker.has_ended() and not worker.connection.poll()  # its last words may just have come
            if has_ended or time.monotonic() > until:
                self.close()
                raise BrokenTaskError(f"the process that scores {self._name!r} ended or hung while it loaded the task")
        try:
            message = worker.connection.recv()
        except (EOFError, OSError):
            self.close()
            raise BrokenTaskError(f"the process that scores {self._name!r} ended while it loaded the task") from None
        if isinstance(message, TinyZeroError):
            self.close()
            raise message
        for place, sample in enumerate(self._warm_up):
            try:
                self._ask("warm_up", [sample])
            except _Lost:  # the laws will tell; they can go on without it
                self._warm_up = self._warm_up[:place]
                return self._start()
        return worker
