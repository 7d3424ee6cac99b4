"""What the properties look at: a task's items, gold completions and outcomes, each made once; and the search for a
counterexample.

Completions are scored in child processes only (`sandbox.py`). What is tried, and in which order, follows from the seed;
how far the search goes also depends on the limits below, and so on the machine.
"""

import contextlib
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property, partial
from random import Random

from tinyzero_sdk.errors import DataError
from tinyzero_sdk.judge import REVERSED_VARIABLE
from tinyzero_sdk.records import Item, Split
from tinyzero_sdk.scoring.pool import ScoringPool
from tinyzero_sdk.tasks.task import Task
from tinyzero_sdk.testing import sampling
from tinyzero_sdk.testing.cases import Case
from tinyzero_sdk.testing.gold import LONG, Gold, TestCompletion, cut_at_answer, find_gold
from tinyzero_sdk.testing.ground_truth_mutation import coincides, nudge
from tinyzero_sdk.testing.property import Failure, NotChecked, Property
from tinyzero_sdk.testing.sandbox import TIMEOUT, Sandbox
from tinyzero_sdk.testing.sandbox_child import OracleUse, Outcome
from tinyzero_sdk.testing.shrinking import minimize
from tinyzero_sdk.workers.process import ClosesOnExit

ITEM_COUNT = 64

PRESENTATION_COUNT = 16  # gold completions, the shortest ones, that others are made from
MANY_RIGHT_ANSWERS = 24  # whose neighbours are tried
FEW_RIGHT_ANSWERS = 4  # of asynchronous scorers, whose calls may cost money
SHRINK_SECONDS = 6.0

SEARCH_SECONDS = 15.0  # time for one property without a failure, whatever number of examples was requested
MOST_KILLS = 6  # lost processes after which a property without a failure is tested no further
MANY_FACTOR = 1000  # completions of the search for disagreements, for each requested example
MANY_SECONDS = 30.0
ENOUGH = 8  # disagreements that end it

