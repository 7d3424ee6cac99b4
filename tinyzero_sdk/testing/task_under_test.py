"""What the laws look at: a task's items, gold completions and verdicts, each made once; and the search for a failure.

Texts are scored in a child process alone (`sandbox.py`). What is tried, and in which order, follows from the seed; how
far that goes is also up to the limits of time below, and so to the machine.
"""

import contextlib
import itertools
import json
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from random import Random
from types import TracebackType
from typing import Any, Self

from tinyzero_sdk.errors import DataError
from tinyzero_sdk.records import Item, Json
from tinyzero_sdk.tasks.task import Task
from tinyzero_sdk.testing import strategies
from tinyzero_sdk.testing.cases import Case
from tinyzero_sdk.testing.completions import Sample
from tinyzero_sdk.testing.gold import Gold, find_gold
from tinyzero_sdk.testing.ground_truth_mutation import redraw
from tinyzero_sdk.testing.property import Failure, Law, NotChecked, Problem
from tinyzero_sdk.testing.sandbox import ObservedProcess
from tinyzero_sdk.testing.sandbox_child import Observation
from tinyzero_sdk.testing.shrinking import minimize
from tinyzero_sdk.testing.strategies import nothing_stored

ITEM_COUNT = 64
"""So many items of each split the laws look at."""

FRAME_COUNT = 16
"""So many gold completions, the shortest ones, texts are made from."""

SHRINK_SECONDS = 6.0
"""After so long the search for a smaller example ends."""

HUNT_FACTOR = 1000
"""The bulk search tries so many completions for each example that is asked for."""

HUNT_SECONDS = 30.0
"""And ends after so long, wherever it is."""

SEARCH_SECONDS = 15.0
"""After so long without a failure a law has drawn enough, whatever number of examples was asked for."""

MOST_KILLS = 6
"""Nor does it go on after so many processes were lost without a failure."""

_HUNT_ITEMS = 500
_HUNT_ITEM_SECONDS = 3.0
_CACHED_LENGTH = 20_000


