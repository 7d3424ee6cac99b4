"""Which requests of an engine wait for a slot and which are in one, and the groups that are complete.

Bookkeeping on the host, without tensors; the tensors of the slots are in batch_state.py.
"""

from array import array
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from tinyzero_trainer.rollout.engine import Group
from tinyzero_trainer.types import Generation

SampledInSlot = tuple[Sequence[int], Sequence[float] | None, bool]
"""The tokens sampled in a slot, their log-probabilities, and whether an end token is the last."""

Sampled = Sequence[SampledInSlot]
"""What was sampled in several slots."""


@dataclass(slots=True)
class Request:
    """A completion on its way."""

    group: Group
    sample: int  # its place in the group
    so_far: Generation  # what was sampled before it entered its slot
    slot: int = -1
    entered: int = 0  # number of decoding steps before it entered
    limit: int = 0  # number of decoding steps after which it is as long as it may be
    versions: list[tuple[int, int]] = field(default_factory=list)
    """Versions of the weights since it entered, each with the number of its first token."""

    @property
    def begun(self) -> int:
        """Tokens that it had when it entered."""
        return len(self.so_far.token_ids)

    @property
    def row(self) -> int:
        """Its index among all completions of its seed, which its random numbers depend on."""
        return self.group.prompt_index * len(self.group.completions) + self.sample

    @property
    def context(self) -> list[int]:
        """What is read before the next token is sampled."""
        return [*self.group.prompt, *self.so_far.token_ids]

    def with_sampled(self, tokens: Sequence[int], logprobs: Sequence[float] | None, finished: bool) -> Generation:
        """The completion with what was sampled in its slot."""
        before, end = self.so_far, self.begun + len(tokens)
        versions, stops = list(before.versions), [start for _, start in self.versions[1:]] + [end]
        for (version, start), stop in zip(self.versions, stops, strict=True):
            count = min(stop, end) - start
            if count > 0 and versions and versions[-1][0] == version:
                versions[-1] = (version, versions[-1][1] + count)
            elif count > 0:
                versions.append((version, count))
        if before.token_ids:
            tokens = array("i", [*before.token_ids, *tokens])
            logprobs = None if logprobs is None else array("d", [*(before.logprobs or ()), *logprobs])
        return Generation(tokens, logprobs, finished, tuple(versions))


