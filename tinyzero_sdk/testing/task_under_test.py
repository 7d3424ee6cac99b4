"""What the properties look at: a task's items, gold completions and outcomes, each made once; and the search for a
counterexample.

Completions are scored in child processes only (`sandbox.py`). What is tried, and in which order, follows from the seed;
how far the search goes also depends on the limits below, and so on the machine.
"""

import contextlib
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property
from random import Random
from typing import Any

from tinyzero_sdk.errors import DataError
from tinyzero_sdk.judge import REVERSED_VARIABLE
from tinyzero_sdk.records import Item
from tinyzero_sdk.scoring.pool import ScoringPool
from tinyzero_sdk.tasks.task import Task
from tinyzero_sdk.testing.cases import Case
from tinyzero_sdk.testing.gold import LONG, Gold, TestCompletion, find_gold
from tinyzero_sdk.testing.ground_truth_mutation import redraw, values_in
from tinyzero_sdk.testing.property import Failure, NotChecked, Property
from tinyzero_sdk.testing.sandbox import TIMEOUT, Sandbox
from tinyzero_sdk.testing.sandbox_child import Outcome
from tinyzero_sdk.testing.shrinking import minimize
from tinyzero_sdk.testing.strategies import find_completion
from tinyzero_sdk.workers.process import ClosesOnExit

ITEM_COUNT = 64

PRESENTATION_COUNT = 16  # gold completions, the shortest ones, that others are made from
SHRINK_SECONDS = 6.0

SEARCH_SECONDS = 15.0  # time for one property without a failure, whatever number of examples was requested
MOST_KILLS = 6  # lost processes after which a property without a failure is tested no further
BULK_FACTOR = 1000  # completions of the bulk search for each requested example
BULK_SECONDS = 30.0

_BULK_ITEMS = 500
_BULK_ITEMS_FACTOR = 10  # varied items for each requested example
_BULK_ITEM_SECONDS = 3.0
_CHUNK_SIZE = 128
_CHUNK_CHARACTERS = 2**23
_LOST = Outcome(exit_status="died")


