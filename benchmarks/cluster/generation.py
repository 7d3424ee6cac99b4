"""Engines that generate completions of unequal length: when each is done, event by event, by the plan's decoding step.

Two kinds, as the trainer has them. One takes a round of sequences and no other before the longest of it has ended (the
engine `torch`); one refills a place as soon as it is free (vLLM).
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from heapq import heapify, heappop, heappush
from random import Random


@dataclass(frozen=True, slots=True)
class Lengths:
    """Completions' lengths: lognormal, cut off at the limit."""

    median: float
    """Tokens."""

    spread: float
    """Standard deviation of the logarithm; 0 = all are of one length."""

    most: int
    """Tokens at which they are cut off."""

    def draw(self, count: int, seed: int) -> tuple[int, ...]:
        """So many, the same for the same seed, whatever else is drawn."""
        return _draw(self, count, seed)


@cache
def _draw(lengths: Lengths, count: int, seed: int) -> tuple[int, ...]:
    random = Random(seed)
    drawn = (lengths.median * math.exp(lengths.spread * random.gauss(0.0, 1.0)) for _ in range(count))
    return tuple(min(lengths.most, max(1, round(length))) for length in drawn)


@dataclass(frozen=True, slots=True)
class Engines:
    """Engines of one kind, each with a copy of the model."""

    count: int
    """How many."""

    places: int
    """Sequences that each generates at a time."""

    refills: bool
    """Whether a place is taken again while others still generate."""

    step: Callable[[int, float], float]
    """Seconds of a decoding step by the number of sequences and their mean length."""

    prompt: int
    """Tokens of a prompt."""

    reading: float
    """Seconds to read the prompt of a sequence, which it shares with its group."""

    def generate(self, lengths: Sequence[int], *, shared: bool = False) -> list[float]:
        """Seconds after which each engine is done.

        Args:
            lengths: of all completions, in their order.
            shared: whether engines take sequences from one queue, as they have room; otherwise each has as many, from
                the beginning. Of a round no more is taken from a queue than what makes all rounds about equal.
        """
        share = -(-len(lengths) // self.count)
        most = min(self.places, -(-share // -(-share // self.places)))
        if shared:
            queues = [deque(lengths)] * self.count
        else:
            queues = [deque(lengths[index * share : (index + 1) * share]) for index in range(self.count)]
        engines = [_Engine(self, queue, most) for queue in queues]
        done, clocks = [0.0] * self.count, [(0.0, index) for index in range(self.count)]
        heapify(clocks)
        while clocks:
            clock, index = heappop(clocks)
            seconds = engines[index].until_next_end()
            if seconds is None:
                done[index] = clock
            else:
                heappush(clocks, (clock + seconds, index))
        return done


@dataclass(slots=True)
class _Engine:
    """One of them at work."""

    kind: Engines
    queue: deque[int]
    places: int
    steps: int = 0
    """Taken so far."""
    ends: list[tuple[int, int]] = field(default_factory=list)
    """Of each sequence at work, the step after which it ends, and its length; a heap."""
    tokens: int = 0
    """In the cache: of the sequences at work, their prompts included."""

    def until_next_end(self) -> float | None:
        """Work until a sequence ends; the seconds that it took, or None if there is nothing left to do."""
        taken = self._take() if self.kind.refills or not self.ends else 0
        if not self.ends:
            return None
        count, steps = len(self.ends), self.ends[0][0] - self.steps
        seconds = steps * self.kind.step(count, self.tokens / count + steps / 2)  # the mean of these steps' lengths
        self.steps += steps
        self.tokens += count * steps
        while self.ends and self.ends[0][0] == self.steps:
            self.tokens -= self.kind.prompt + heappop(self.ends)[1]
        return taken * self.kind.reading + seconds

    def _take(self) -> int:
        """Fill the free places from the queue; how many."""
        taken = min(len(self.queue), self.places - len(self.ends))
        for _ in range(taken):
            length = self.queue.popleft()
            heappush(self.ends, (self.steps + length, length))
        self.tokens += taken * self.kind.prompt
        return taken