class Bench:
    """A task under examination; as a context manager it ends its processes with the block."""

    def __init__(self, task: Task, *, seed: int = 0, examples: int = 200, cases: Sequence[Case] = ()) -> None:
        """
        Args:
            task: from `load_task`.
            seed: of the items, and of all choices.
            examples: how many completions a law draws.
            cases: labelled completions.
        """
        self.task = task
        self.seed = seed
        self.examples = examples
        self.cases = list(cases)
        self.tried = 0
        """How many completions, or items, the present law has judged."""
        self._seen: dict[tuple[str, str, bool, bool], Observation] = {}
        self._lost: dict[tuple[str, str], Observation] = {}  # what cost a process is not tried twice

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End its processes; the next question starts others."""
        for name in ("judge", "other_judge"):
            if name in self.__dict__:
                self.__dict__[name].close()

    @cached_property
    def judge(self) -> ObservedProcess:
        """The child that scores."""
        return ObservedProcess(self.task, hash_seed=1, warm_up=self._warm_up)

    @cached_property
    def other_judge(self) -> ObservedProcess:
        """Another one, which orders sets of text in another way."""
        return ObservedProcess(self.task, hash_seed=2)

    @cached_property
    def _warm_up(self) -> list[tuple[str, Json]]:
        frames = self._raw_frames[:2]
        texts = [frame.completion for frame in frames] + [frames[0].with_answer(text) for text in ("1", "x", "(1+2)")]
        return [(text, frames[0].item.ground_truth) for text in [*texts, "no answer"]]

    @cached_property
    def items(self) -> list[Item]:
        """Training items."""
        return self._items("train")

    @cached_property
    def test_items(self) -> list[Item]:
        """Test items."""
        return self._items("test")

    def _items(self, split: Any) -> list[Item]:
        items: list[Item] = []
        with contextlib.suppress(DataError):  # fewer there are not
            for item in self.task.dataset(split, ITEM_COUNT, seed=self.seed):
                items.append(item)
        if not items:
            next(self.task.dataset(split, 1, seed=self.seed))  # says why
        return items

    @cached_property
    def golds(self) -> list[Gold]:
        """The gold completions of the training items, as the task gives them, the shortest first."""
        golds = [gold for item in self.items if (gold := find_gold(self.task, item))]
        return sorted(golds, key=lambda gold: len(gold.completion))

    @cached_property
    def _raw_frames(self) -> list[Gold]:
        return self.golds[:FRAME_COUNT] or strategies.stand_ins(self.items[:FRAME_COUNT])

    @cached_property
    def frames(self) -> list[Gold]:
        """Gold completions without what stands before or after the line of the answer, to make texts from.

        Where the task has no `solve`, a 0 between tags stands in for them. One that does not score full as it is
        stands as it is.
        """
        return [self.bare(frame) if self.golds else frame for frame in self._raw_frames]

    @property
    def needed_frames(self) -> list[Gold]:
        """Gold completions that score full.

        Raises:
            NotChecked: there are none.
        """
        frames = [frame for frame in self.frames if self.is_full(self._observe_gold(frame))]
        if not frames:
            raise NotChecked("no gold completion scores full; see gold-scores-full")
        return frames

    def bare(self, gold: Gold) -> Gold:
        """`gold` without other lines, and without what stands before a `</think>`, if it scores full so too."""
        after = gold.after.partition("\n")[0]
        for before in (gold.before.rpartition("\n")[2].rpartition("</think>")[2].lstrip(), gold.before):
            bare = Gold(gold.item, before, gold.answer, after)
            seen = self._observe_gold(bare)
            if self.is_full(seen) and seen.answer == gold.answer:
                return bare
        return gold

    def _observe_gold(self, gold: Gold) -> Observation:
        return self.observe(Sample(gold.completion, gold.item.ground_truth))

    def is_full(self, seen: Observation) -> bool:
        """Whether it is correct and pays the greatest reward."""
        return seen.correct and seen.value == self.task.info.score_range[1]

    @cached_property
    def wrongs(self) -> list[tuple[Gold, str]]:
        """Frames, each with an answer that is not correct in it."""
        frames = self.needed_frames
        pairs = []
        for frame in frames:
            others = [other.answer for other in frames if other is not frame]
            for answer in [*others[:3], "0"]:
                seen = self.observe(Sample(frame.with_answer(answer), frame.item.ground_truth))
                if seen.answer == answer and not seen.correct and not seen.raised and not seen.fate:
                    pairs.append((frame, answer))
        if not pairs:
            raise NotChecked("no wrong answer is known: all that were tried are correct, or none is found")
        return pairs

    @cached_property
    def wrong_credit(self) -> float:
        """The most that an honest wrong answer pays, as far as seen; at least 0."""
        try:
            pairs = self.wrongs
        except NotChecked:
            return 0.0
        pays = [self.observe(Sample(frame.with_answer(text), frame.item.ground_truth)).value for frame, text in pairs]
        return max(0.0, *pays)

    def observe(self, sample: Sample, *, oracle: bool = False, weigh: bool = False) -> Observation:
        """What comes of scoring a sample; remembered."""
        truth = json.dumps(sample.ground_truth, sort_keys=True)
        if (sample.completion, truth) in self._lost:
            return self._lost[sample.completion, truth]
        if len(sample.completion) > _CACHED_LENGTH:
            return self.observe_anew(sample, oracle=oracle, weigh=weigh)
        key = (sample.completion, truth, oracle, weigh)
        if key not in self._seen:
            self._seen[key] = self.observe_anew(sample, oracle=oracle, weigh=weigh)
        return self._seen[key]

    def observe_anew(self, sample: Sample, *, oracle: bool = False, weigh: bool = False) -> Observation:
        """What comes of scoring a sample now."""
        seen = self.judge.observe(sample.completion, sample.ground_truth, oracle=oracle, weigh=weigh)
        if seen.fate:
            self._lost[sample.completion, json.dumps(sample.ground_truth, sort_keys=True)] = seen
        return seen

    def search(self, law: Law) -> Failure | None:
        """The smallest sample found that breaks a law about completions."""
        assert law.problem is not None
        hunter = _Search(self, law)
        found = hunter.first(law.listed(self)) if law.listed else None
        if found is None and law.drawn is not None:
            found = hunter.draw(law.drawn(self))
        return None if found is None else self.reduced(law, found)

    def reduced(self, law: Law, found: Sample) -> Failure:
        """A failure of the law with a completion cut down as far as the law's nature and the time allow."""
        hunter = _Search(self, law)
        problem = hunter.judge(found)
        if problem is None:  # there is chance in the verdict
            got = "it broke the law when it was judged first, and does not when it is judged again"
            return Failure(got, "the same verdict each time; see the law deterministic", found)
        if law.any_text and len(found.completion) <= _CACHED_LENGTH:
            truth = found.ground_truth
            until = time.monotonic() + SHRINK_SECONDS
            text = minimize(
                found.completion,
                lambda text: hunter.judge(Sample(text, truth)) is not None,
                is_over=lambda: time.monotonic() > until,
            )
            if text != found.completion:
                found = Sample(text, truth)
                problem = hunter.judge(found) or problem
        return Failure(problem.got, problem.expected, found)

    @cached_property
    def hunted_frames(self) -> list[Gold]:
        """Frames for the bulk search: the usual ones, items in which two values coincide, and varied items.

        A varied item counts only if the task calls it valid and solves it, and scorer and oracle agree that it did.
        """
        if not self.golds:
            return self.frames
        common = self.needed_frames
        model = common[0]
        found = list(common)
        until = time.monotonic() + _HUNT_ITEM_SECONDS
        for number, item in enumerate(self._odd_items()):
            if len(found) >= _HUNT_ITEMS or time.monotonic() > until:
                break
            gold = self.judge.solve(item)
            if gold is None:  # the task cannot solve what it did not make
                continue
            gold = Gold(item, model.before, gold.answer, model.after)
            seen = self.judge.observe(gold.completion, item.ground_truth, oracle=True)
            if seen.correct and seen.oracle:
                found.append(gold)
            elif number > 100 and len(found) < len(common) + 5:
                break  # a ground truth of this task cannot be varied
        return found

    def _odd_items(self) -> Iterator[Item]:
        choose = Random(self.seed).randrange
        items = self.items
        with contextlib.suppress(DataError):
            yield from (item for item in self.task.dataset("train", 1024, seed=self.seed) if _coincides(item))
        if not self.task.is_valid(items[0].ground_truth):
            return  # the task does not say which problems may be made up
        for _ in range(20 * _HUNT_ITEMS):
            item = items[choose(len(items))]
            truth = redraw(item.ground_truth, choose)
            if self.task.is_valid(truth):
                yield Item(truth, item.data)

    @cached_property
    def hunted(self) -> tuple[int, list[Sample]]:
        """How many completions the bulk search tried, and those on which scorer and oracle differ."""
        frames = self.hunted_frames
        count = self.examples * HUNT_FACTOR
        judges = (self.judge, self.other_judge)
        # Threads that wait, each for a process of its own; each has half of the count, and a seed of its own.
        with ThreadPoolExecutor(len(judges)) as threads:
            jobs = [
                threads.submit(
                    judge.hunt, frames, seed=self.seed + place, count=count // len(judges), seconds=HUNT_SECONDS
                )
                for place, judge in enumerate(judges)
            ]
            results = [job.result() for job in jobs]
        differing = [Sample(text, frames[place].item.ground_truth) for _, found in results for place, text, _ in found]
        return sum(tried for tried, _ in results), differing


