"""The search in a worker process (see `workers.process.Service`).

It works in batches, each on one item, and sends every batch to the parent before trying it. It depends on its seed
alone, and runs until the parent ends it.
"""

import pickle
import random
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from multiprocessing.connection import Connection

from tinyzero_sdk.errors import TinyZeroError
from tinyzero_sdk.fuzz.coverage import TRACED, Coverage
from tinyzero_sdk.fuzz.differential import DifferentialOracle, ScoringFault
from tinyzero_sdk.fuzz.findings import Finding, FindingSet, make_finding, traits_of
from tinyzero_sdk.fuzz.items import FuzzItem, check_variant, make_variant
from tinyzero_sdk.fuzz.presentations import Attempt, honest, hostile, spray
from tinyzero_sdk.fuzz.reward_guess import guess_value
from tinyzero_sdk.records import Item, Json
from tinyzero_sdk.seeds import derive_seed
from tinyzero_sdk.tasks.task import Task
from tinyzero_sdk.testing.completions import malformed, mutate
from tinyzero_sdk.testing.ground_truth_mutation import fit
from tinyzero_sdk.testing.shrinking import minimize
from tinyzero_sdk.workers.process import SharedTimer, limit_memory, to_picklable_error

BATCH = 256

_FITTED = 0.7  # fraction of the wrong answers that are tried on the problem that they would solve
_DEEP = 0.15  # fraction of the mutated answers that start from one that reached a new line, on any problem
_MOST_DEEP = 8
_LONGEST_KEPT = 300
_NEARLY = Fraction(1, 50)
_LARGEST_FIT = 10**6
_POOL = 48  # items in the pool
_MOST_STEPS = 5  # variations of an item in a row; further away, problems become unnatural
_KNOWN_GOLDS = 64  # gold answers whose traits count as usual
_REPORT_SECONDS = 0.1


@dataclass(slots=True)
class AttemptBatch:
    """The attempts of a worker, for the parent to look up if the worker hangs or dies."""

    truth: Json
    attempts: list[Attempt]
    usual: frozenset[str]
    """Traits of gold answers, which distinguish nothing."""


@dataclass(slots=True)
class SearchProgress:
    """A worker's progress since its last report."""

    tried: int
    lines: int
    """Traced lines of the task's code reached so far."""

    findings: list[Finding]
    unsettled: Finding | None = None
    """A finding that is being shrunk; the next report has the result."""


@dataclass(frozen=True, slots=True)
class SearchSettings:
    seed: int
    memory_limit: int
    stop_after: int | None = None
    known: tuple[tuple[str, frozenset[str]], ...] = ()
    """Groups of findings that are not shrunk again."""

    avoided: tuple[frozenset[str], ...] = ()
    """Answers with all these traits took too long twice, and are skipped."""

    corpus: tuple[tuple[str, Json], ...] = ()
    """Completions, each with its ground truth, that are tried first, and whose answers are mutated."""

    suspect: tuple[str, Json] | None = None
    """A completion that the worker before did not survive, which is tried once more: a machine may be slow for once."""


def run_search(task: Task, connection: Connection, timer: SharedTimer, *, settings: SearchSettings) -> None:
    """Search until the parent ends the process."""
    warnings.simplefilter("ignore")  # a scorer's warnings are no findings
    limit_memory(settings.memory_limit)
    try:
        _FuzzSearch(task, connection, timer, settings).run()
    except (EOFError, BrokenPipeError, MemoryError):
        pass  # the parent is done with us; or a scorer leaks, and the parent blames the last attempt
    except Exception as error:  # from another hook of the task, or a bug of ours: no finding
        connection.send(to_picklable_error(error))


