"""The parent's side of the child process that scores: it sends completions, waits, and replaces a child that hangs or
dies.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from tinyzero_sdk.errors import BrokenTaskError
from tinyzero_sdk.records import Item, Split
from tinyzero_sdk.tasks.task import Task
from tinyzero_sdk.testing.gold import Gold, TestCompletion
from tinyzero_sdk.testing.sandbox_child import ExitStatus, OracleUse, Outcome, serve
from tinyzero_sdk.testing.surroundings import Surroundings
from tinyzero_sdk.workers.process import ClosesOnExit
from tinyzero_sdk.workers.supervisor import Supervisor, Worker

TIMEOUT = 1.0  # seconds that a scorer may take for a completion of up to a megabyte
_TICK_SECONDS = 0.05
_BATCH_SIZE = 64
_BATCH_CHARACTERS = 2**22


class _Lost(Exception):
    """The child hung or died."""

    def __init__(self, exit_status: ExitStatus, index: int) -> None:
        super().__init__(exit_status)
        self.exit_status = exit_status
        self.index = index


class Sandbox(ClosesOnExit):
    """A child process that scores completions; as a context manager it ends with the block."""

    def __init__(
        self,
        task: Task,
        *,
        hash_seed: int,
        warm_up: Sequence[TestCompletion] = (),
        environment: Mapping[str, str] | None = None,
        moves_clock: bool = False,
    ) -> None:
        """`hash_seed` orders sets of text in the child, which scores the completions of `warm_up` first, unwatched;
        with `moves_clock` it scores each completion at another time of the coming decades.
        """
        self.timeout = 1.5 * (task.info.limits.deadline if task.is_async else TIMEOUT)
        """Seconds for one completion after which a child counts as hung."""
        self.kills = 0
        self._supervisor = Supervisor(task, {"PYTHONHASHSEED": str(hash_seed), **(environment or {})})
        self._service = partial(serve, surroundings=Surroundings(), moves_clock=moves_clock)
        self._warm_up = list(warm_up)
        self._worker: Worker | None = None

    def close(self) -> None:
        """End the child; the next request starts another."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None

    @property
    def pid(self) -> int | None:
        return self._worker.process.pid if self._worker else None

    def observe(
        self,
        samples: Sequence[TestCompletion],
        *,
        oracle: OracleUse = "",
        memory: bool = False,
        most_kills: int = 10**9,
    ) -> list[Outcome]:
        """The outcomes of scoring completions, in order, up to the one that costs the last of `most_kills` children.

        They are sent to the child in batches. A completion that the child does not survive costs the child, and those
        before it in its batch are scored again. Measuring the `memory` takes a tenth of a millisecond each.
        """
        outcomes: list[Outcome] = []
        known: dict[int, Outcome] = {}  # of those that cost a child
        size, last_kill = _BATCH_SIZE, self.kills + most_kills
        while (start := len(outcomes)) < len(samples):
            if start in known:
                outcomes.append(known[start])
                continue
            stop, characters = start, 0
            while stop < min(start + size, len(samples)) and stop not in known and characters < _BATCH_CHARACTERS:
                characters += len(samples[stop].completion)
                stop += 1
            try:
                outcomes += self._ask("observe", samples[start:stop], oracle, memory)
            except _Lost as loss:
                status, place = loss.exit_status, start + loss.index // 2
                if loss.index < 0 and stop - start > 1:
                    size = 1  # it died between two completions: one at a time shows which one is to blame
                    continue
                if loss.index >= 0 and loss.index % 2:
                    status = "hung in oracle" if status == "hung" else "died in oracle"
                place = max(place, start)
                known[place] = Outcome(exit_status=status)
                if self.kills >= last_kill:
                    samples = samples[: place + 1]
        return outcomes

    def candidates(self, split: Split, size: int, *, seed: int, start: int) -> list[str]:
        try:
            items: list[str] = self._ask("candidates", split, size, seed, start)
        except _Lost:
            raise BrokenTaskError(f"task {self._supervisor.task_name!r}: generate_dataset ended its process") from None
        return items

    def solve(self, item: Item) -> Gold | None:
        """The gold completion of an item that the task did not make; None if it fails, hangs or dies."""
        try:
            gold: Gold | None = self._ask("solve", item)
        except _Lost:
            return None
        return gold

    def _ask(self, *request: Any) -> Any:
        worker = self._worker or self._start()
        worker.send(request)
        while not worker.status(self.timeout):
            for answer in worker.messages(_TICK_SECONDS):
                return answer
        loss = worker.kill(self.timeout)
        self.kills += 1
        self.close()
        raise _Lost(loss.kind, -1 if loss.index is None else loss.index)

    def _start(self) -> Worker:
        self._worker = worker = self._supervisor.start(self._service)
        worker.wait_until_ready()
        for place, sample in enumerate(self._warm_up):
            try:
                self._ask("warm_up", [sample])
            except _Lost:  # the properties report it
                self._warm_up = self._warm_up[:place]
                return self._start()
        return worker