class Scheduler:
    """The groups that were submitted and not taken, and what is in which slot."""

    def __init__(self, read: Callable[[Sequence[Request]], Callable[[], Sampled]], *, starts_anew: bool = True) -> None:
        """
        Args:
            read: begins to copy what is in the slots of requests, and returns a function that waits for the copies.
            starts_anew: whether contexts may be read again so that others can join, which changes last bits.
        """
        self._read, self.starts_anew = read, starts_anew
        self.waiting, self.running = deque[Request](), list[Request]()
        self.steps = 0  # decoding steps so far
        self._groups, self._complete = dict[int, Group](), list[Group]()
        self._longest: tuple[int, int] | None = None
        self._free = list[int]()
        self._reads = list[tuple[list[Request], Callable[[], Sampled]]]()

    def add(self, groups: Iterable[Group]) -> None:
        """Submit groups."""
        self._longest = None
        for group in groups:
            self._groups[group.number] = group
            if group.complete:
                self._complete.append(group)
            self.waiting.extend(
                Request(group, sample, completion)
                for sample, completion in enumerate(group.completions)
                if not group.is_complete(completion)
            )

    @property
    def unfinished(self) -> bool:
        """Whether something waits or is running."""
        return bool(self.waiting or self.running)

    @property
    def longest(self) -> tuple[int, int]:
        """Most tokens of a sequence and of a completion, of those that waited when this was first read after `add`."""
        if self._longest is None:  # looking at every check would take longer than a step
            groups = [request.group for request in self.waiting]
            sequence = max((len(group.prompt) + group.max_tokens for group in groups), default=0)
            self._longest = sequence, max((group.max_tokens for group in groups), default=0)
        return self._longest

    @property
    def pending_reads(self) -> int:
        """Copies of what was sampled in freed slots that were begun, and not recorded."""
        return len(self._reads)

    def set_slots(self, slots: int) -> None:
        """Nothing is in a slot, of which there are so many; steps are counted from here."""
        self._free, self.steps = list(range(slots)), 0

    def next_size(self) -> int:
        """How many of the next group wait."""
        group = self.waiting[0].group if self.waiting else None
        return next((i for i, other in enumerate(self.waiting) if other.group is not group), len(self.waiting))

    def next_to_enter(self, least: int) -> list[Request]:
        """Requests to enter slots now: whole groups, so that their prompts are read once, in at least `least` slots."""
        free, entering = len(self._free), list[Request]()
        if self.running and free < least:
            return []
        while self.waiting and free:
            size = self.next_size()
            if size > free and (entering or self.running):
                break
            size = min(size, free)
            entering += [self.waiting.popleft() for _ in range(size)]
            free -= size
        return entering

    def enter(self, entering: Sequence[Request], version: int) -> list[int]:
        """Give each a slot, where weights of this version sample it; the slots."""
        for request in entering:
            request.slot, request.entered = self._free.pop(0), self.steps
            request.limit = self.steps + request.group.max_tokens - request.begun - 1
            request.versions = [(version, request.begun)]
        self.running = [*self.running, *entering]
        return [request.slot for request in entering]

    def mark(self, version: int) -> None:
        """From now on, tokens are sampled by other weights."""
        for request in self.running:
            request.versions.append((version, request.begun + 1 + self.steps - request.entered))

    def limit(self, choose: Callable[[Iterable[int]], int]) -> int:
        """Number of decoding steps after which the first (`min`) or the last (`max`) is as long as it may be."""
        return choose([request.limit for request in self.running]) if self.running else 0

    def at_limit(self) -> set[int]:
        """Slots of the running ones that are as long as they may be."""
        return {request.slot for request in self.running if request.limit <= self.steps}

    def leave(self, slots: set[int]) -> list[int]:
        """Free these slots; the places of the others among the running."""
        leaving = [request for request in self.running if request.slot in slots]
        kept = [place for place, request in enumerate(self.running) if request.slot not in slots]
        self._reads.append((leaving, self._read(leaving)))
        self._free = sorted([*self._free, *slots])
        self.running = [self.running[place] for place in kept]
        return kept

    def settle(self, reads: int | None = None) -> None:
        """Record what was sampled in the slots that were freed, of the first `reads` of `pending_reads`; None = all."""
        settled = self._reads[:reads]
        del self._reads[:reads]
        for requests, sampled in settled:
            for request, values in zip(requests, sampled(), strict=True):
                number = request.group.number
                after = self._groups[number] = _continued(self._groups[number], request, values)
                if after.complete:
                    self._complete.append(after)

    def take(self) -> list[Group]:
        """The groups that have become complete since the last time."""
        complete, self._complete = self._complete, []
        for group in complete:
            del self._groups[group.number]
        return complete

    def suspend(self) -> None:
        """Let all running ones wait again, in the order of their groups, with what is sampled."""
        groups = self.snapshot()
        self.waiting, self.running, self._groups, self._complete = deque(), [], {}, []
        self.add(groups)

    def snapshot(self) -> list[Group]:
        """All groups not taken, as far as they are sampled, in order."""
        self.settle()
        groups = dict(self._groups)
        if self.running:
            for request, values in zip(self.running, self._read(self.running)(), strict=True):
                groups[request.group.number] = _continued(groups[request.group.number], request, values)
        return sorted(groups.values(), key=lambda group: group.number)


def _continued(group: Group, request: Request, sampled: SampledInSlot) -> Group:
    """The group with what was sampled in the slot of one of its completions."""
    completions = list(group.completions)
    completions[request.sample] = request.with_sampled(*sampled)
    return replace(group, completions=tuple(completions))