class TaskUnderTest(ClosesOnExit):
    """A task and what is known of it; as a context manager it ends its processes with the block."""

    def __init__(self, task: Task, *, seed: int = 0, examples: int = 200, cases: Sequence[Case] = ()) -> None:
        """Take the arguments of `check_task`."""
        self.task = task
        self.seed = seed
        self.examples = examples
        self.cases = list(cases)
        self.tried = 0
        """Completions, or items, tested for the present property."""
        self.noticed: dict[object, tuple[TestCompletion, list[Outcome]]] = {}
        """Outcomes that printed or did something; some things happen only once."""
        self._outcomes: dict[object, Outcome] = {}
        self._repeats: dict[object, list[Outcome]] = {}
        self._lost: dict[object, Outcome] = {}  # what cost a process is not tried twice
        self._drawn: dict[object, list[TestCompletion]] = {}

    def close(self) -> None:
        """End its processes; the next request starts others."""
        for name in ("sandbox", "other_sandbox", "reversed_sandbox", "group_pool"):
            if name in self.__dict__:
                self.__dict__[name].close()

    @cached_property
    def sandbox(self) -> Sandbox:
        """The process that scores."""
        golds = self._raw_presentations[:2]
        texts = [gold.completion for gold in golds] + [golds[0].with_answer(text) for text in ("1", "x", "(1+2)")]
        return Sandbox(self.task, hash_seed=1, warm_up=[golds[0].sample(text) for text in [*texts, "no answer"]])

    @cached_property
    def other_sandbox(self) -> Sandbox:
        """Another one, which orders sets of text differently."""
        return Sandbox(self.task, hash_seed=2)

    @cached_property
    def group_pool(self) -> ScoringPool:
        """A process that compares the completions of a problem."""
        return ScoringPool(self.task, timeout=TIMEOUT)

    @cached_property
    def reversed_sandbox(self) -> Sandbox:
        """One whose judge gets its criteria in reverse."""
        return Sandbox(self.task, hash_seed=1, environment={REVERSED_VARIABLE: "1"})

    @cached_property
    def items(self) -> list[Item]:
        return self._items("train")

    @cached_property
    def test_items(self) -> list[Item]:
        return self._items("test")

    def _items(self, split: Any) -> list[Item]:
        items: list[Item] = []
        with contextlib.suppress(DataError):  # the split has fewer
            for item in self.task.dataset(split, ITEM_COUNT, seed=self.seed):
                items.append(item)
        if not items:
            next(self.task.dataset(split, 1, seed=self.seed))  # raises the reason
        return items

    @cached_property
    def golds(self) -> list[Gold]:
        """The gold completions of the training items, as the task gives them, the shortest first."""
        golds = [gold for item in self.items if (gold := find_gold(self.task, item))]
        return sorted(golds, key=lambda gold: len(gold.completion))

    @cached_property
    def _raw_presentations(self) -> list[Gold]:
        stand_ins = [Gold(item, "<answer>", "0", "</answer>") for item in self.items[:PRESENTATION_COUNT]]
        return self.golds[:PRESENTATION_COUNT] or stand_ins

    @cached_property
    def presentations(self) -> list[Gold]:
        """Gold completions to make others from, each without its thinking and its other lines if it scores full so too.

        If the task has no `solve`, a 0 between tags stands in for them.
        """
        return [self._bare(gold) if self.golds else gold for gold in self._raw_presentations]

    def _bare(self, gold: Gold) -> Gold:
        after = gold.after.partition("\n")[0]
        for before in (gold.before.rpartition("\n")[2].rpartition("</think>")[2].lstrip(), gold.before):
            bare = Gold(gold.item, before, gold.answer, after)
            outcome = self.observe(bare.sample(bare.completion))
            if self.is_full(outcome) and outcome.answer == gold.answer:
                return bare
        return gold

    @property
    def full_presentations(self) -> list[Gold]:
        """Those of the presentations that score full.

        Raises:
            NotChecked: there are none.
        """
        outcomes = self.observe_all([gold.sample(gold.completion) for gold in self.presentations])
        golds = [gold for gold, outcome in zip(self.presentations, outcomes, strict=True) if self.is_full(outcome)]
        if not golds:
            raise NotChecked("no gold completion scores full; see gold-scores-full")
        return golds

    def is_full(self, outcome: Outcome) -> bool:
        return outcome.correct and (self.task.info.judge is not None or outcome.value == self.task.info.score_range[1])

    @cached_property
    def wrongs(self) -> list[tuple[Gold, str]]:
        """Presentations that score full, each with an answer that is not correct in it."""
        golds = self.full_presentations
        pairs = [
            (gold, answer)
            for gold in golds
            for answer in [*[other.answer for other in golds if other is not gold][:3], "0"]
        ]
        outcomes = self._observe_pairs(pairs)
        wrongs = [
            pair
            for pair, outcome in zip(pairs, outcomes, strict=True)
            if outcome.answer == pair[1] and not outcome.correct and not outcome.raised and not outcome.exit_status
        ]
        if not wrongs:
            raise NotChecked("no wrong answer is known: every one tried is correct, or is not extracted")
        return wrongs

    @cached_property
    def wrong_credit(self) -> float:
        """The highest known score of an honest wrong answer; at least 0."""
        try:
            return max(0.0, *(outcome.value for outcome in self._observe_pairs(self.wrongs)))
        except NotChecked:
            return 0.0

    def _observe_pairs(self, pairs: Sequence[tuple[Gold, str]]) -> list[Outcome]:
        return self.observe_all([gold.sample(gold.with_answer(answer)) for gold, answer in pairs])

    # Scoring

    def observe(self, sample: TestCompletion, *, oracle: bool = False, memory: bool = False) -> Outcome:
        """The outcome of scoring a completion; remembered."""
        return self.observe_all([sample], oracle=oracle, memory=memory)[0]

    def observe_all(
        self, samples: Sequence[TestCompletion], *, oracle: bool = False, memory: bool = False, most_kills: int = 10**9
    ) -> list[Outcome]:
        """The outcomes of scoring completions, see `Sandbox.observe`; remembered."""
        keys = [sample.key for sample in samples]
        new = {
            key: sample
            for key, sample in zip(keys, samples, strict=True)
            if key not in self._lost and (key, oracle, memory) not in self._outcomes
        }
        fresh = self.observe_anew([*new.values()], oracle=oracle, memory=memory, most_kills=most_kills)
        self._outcomes |= {(key, oracle, memory): outcome for key, outcome in zip(new, fresh, strict=False)}
        outcomes: list[Outcome] = []
        for key in keys:
            outcome = self._lost.get(key) or self._outcomes.get((key, oracle, memory))
            if outcome is None:
                break
            outcomes.append(outcome)
        return outcomes

    def observe_anew(
        self, samples: Sequence[TestCompletion], *, oracle: bool = False, memory: bool = False, most_kills: int = 10**9
    ) -> list[Outcome]:
        outcomes = self.sandbox.observe(samples, oracle=oracle, memory=memory, most_kills=most_kills)
        for sample, outcome in zip(samples, outcomes, strict=False):
            if outcome.exit_status:
                self._lost[sample.key] = outcome
            if (outcome.printed or outcome.actions) and len(sample.completion) <= LONG:
                self.noticed.setdefault(sample.key, (sample, []))[1].append(outcome)
        return outcomes

    def repeats(self, samples: Sequence[TestCompletion]) -> list[list[Outcome]]:
        """Further outcomes of completions: two of each, in either process; remembered."""
        new = {sample.key: sample for sample in samples if sample.key not in self._repeats}
        batch = [*new.values()]
        runs = [
            sandbox.observe(batch, most_kills=2) for sandbox in (self.sandbox, self.other_sandbox) for _ in range(2)
        ]
        self._repeats |= {key: [] for key in new}  # of those after a lost process
        self._repeats |= {key: [*outcomes] for key, outcomes in zip(new, zip(*runs, strict=False), strict=False)}
        return [self._repeats[sample.key] for sample in samples]

    # Searching

    def search(self, prop: Property) -> Failure | None:
        """The smallest counterexample found to a property of completions."""
        search = CounterexampleSearch(self, prop)
        failing = search.shortest(prop.completions(self)) if prop.completions else None
        if failing is None and prop.strategy is not None:
            failing = search.draw(prop.strategy)
        return None if failing is None else self.reduced(prop, failing)

    def reduced(self, prop: Property, failing: TestCompletion) -> Failure:
        """The failure of a completion, cut down as far as the property and the time allow."""
        search = CounterexampleSearch(self, prop)
        failure = search.test(failing)
        if failure is None:
            got = "the completion failed when it was tested first, and passes when it is tested again"
            return Failure(got, "the same score each time; see the check deterministic", failing)
        if prop.any_text and len(failing.completion) <= LONG:
            until = time.monotonic() + SHRINK_SECONDS
            text = minimize(
                failing.completion,
                lambda text: search.test(TestCompletion(text, failing.ground_truth)) is not None,
                is_over=lambda: time.monotonic() > until,
            )
            if text != failing.completion:
                failing = TestCompletion(text, failing.ground_truth)
                failure = search.test(failing) or failure
        return replace(failure, sample=failing)

    def draw(self, make: Callable[[Any], Any], use: Callable[[list[TestCompletion]], bool]) -> None:
        """Hand the completions that hypothesis draws from a strategy to `use`, in chunks, until it returns True."""
        if make in self._drawn:
            any(use(chunk) for chunk in _chunks(self._drawn[make]))
            return
        drawn: list[TestCompletion] = []
        used = characters = 0
        is_kept = True
        last: object = None

        def flush() -> bool:
            nonlocal used, characters, is_kept
            chunk = drawn[used:]
            if characters >= _CHUNK_CHARACTERS:  # too much to keep for the next property
                drawn.clear()
                characters, is_kept = 0, False
            used = len(drawn)
            return use(chunk)

        def collect(sample: TestCompletion) -> bool:
            nonlocal characters, last
            if last is not None:  # hypothesis confirms what ended the search
                return sample.key == last
            drawn.append(sample)
            characters += len(sample.completion)
            if (len(drawn) - used == _CHUNK_SIZE or characters >= _CHUNK_CHARACTERS) and flush():
                last = sample.key
            return last is not None

        if find_completion(make(self), collect, examples=self.examples, seed=self.seed, shrink=False) is None:
            flush()
            if is_kept:
                self._drawn[make] = drawn

    # The bulk search

    @cached_property
    def bulk_presentations(self) -> list[Gold]:
        """What the bulk search starts from: the usual golds, items in which two values coincide, and varied items.

        A varied item counts only if the task calls it valid and solves it, and scorer and oracle agree that it did.
        """
        if not self.golds:
            return self.presentations
        common = self.full_presentations
        golds = list(common)
        most = min(_BULK_ITEMS, len(common) + self.examples * _BULK_ITEMS_FACTOR)
        until = time.monotonic() + _BULK_ITEM_SECONDS
        for number, item in enumerate(self._odd_items()):
            if len(golds) >= most or time.monotonic() > until:
                break
            gold = self.sandbox.solve(item)
            if gold is None:  # the task cannot solve what it did not make
                continue
            gold = replace(common[0], item=item, answer=gold.answer)
            [outcome] = self.sandbox.observe([gold.sample(gold.completion)], oracle=True)
            if outcome.correct and outcome.oracle:
                golds.append(gold)
            elif number > 100 and len(golds) < len(common) + 5:
                break  # ground truths of this task cannot be varied
        return golds

    def _odd_items(self) -> Iterator[Item]:
        choose = Random(self.seed).randrange
        items = self.items
        with contextlib.suppress(DataError):
            yield from (item for item in self.task.dataset("train", 1024, seed=self.seed) if _coincides(item))
        if not self.task.is_valid(items[0].ground_truth):
            return  # the task does not say which problems are possible
        for _ in range(20 * _BULK_ITEMS):
            item = items[choose(len(items))]
            truth = redraw(item.ground_truth, choose)
            if self.task.is_valid(truth):
                yield Item(truth, item.data)

    @cached_property
    def bulk_differences(self) -> tuple[int, list[TestCompletion]]:
        """How many completions the bulk search tried, and those on which scorer and oracle differ."""
        golds = self.bulk_presentations
        count = self.examples * BULK_FACTOR
        sandboxes = (self.sandbox, self.other_sandbox)
        # Threads that wait, each for a process of its own, which has half of the count and its own seed.
        with ThreadPoolExecutor(len(sandboxes)) as threads:
            jobs = [
                threads.submit(
                    sandbox.bulk_search, golds, seed=self.seed + place, count=count // 2, seconds=BULK_SECONDS
                )
                for place, sandbox in enumerate(sandboxes)
            ]
            results = [job.result() for job in jobs]
        return sum(tried for tried, _ in results), [sample for _, samples in results for sample in samples]


