"""Engines that generate completions of unequal length, event by event, with the plan's decoding step.

They refill a slot as soon as it is free; or take a round of sequences, and the next round when the longest has ended.
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
    """Lengths of completions in tokens: lognormal, cut off at a limit."""

    median: float
    spread: float  # standard deviation of the logarithm; 0 = equal lengths
    most: int  # the limit

    @cache  # noqa: B019 - records are few
    def sample(self, count: int, seed: int) -> tuple[int, ...]:
        """`count` lengths, which depend on the seed alone."""
        random = Random(seed)
        sampled = (self.median * math.exp(self.spread * random.gauss(0.0, 1.0)) for _ in range(count))
        return tuple(min(self.most, max(1, round(length))) for length in sampled)


@dataclass(frozen=True, slots=True)
class Engines:
    """Equal engines, each with a copy of the model."""

    count: int
    slots: int  # sequences that each generates at a time
    refills: bool  # whether a slot is refilled while others still generate
    step: Callable[[int, float], float]  # seconds of a decoding step by the number of sequences and their mean length
    prompt: int  # tokens of a prompt
    prefill: float  # seconds to prefill the prompt of a sequence, which it shares with its group

    def generate(self, lengths: Sequence[int], *, shared: bool = False) -> list[float]:
        """Seconds after which each engine is done.

        Args:
            lengths: of all completions, in their order.
            shared: whether engines take sequences from one queue when they have free slots; otherwise each has an equal
                number, in order. An engine takes at most as many from a queue as make its rounds about equal.
        """
        each = -(-len(lengths) // self.count)
        most = min(self.slots, -(-each // -(-each // self.slots)))
        if shared:
            queues = [deque(lengths)] * self.count
        else:
            queues = [deque(lengths[index * each : (index + 1) * each]) for index in range(self.count)]
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
    """One engine at work."""

    spec: Engines
    queue: deque[int]
    slots: int
    steps: int = 0  # decoding steps so far
    ends: list[tuple[int, int]] = field(default_factory=list)
    """Of each active sequence, the step after which it ends, and its length; a heap."""
    tokens: int = 0  # in the cache: of the active sequences, with their prompts

    def until_next_end(self) -> float | None:
        """Work until a sequence ends; the seconds that it took, or None if there is nothing left to do."""
        taken = 0
        if self.spec.refills or not self.ends:
            taken = min(len(self.queue), self.slots - len(self.ends))
            for _ in range(taken):
                length = self.queue.popleft()
                heappush(self.ends, (self.steps + length, length))
            self.tokens += taken * self.spec.prompt
        if not self.ends:
            return None
        count, steps = len(self.ends), self.ends[0][0] - self.steps
        seconds = steps * self.spec.step(count, self.tokens / count + steps / 2)  # the mean length over these steps
        self.steps += steps
        self.tokens += count * steps
        while self.ends and self.ends[0][0] == self.steps:
            self.tokens -= self.spec.prompt + heappop(self.ends)[1]
        return taken * self.spec.prefill + seconds