class _FuzzSearch:
    def __init__(self, task: Task, connection: Connection, timer: SharedTimer, settings: SearchSettings) -> None:
        self.differential = DifferentialOracle(task, timer)
        self.settings = settings
        self.rng = random.Random(derive_seed("fuzz", settings.seed))
        self.coverage = Coverage(task)
        self.findings = FindingSet()
        self.known = set(settings.known)
        self._connection = connection
        self._timer = timer
        self._pool: list[FuzzItem] = []
        self._deep: list[str] = []  # the last answers that reached a new line
        self._batch: tuple[Json, list[Attempt]] = (None, [])
        self._progress = SearchProgress(0, 0, [])
        self._reported = time.monotonic()
        self._items = self._endless_items()
        self.differential.preparing()
        self._fill()

    def run(self) -> None:
        if self.settings.suspect is not None:
            for item in self._pool[:2]:  # what a task does on its first calls takes longer
                self.differential.task.score_completion(item.short.with_answer(item.answers[0]), item.truth)
            text, truth = self.settings.suspect
            self._announce(truth, [Attempt(text)])
            self.differential.compare(Attempt(text), truth)
            self._timer.stop()
            self._report(now=True)
        for completion, truth in self.settings.corpus:
            variant = check_variant(self.differential, self._pool[0].original, truth, self.rng)
            if variant is not None:
                if answer := self.differential.task.extract_answer(completion):
                    variant.keep(answer)
                self._pool[int(self.rng.random() * len(self._pool))] = variant
                self._try_all(variant, [Attempt(completion)])
        while True:
            item = self._choose_item()
            self._try_all(item, self._make_batch(item))

    def _try_all(self, item: FuzzItem, attempts: list[Attempt]) -> None:
        self._batch = (item.truth, attempts)
        self._announce(*self._batch)
        for index, attempt in enumerate(attempts):
            self._try(item, attempt, index)
        self._timer.stop()
        self._report()

    # Items

    def _endless_items(self) -> Iterator[Item]:
        while True:
            count = 0
            for item in self.differential.task.dataset("train", seed=self.settings.seed):
                count += 1
                yield item
            if not count:
                raise TinyZeroError(
                    f"task {self.differential.task.name!r} has no items in split train; there is nothing to try"
                )

    def _fill(self) -> None:
        golds = []
        for _ in range(_KNOWN_GOLDS):
            item = FuzzItem(self.differential, next(self._items), self.rng)
            golds.append(item.gold or "")
            self._pool.append(item)
        del self._pool[_POOL:]
        self.golds = [gold for gold in golds if gold]
        self.usual: set[str] = set().union(*map(traits_of, self.golds))
        texts = [item.short.with_answer(item.gold or "") for item in self._pool]
        self._usual_texts = frozenset(self.usual).union(*map(traits_of, texts))

    def _choose_item(self) -> FuzzItem:
        self.differential.preparing()
        chance, old = self.rng.random(), self._pool[int(self.rng.random() * len(self._pool))]
        new: FuzzItem | None = None
        if chance < 0.15 or (chance < 0.6 and old.steps >= _MOST_STEPS):
            new = FuzzItem(self.differential, next(self._items), self.rng)
        elif chance < 0.6 and self.golds:
            new = make_variant(self.differential, old, self.rng)
        if new is None:
            return old
        self._pool[int(self.rng.random() * len(self._pool))] = new
        return new

    # Attempts

    def _make_batch(self, item: FuzzItem) -> list[Attempt]:
        attempts: list[Attempt] = []
        seen: set[str] = set()
        simple, item.simple = iter(item.simple), []
        for _ in range(BATCH):
            answer = next(simple, None)
            attempt = self._make_attempt(item) if answer is None else Attempt(item.short.with_answer(answer))
            if attempt is not None and attempt.text not in seen:
                seen.add(attempt.text)
                attempts.append(attempt)
        return attempts

    def _make_attempt(self, item: FuzzItem) -> Attempt | None:
        rng = self.rng
        chance = rng.random()
        if chance < 0.9:
            grammar = item.grammar
            if grammar is not None and chance < 0.45:
                answer = grammar.draw(item.stock.choose)
                if chance > 0.3:
                    answer = mutate(answer, item.stock)
            else:
                known = self._deep if self._deep and rng.random() < _DEEP else item.answers
                answer = mutate(item.stock.pick(known), item.stock)
            if self.settings.avoided:
                traits = traits_of(answer)
                if any(avoided <= traits for avoided in self.settings.avoided):
                    return None
            return Attempt(item.short.with_answer(answer))
        if chance < 0.96 and item.gold is not None:
            wrong = self.golds[int(rng.random() * len(self.golds))]  # another problem's, if it is wrong in this one
            if not self.differential.is_right(wrong, item.short.with_answer(wrong), item.truth):
                return (honest if rng.random() < 0.6 else spray)(item.short, item.gold, wrong, rng)
        gold = replace(item.short, answer=item.stock.pick(item.answers))
        if chance < 0.985:
            return Attempt(malformed(gold, item.stock.choose))
        return hostile(gold, item.stock.choose)

    # Results

    def _try(self, item: FuzzItem, attempt: Attempt, index: int) -> None:
        chance = self.rng.random()
        if chance < TRACED:
            with self.coverage:
                score, fault = self.differential.compare(attempt, item.truth, index)
            interesting = False
            if self.coverage.grew and score.answer and len(score.answer) < _LONGEST_KEPT:
                self._deep = [*self._deep[-_MOST_DEEP + 1 :], score.answer]
        else:
            # The oracle is the slowest part, and a wrong answer that scores full does the most harm.
            score, fault = self.differential.compare(
                attempt, item.truth, index, only_rewarded=not attempt.how and chance < 0.5
            )
            interesting = score.reason == "wrong" and self.rng.random() < 0.05
        self._progress.tried += 1
        if interesting and score.answer and len(score.answer) < _LONGEST_KEPT and not attempt.how:
            item.keep(score.answer)
        if fault is not None:
            self._note(item, attempt, fault)
        elif score.correct and score.answer:
            self.usual.update(traits_of(score.answer))  # scorer and oracle agree that it is right
        elif score.reason == "wrong" and score.answer is not None and chance < _FITTED:
            self._fit(item, attempt, index, score.answer)

    def _fit(self, item: FuzzItem, attempt: Attempt, index: int, answer: str) -> None:
        """Try a wrong answer on the problem whose ground truth has its value, if there is one."""
        value = guess_value(answer)
        if value is None or abs(value - round(value)) > _NEARLY or not 0 < round(value) < _LARGEST_FIT:
            return
        truth = fit(item.truth, answer, round(value), item.stock.choose)
        if truth is None:
            return
        self._progress.tried += 1
        _, fault = self.differential.compare(attempt, truth, index, only_rewarded=True)
        if (
            fault is not None
            and fault.kind == "wrong_rewarded"
            and not self._is_noted(make_finding(attempt, truth, fault, self.usual))
        ):
            fitted = check_variant(self.differential, item.original, truth, self.rng)
            if fitted is not None:
                self._note(fitted, attempt, fault)

    def _is_noted(self, finding: Finding) -> bool:
        traits = frozenset(finding.traits)
        if self.findings.is_known(finding.kind, traits) or (finding.kind, traits) in self.known:
            return True
        return self.findings.is_full(finding.kind)

    def _note(self, item: FuzzItem, attempt: Attempt, fault: ScoringFault) -> None:
        finding = make_finding(attempt, item.truth, fault, self.usual)
        if self._is_noted(finding):
            return
        self.known.add((finding.kind, frozenset(finding.traits)))
        self._progress.unsettled = finding
        self._report(now=True)  # before shrinking, which the worker may not survive
        smaller = finding if finding.is_about_presentation else self._shrunk(finding)
        self.findings.add(smaller)
        self._progress.findings.append(smaller)
        if self.settings.stop_after is not None and len(self.findings) >= self.settings.stop_after:
            self._report(now=True)
            self._timer.stop()
            self._connection.recv()  # waits until the parent ends the process
        self._announce(*self._batch)  # again: shrinking announced other attempts

    def _shrunk(self, finding: Finding) -> Finding:
        """The smallest finding of the same group."""

        smallest = finding

        def shows_it(text: str) -> bool:
            nonlocal smallest
            attempt = Attempt(text)
            self._announce(finding.ground_truth, [attempt])
            _, fault = self.differential.compare(attempt, finding.ground_truth)
            if fault is None or fault.kind != finding.kind:
                return False
            smaller = make_finding(attempt, finding.ground_truth, fault, self.usual)
            if not set(smaller.traits) <= set(finding.traits):
                return False
            smallest = min(smallest, smaller, key=lambda finding: finding.size)
            return True

        minimize(finding.completion, shows_it)
        return smallest

    def _announce(self, truth: Json, attempts: list[Attempt]) -> None:
        # As bytes, which the parent unpickles only if it loses the worker.
        self._connection.send(pickle.dumps(AttemptBatch(truth, attempts, self._usual_texts)))

    def _report(self, now: bool = False) -> None:
        if now or time.monotonic() - self._reported > _REPORT_SECONDS or self._progress.findings:
            self._progress.lines = len(self.coverage.lines)
            self._connection.send(self._progress)
            self._progress = SearchProgress(0, 0, [])
            self._reported = time.monotonic()