class CounterexampleSearch:
    """The search for a completion that fails one property."""

    def __init__(self, subject: TaskUnderTest, prop: Property) -> None:
        self._subject = subject
        self._prop = prop
        self._known: dict[object, Failure | None] = {}
        self._started = time.monotonic()
        self._kills = subject.sandbox.kills
        self._first_found: float | None = None

    def test(self, sample: TestCompletion) -> Failure | None:
        """How a completion fails; remembered, so that hypothesis always sees the same."""
        return next(self._test_all([sample]))

    def _test_all(self, samples: Sequence[TestCompletion]) -> Iterator[Failure | None]:
        """How completions fail, in order, scored together up to the first one that costs its process."""
        prop, subject = self._prop, self._subject
        assert prop.test is not None
        outcomes: dict[object, Outcome] = {}
        for place, sample in enumerate(samples):
            key = sample.key
            if key not in self._known:
                if key not in outcomes:
                    rest = [other for other in samples[place:] if other.key not in self._known]
                    scored = subject.observe_all(rest, oracle=prop.with_oracle, memory=prop.with_memory, most_kills=1)
                    outcomes |= {other.key: outcome for other, outcome in zip(rest, scored, strict=False)}
                    if prop.with_repeats:
                        subject.repeats([other for other in rest if not outcomes.get(other.key, _LOST).exit_status])
                subject.tried += 1
                self._known[key] = prop.test(subject, sample, outcomes[key])
            if self._known[key] is not None and self._first_found is None:
                self._first_found = time.monotonic()
            yield self._known[key]

    def shortest(self, samples: Iterable[TestCompletion]) -> TestCompletion | None:
        """The shortest of the completions that fail."""
        failing = []
        for chunk in _chunks(samples):
            for sample, failure in zip(chunk, self._test_all(chunk), strict=False):
                if failure is not None:
                    failing.append(sample)
                if self._is_over():
                    break
            if self._is_over():
                break
        return min(failing, key=lambda sample: (len(sample.completion), sample.completion), default=None)

    def _is_over(self) -> bool:
        kills = self._subject.sandbox.kills - self._kills
        if self._first_found is not None:
            return kills > 2 or time.monotonic() - self._first_found > SHRINK_SECONDS
        return kills > MOST_KILLS or time.monotonic() - self._started > SEARCH_SECONDS

    def draw(self, make: Callable[[Any], Any]) -> TestCompletion | None:
        """What hypothesis finds and shrinks."""

        def use(chunk: list[TestCompletion]) -> bool:
            for _ in self._test_all(chunk):
                if self._first_found is not None or self._is_over():
                    return True
            return self._is_over()

        subject = self._subject
        subject.draw(make, use)
        if self._first_found is None:
            return None
        return find_completion(make(subject), self._fails, examples=subject.examples, seed=subject.seed, shrink=True)

    def _fails(self, sample: TestCompletion) -> bool:
        if self._is_over():
            # Time is up: what is known stays so, all else counts as passing, and the search ends at once.
            return self._known.get(sample.key) is not None
        return self.test(sample) is not None


def _chunks(samples: Iterable[TestCompletion]) -> Iterator[list[TestCompletion]]:
    chunk: list[TestCompletion] = []
    characters = 0
    for sample in samples:
        chunk.append(sample)
        characters += len(sample.completion)
        if len(chunk) == _CHUNK_SIZE or characters > _CHUNK_CHARACTERS:
            yield chunk
            chunk, characters = [], 0
    yield chunk


def _coincides(item: Item) -> bool:
    """Whether two fields of the ground truth hold the same value, such as a target that is among the numbers."""
    truth = item.ground_truth
    fields = [
        {leaf for leaf in values_in(value) if isinstance(leaf, int | float | str)}
        for value in (truth.values() if isinstance(truth, dict) else ())
    ]
    return any(left & right for left, right in itertools.combinations(fields, 2))