class _Search:
    """The search for a sample that breaks one law."""

    def __init__(self, bench: Bench, law: Law) -> None:
        self._bench = bench
        self._law = law
        self._known: dict[tuple[str, str], Problem | None] = {}
        self._started = time.monotonic()
        self._kills = bench.judge.kills
        self._first_found: float | None = None

    def judge(self, sample: Sample) -> Problem | None:
        """What is wrong; remembered, so that what hypothesis sees never changes its mind."""
        assert self._law.problem is not None
        key = (sample.completion, json.dumps(sample.ground_truth, sort_keys=True))
        if key not in self._known:
            self._bench.tried += 1
            self._known[key] = self._law.problem(self._bench, sample)
        if self._known[key] is not None and self._first_found is None:
            self._first_found = time.monotonic()
        return self._known[key]

    def first(self, samples: Any) -> Sample | None:
        """Of those that break it, the one with the shortest completion."""
        broken = []
        for sample in samples:
            if self._is_over():
                break
            if self.judge(sample) is not None:
                broken.append(sample)
        return min(broken, key=lambda sample: (len(sample.completion), sample.completion), default=None)

    def _is_over(self) -> bool:
        kills = self._bench.judge.kills - self._kills
        if self._first_found is not None:
            return kills > 2 or time.monotonic() - self._first_found > SHRINK_SECONDS
        return kills > MOST_KILLS or time.monotonic() - self._started > SEARCH_SECONDS

    def draw(self, strategy: Any) -> Sample | None:
        """What hypothesis finds and shrinks."""
        from hypothesis import HealthCheck, Phase, find, settings
        from hypothesis.errors import NoSuchExample

        quiet = settings(
            max_examples=self._bench.examples,
            database=None,
            deadline=None,
            derandomize=False,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
        )
        try:
            with nothing_stored():
                found: Sample = find(strategy, self._breaks, settings=quiet, random=Random(self._bench.seed))
        except NoSuchExample:
            return None
        return found

    def _breaks(self, sample: Sample) -> bool:
        if self._is_over():
            # Time is up: what is known stays so, all else is taken to keep the law, and the search ends at once.
            key = (sample.completion, json.dumps(sample.ground_truth, sort_keys=True))
            return self._known.get(key) is not None
        return self.judge(sample) is not None


def _coincides(item: Item) -> bool:
    """Whether two fields of the ground truth hold the same value, such as a target that is among the numbers."""
    truth = item.ground_truth
    fields = [set(_leaves(value)) for value in truth.values()] if isinstance(truth, dict) else []
    return any(left & right for left, right in itertools.combinations(fields, 2))


def _leaves(value: Json) -> Iterator[Any]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        for entry in value:
            yield from _leaves(entry)
    elif isinstance(value, int | float | str):
        yield value