_VARIED_ITEMS = 500
_VARIED_SECONDS = 3.0
_SIMPLY = 0.6  # of the choices of a simple completion fall on the first
_CHUNK_SIZE = 128
_CHUNK_CHARACTERS = 2**23


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
        """Outcomes that printed, read or did something; some things happen only once."""
        self._outcomes: dict[object, Outcome] = {}
        self._lost: dict[object, Outcome] = {}  # what cost a process is not tried twice

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
        """Another one, which orders sets of text differently, in other surroundings."""
        elsewhere = {"TZ": "CHAST-12:45", "LANG": "de_DE.UTF-8", "LC_ALL": "de_DE.UTF-8"}
        return Sandbox(self.task, hash_seed=2, environment=elsewhere, moves_clock=not self.task.is_async)

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
        items = self._items("train")
        return items or [next(self.task.dataset("train", 1, seed=self.seed))]  # which raises the reason

    @cached_property
    def test_items(self) -> list[Item]:
        """None if all problems of a small task fall into the training split."""
        return self._items("test")

    def _items(self, split: Split) -> list[Item]:
        items: list[Item] = []
        with contextlib.suppress(DataError):  # the split has fewer
            for item in self.task.dataset(split, ITEM_COUNT, seed=self.seed):
                items.append(item)
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

    @cached_property
    def right_answers(self) -> list[Gold]:
        """Completions that score full, of some problems with different right answers.

        Where the task has no `solve`, they are found among its demonstrations and known cases, and its ground truths.

        Raises:
            NotChecked: there are none.
        """
        if self.golds:
            bare = self.full_presentations[0]
            golds = [replace(bare, item=gold.item, answer=gold.answer) for gold in self.golds]
        else:
            texts = [
                (item, self.task.demonstrate(item, self.seed) or f"<answer>{item.ground_truth}</answer>")
                for item in self.items
            ]
            texts += [(Item(case.ground_truth, {}), case.completion) for case in self.cases if case.correct]
            golds = [gold for item, text in texts if (gold := cut_at_answer(self.task, item, text))]
        outcomes = self.observe_all([gold.sample(gold.completion) for gold in golds])
        pairs = zip(golds, outcomes, strict=True)
        full = [*{gold.answer: gold for gold, outcome in pairs if self.is_full(outcome)}.values()]
        if not full:
            raise NotChecked("no right answer is known; add the hook `solve`")
        return full[:: -(-len(full) // (FEW_RIGHT_ANSWERS if self.task.is_async else MANY_RIGHT_ANSWERS))]

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

    def observe(self, sample: TestCompletion, *, oracle: OracleUse = "", memory: bool = False) -> Outcome:
        """The outcome of scoring a completion; remembered."""
        return self.observe_all([sample], oracle=oracle, memory=memory)[0]

    def observe_all(
        self,
        samples: Sequence[TestCompletion],
        *,
        oracle: OracleUse = "",
        memory: bool = False,
        most_kills: int = 10**9,
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
        self,
        samples: Sequence[TestCompletion],
        *,
        oracle: OracleUse = "",
        memory: bool = False,
        most_kills: int = 10**9,
    ) -> list[Outcome]:
        outcomes = self.sandbox.observe(samples, oracle=oracle, memory=memory, most_kills=most_kills)
        for sample, outcome in zip(samples, outcomes, strict=False):
            if outcome.exit_status:
                self._lost[sample.key] = outcome
            if (outcome.printed or outcome.actions or outcome.reads) and len(sample.completion) <= LONG:
                self.noticed.setdefault(sample.key, (sample, []))[1].append(outcome)
        return outcomes

    @cached_property
    def disagreements(self) -> list[TestCompletion]:
        """Some completions on which scorer and oracle differ, of very many near gold, scored in two processes.

        After the first one the search goes on for as many completions again.
        """
        until, seen, differing = time.monotonic() + MANY_SECONDS, set[object](), list[TestCompletion]()
        sandboxes, first = (self.sandbox, self.other_sandbox), 0
        with ThreadPoolExecutor(len(sandboxes)) as threads:
            for chunk in _chunks(self._near_gold()):
                new = {sample.key: sample for sample in chunk if sample.key not in seen}
                seen |= new.keys()
                parts = [[*new.values()][place :: len(sandboxes)] for place in range(len(sandboxes))]
                self.tried += len(new)
                for part, outcomes in zip(
                    parts, threads.map(partial(Sandbox.observe, oracle="some"), sandboxes, parts), strict=True
                ):
                    pairs = zip(part, outcomes, strict=True)
                    differing += [sample for sample, outcome in pairs if outcome.oracle not in (None, outcome.correct)]
                if not differing:
                    first = len(seen)
                if len(differing) >= ENOUGH or len(seen) > 2 * first or time.monotonic() > until:
                    break
        return differing

    def _near_gold(self) -> Iterator[TestCompletion]:
        """Simple answers first, also to problems in which two values coincide; then drawn ones."""
        golds = [replace(self.presentations[0], item=gold.item, answer=gold.answer) for gold in self.golds]
        yield from sampling.simple(self.task, [*self._coinciding, *golds], Random(self.seed).randrange)
        draw = sampling.near_gold(self.task, self.varied_presentations)
        yield from self._drawn(draw, self.examples * MANY_FACTOR)

    # Searching

    def search(self, prop: Property) -> Failure | None:
        """The smallest counterexample to a property of completions: of those it lists, or else of those drawn."""
        until = time.monotonic() + SEARCH_SECONDS
        failing = self._shortest(prop, prop.completions(self), until) if prop.completions else None
        if failing is None and prop.draw is not None:
            failing = self._shortest(prop, self._drawn(prop.draw(self), self.examples), until)
        if failing is None and prop.more is not None:
            failing = self._shortest(prop, prop.more(self), time.monotonic() + SEARCH_SECONDS)
        return None if failing is None else self.reduced(prop, failing)

    def _drawn(self, draw: sampling.Draw, count: int) -> Iterator[TestCompletion]:
        """Completions by chance; for one in four, most choices fall on the first, which is often the simplest."""
        chance = Random(self.seed).random

        def choose(count: int) -> int:
            return int(chance() * count)  # three times as fast as randrange

        def choose_simply(count: int) -> int:
            return 0 if chance() < _SIMPLY else choose(count)

        return (draw(choose if number % 4 else choose_simply) for number in range(count))

    def reduced(self, prop: Property, failing: TestCompletion) -> Failure:
        """The failure of a completion, cut down as far as the property and the time allow."""
        failure = self._failure(prop, failing)
        if failure is None:
            got = "the completion failed when it was tested first, and passes when it is tested again"
            return Failure(got, "the same score each time; see the check deterministic", failing)
        if prop.any_text and len(failing.completion) <= LONG:
            until, last_kill = time.monotonic() + SHRINK_SECONDS, self.sandbox.kills + MOST_KILLS
            text = minimize(
                failing.completion,
                lambda text: self._failure(prop, TestCompletion(text, failing.ground_truth)) is not None,
                is_over=lambda: time.monotonic() > until or self.sandbox.kills > last_kill,
            )
            if text != failing.completion:
                failing = TestCompletion(text, failing.ground_truth)
                failure = self._failure(prop, failing) or failure
        return replace(failure, sample=failing)

    def _shortest(self, prop: Property, samples: Iterable[TestCompletion], until: float) -> TestCompletion | None:
        """The shortest of the completions that fail, as far as the time and the lost processes allow."""
        failing: list[TestCompletion] = []
        first_kills, most_kills = self.sandbox.kills, MOST_KILLS
        for chunk in _chunks(samples):
            for sample, failure in zip(chunk, self._failures(prop, chunk), strict=False):
                if failure is not None:
                    if not failing:
                        until, most_kills = time.monotonic() + SHRINK_SECONDS, 2
                    failing.append(sample)
                if time.monotonic() > until or self.sandbox.kills - first_kills > most_kills:
                    return min(failing, key=_length, default=None)
        return min(failing, key=_length, default=None)

    def _failure(self, prop: Property, sample: TestCompletion) -> Failure | None:
        return next(self._failures(prop, [sample]))

    def _failures(self, prop: Property, samples: Sequence[TestCompletion]) -> Iterator[Failure | None]:
        """How completions fail, in order, scored together up to the first one that costs its process."""
        assert prop.test is not None
        while samples:
            outcomes = self.observe_all(
                samples, oracle="all" if prop.with_oracle else "", memory=prop.with_memory, most_kills=1
            )
            pairs = list(zip(samples, outcomes, strict=False))
            for sample, outcome in pairs:
                self.tried += 1
                yield prop.test(self, sample, outcome)
            samples = samples[len(pairs) :]

    @cached_property
    def _coinciding(self) -> list[Gold]:
        """Presentations, which score full, of problems in which two values coincide."""
        golds: list[Gold] = []
        with contextlib.suppress(DataError):  # the split has fewer
            for item in self.task.dataset("train", 1024, seed=self.seed) if self.golds else ():
                gold = find_gold(self.task, item) if coincides(item.ground_truth) else None
                if gold is not None and len(golds) < PRESENTATION_COUNT:
                    golds.append(replace(self.full_presentations[0], item=item, answer=gold.answer))
        outcomes = self.observe_all([gold.sample(gold.completion) for gold in golds], oracle="all")
        return [gold for gold, outcome in zip(golds, outcomes, strict=True) if outcome.correct and outcome.oracle]

    @cached_property
    def varied_presentations(self) -> list[Gold]:
        """Presentations that score full: of the usual items, and of varied ones.

        A varied item counts only if the task calls it valid and solves it, and scorer and oracle agree that it did.
        """
        if not self.golds:
            return self.presentations
        common = self.full_presentations
        golds = [*common, *self._coinciding]
        most = min(_VARIED_ITEMS, len(common) + 10 * self.examples)
        until = time.monotonic() + _VARIED_SECONDS
        for number, item in enumerate(self._odd_items()):
            if len(golds) >= most or time.monotonic() > until:
                break
            gold = self.sandbox.solve(item)
            if gold is None:  # the task cannot solve what it did not make
                continue
            gold = replace(common[0], item=item, answer=gold.answer)
            [outcome] = self.sandbox.observe([gold.sample(gold.completion)], oracle="all")
            if outcome.correct and outcome.oracle:
                golds.append(gold)
            elif number > 100 and len(golds) < len(common) + 5:
                break  # ground truths of this task cannot be varied
        return golds

    def _odd_items(self) -> Iterator[Item]:
        choose = Random(self.seed).randrange
        items = self.items
        if not self.task.is_valid(items[0].ground_truth):
            return  # the task does not say which problems are possible
        for _ in range(20 * _VARIED_ITEMS):
            item = items[choose(len(items))]
            for _ in range(1 + choose(6)):
                truth = nudge(item.ground_truth, choose)
                item = Item(truth, item.data) if self.task.is_valid(truth) else item
            yield item


def _length(sample: TestCompletion) -> tuple[int, str]:
    return len(sample.completion), sample.completion


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
