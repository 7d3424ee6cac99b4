"""The child process of the sandbox: scores completions and records what happened on the way.

It records what was printed (on the descriptors, so by C code too), what was run, imported or opened (by an audit hook),
the time and the memory taken. What that means is up to the properties; the parent's side is `sandbox.py`.

The bulk search differs from `fuzz/search.py` on purpose. It tries a fixed number of samples, each made from its number
alone, so a check gives the same result wherever a process was lost. The fuzzer follows answers, lines and findings for
as long as it has time, so several workers never search the same way twice.
"""

import hashlib
import json
import os
import random
import resource
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from multiprocessing.connection import Connection
from typing import Any, Literal

from tinyzero_sdk.data.rows import plain
from tinyzero_sdk.errors import BrokenTaskError, TinyZeroError, describe_error
from tinyzero_sdk.records import Item, Json, Score, Split
from tinyzero_sdk.tasks.task import Task
from tinyzero_sdk.testing.completions import Stock, join_numbers, near_miss, rearrange, tokenize
from tinyzero_sdk.testing.gold import LONG, Gold, TestCompletion, find_gold
from tinyzero_sdk.testing.grammar import Grammar
from tinyzero_sdk.workers.process import SharedTimer, address_space, limit_memory

MEMORY_GIB = 1.0  # address space that a scorer may take beyond that of the loaded task
ENOUGH = 8  # disagreements of scorer and oracle after which a process ends its part of the bulk search
ExitStatus = Literal["", "hung", "died", "hung in oracle", "died in oracle"]


@dataclass(frozen=True, slots=True)
class Outcome:
    value: float = 0.0
    """The reward; 0 if there is none."""

    correct: bool = False
    reason: str = "error"
    answer: str | None = None
    """The answer that the task extracted; if it is long, its start and a hash."""

    refused: str = ""
    """Why the SDK refuses what a hook returned."""

    raised: str = ""
    out_of_memory: bool = False
    printed: str = ""
    """The first 200 bytes written to stdout or stderr."""

    actions: tuple[str, ...] = ()
    """The first few actions that a scorer must not take."""

    changed_truth: bool = False
    seconds: float = 0.0
    memory: int = 0
    """Bytes by which the peak of memory rose, if measured."""

    oracle: bool | None = None
    """The oracle's result, if called; None if it cannot tell."""

    oracle_raised: str = ""
    exit_status: ExitStatus = ""
    """How the process ended, if it did not survive."""

    @property
    def score(self) -> tuple[float, bool, str, str | None]:
        """What must be the same each time."""
        return self.value, self.correct, self.reason, self.answer


_FORBIDDEN = {
    "compile", "exec", "import", "open", "code.__new__", "marshal.load", "marshal.loads", "pickle.find_class",
    "builtins.input", "builtins.breakpoint", "sys.addaudithook", "time.sleep",
}  # fmt: skip
_FORBIDDEN_FAMILIES = {
    "os", "subprocess", "socket", "ctypes", "shutil", "tempfile", "glob", "pty", "sqlite3", "urllib", "http", "ftplib",
    "smtplib", "imaplib", "poplib", "webbrowser", "winreg", "msvcrt", "pathlib", "fcntl", "resource", "_thread",
}  # fmt: skip
_MOST_ACTIONS = 3


class _AuditWatch:
    """An audit hook, which cannot be removed and is switched off while nothing is scored."""

    def __init__(self) -> None:
        self.on = False
        self.seen: list[str] = []
        sys.addaudithook(self)
        start = threading.Thread.start

        def record_and_start(thread: threading.Thread) -> None:
            self("_thread.start", (thread.name,))  # Python 3.11 has no audit event for it
            start(thread)

        threading.Thread.start = record_and_start  # type: ignore[assignment, method-assign]

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.on or len(self.seen) >= _MOST_ACTIONS:
            return
        if event in _FORBIDDEN or event.partition(".")[0] in _FORBIDDEN_FAMILIES:
            self.seen.append(f"{event} {_show(arguments)}".strip())


def _show(arguments: tuple[Any, ...]) -> str:
    for argument in arguments:
        if isinstance(argument, str | bytes | int):
            return ascii(argument[:60] if isinstance(argument, str | bytes) else argument)
        name = getattr(argument, "co_name", None)
        if name:
            return f"{name} of {argument.co_filename}"
    return ""


class _Output:
    """What is written to the descriptors 1 and 2."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process lives
        self._stderr = os.dup(2)
        for descriptor in (1, 2):
            os.dup2(self._file.fileno(), descriptor)

    def take(self) -> str:
        """The first bytes written since the last call."""
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):  # a scorer may have put anything in their place, or closed them
                stream.flush()
        descriptor = self._file.fileno()
        if not os.fstat(descriptor).st_size:
            return ""
        text = os.pread(descriptor, 200, 0)
        os.ftruncate(descriptor, 0)
        os.lseek(descriptor, 0, os.SEEK_SET)
        return text.decode("utf-8", "backslashreplace")

    def restore(self) -> None:
        """Restore stderr, for a last message of the worker itself."""
        os.dup2(self._stderr, 2)


class _PeakMemory:
    """The peak of memory use, in bytes; it only rises on systems that cannot reset it."""

    def reset(self) -> int:
        """Start a new peak; returns what is in use now."""
        with suppress(OSError), open("/proc/self/clear_refs", "w") as file:
            file.write("5")
        return self.read()

    def read(self) -> int:
        with suppress(OSError), open("/proc/self/status", "rb") as file:
            for line in file:
                if line.startswith(b"VmHWM"):
                    return int(line.split()[1]) * 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def serve(task: Task, connection: Connection, timer: SharedTimer) -> None:
    """What the child does (see `workers.process.Service`): receives (method, arguments …), sends what it returns."""
    if in_use := address_space():
        limit_memory(in_use + int(MEMORY_GIB * 2**30))
    server = _SandboxServer(task, timer)
    try:
        while True:
            name, *arguments = connection.recv()
            connection.send(getattr(server, name)(*arguments))
    finally:
        server.output.restore()


class _SandboxServer:
    def __init__(self, task: Task, timer: SharedTimer) -> None:
        self._task = task
        self._timer = timer
        self._watch = _AuditWatch()
        self._peak = _PeakMemory()
        self._bulk_search: _BulkSearch | None = None
        self._recursion_limit = sys.getrecursionlimit()
        self.output = _Output()
        warnings.simplefilter("always", append=True)  # a warning shown once would be seen by one property alone

    def warm_up(self, samples: Sequence[TestCompletion]) -> None:
        """Score unwatched, so that what a task imports on its first call is imported."""
        for sample in samples:
            self._timer.start(0)
            self._score(sample.completion, sample.ground_truth)
            self._timer.stop()
            self.output.take()
            sys.setrecursionlimit(self._recursion_limit)

    def observe(self, samples: Sequence[TestCompletion], oracle: bool, memory: bool) -> list[Outcome]:
        """Score completions; the timer shows twice the sample's place, plus 1 during the oracle's call."""
        texts, truths = [sample.completion for sample in samples], [sample.ground_truth for sample in samples]
        self._task.prefetch(texts, deepcopy(truths), lambda: self._timer.start(0))
        return [self._observe(place, sample, oracle, memory) for place, sample in enumerate(samples)]

    def _observe(self, place: int, sample: TestCompletion, oracle: bool, measure_memory: bool) -> Outcome:
        truth = deepcopy(sample.ground_truth)  # samples of a batch may share it, and a scorer may change it
        before = json.dumps(truth, sort_keys=True)
        floor = self._peak.reset() if measure_memory else 0
        self._watch.seen.clear()
        self._timer.start(2 * place)
        started = time.perf_counter()
        self._watch.on = True
        try:
            result = self._score(sample.completion, truth)
        finally:
            self._watch.on = False
        seconds = time.perf_counter() - started
        self._timer.stop()
        memory = self._peak.read() - floor if measure_memory else 0
        changed = _dumps(truth) != before
        answer = result.get("answer")
        if isinstance(answer, str):
            if oracle:
                result |= self._call_oracle(answer, json.loads(before), 2 * place + 1)
            if len(answer) > LONG:
                digest = hashlib.blake2b(answer.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
                result["answer"] = f"{answer[:200]} … {answer[-20:]} (hash {digest})"
        limit = sys.getrecursionlimit()  # it has no audit event
        sys.setrecursionlimit(self._recursion_limit)
        raised_limit = () if limit == self._recursion_limit else (f"sys.setrecursionlimit {limit}",)
        return Outcome(
            printed=self.output.take(),
            actions=(*self._watch.seen, *raised_limit),
            changed_truth=changed,
            seconds=seconds,
            memory=memory,
            **result,
        )

    def _score(self, text: str, truth: Json) -> dict[str, Any]:
        answer = None
        try:
            answer = self._task.extract_answer(text)
            score = Score(0.0, False, "no_answer") if answer is None else self._task.score(answer, truth)
        except BaseException as error:  # a scorer may raise anything
            self._watch.on = False  # describing the error is our doing, not the scorer's
            is_refused = type(error) is BrokenTaskError
            described = {"refused": str(error)} if is_refused else {"raised": describe_error(error)}
            return {**described, "answer": answer, "out_of_memory": isinstance(error, MemoryError)}
        return {"value": score.value, "correct": score.correct, "reason": score.reason, "answer": answer}

    def _call_oracle(self, answer: str, truth: Json, index: int) -> dict[str, Any]:
        self._timer.start(index)
        try:
            right = self._task.oracle(answer, truth)
            return {"oracle": None if right is None else bool(right)}
        except BaseException as error:  # as above
            return {"oracle_raised": str(error)}
        finally:
            self._timer.stop()

    def candidates(self, split: Split, size: int, seed: int, start: int) -> list[str]:
        """The candidates that `generate_dataset` makes in this process, as JSON."""
        return [show_item(item) for item in self._task.generate(split, size, seed=seed, start=start)]

    def solve(self, item: Item) -> Gold | None:
        """The gold completion of an item; None if the task cannot solve it."""
        self._timer.start(0)
        try:
            return find_gold(self._task, item)
        except (TinyZeroError, MemoryError):
            return None
        finally:
            self._timer.stop()
            self.output.take()

    def prepare_bulk_search(self, golds: Sequence[Gold], seed: int) -> None:
        """Keep what the bulk search starts from."""
        self._bulk_search = _BulkSearch(self._task, golds, seed)

    def bulk_search(self, start: int, stop: int, seconds: float) -> tuple[int, list[TestCompletion]]:
        """Test samples number start … stop - 1, for `seconds` at most; each distinct one is scored once.

        Returns:
            The number of the first sample not tested, and the samples on which scorer and oracle disagree.
        """
        assert self._bulk_search is not None
        differing = []
        until = time.monotonic() + seconds
        for number in range(start, stop):
            if number % 64 == 0 and time.monotonic() > until:
                stop = number
                break
            sampled = self._bulk_search.sample(number)
            if sampled is None:
                continue
            gold, text = sampled
            truth = gold.item.ground_truth
            self._timer.start(number)
            result = self._score(text, truth)
            correct = result.get("correct", False)
            # The oracle is slow and a correct answer rare: of the incorrect ones it is shown a part.
            if isinstance(result.get("answer"), str) and (correct or number % 16 == 0):
                right = self._call_oracle(result["answer"], truth, number).get("oracle")
                if right is not None and right != correct:
                    differing.append(gold.sample(text))
                    if len(differing) >= ENOUGH:
                        stop = number + 1
                        break
        self._timer.stop()
        self.output.take()
        return stop, differing


class _BulkSearch:
    """Samples by number, from the grammar, if there is one, and near gold."""

    def __init__(self, task: Task, golds: Sequence[Gold], seed: int) -> None:
        self._golds = golds
        self._others = [gold.answer for gold in golds[:100]]
        self._seed = seed
        self._random = random.Random()
        draw = self._random.random
        self._choose = lambda count: int(draw() * count)
        self._grammar = cache(lambda place: Grammar(rules) if (rules := task.grammar(golds[place].item)) else None)
        self._known: set[tuple[int, str]] = set()

    def sample(self, number: int) -> tuple[Gold, str] | None:
        """An item's gold, and another completion for the item; None if it was sampled before."""
        self._random.seed(self._seed << 40 | number)
        choose = self._choose
        place = choose(len(self._golds))
        gold = self._golds[place]
        kind = number % 8
        if kind < 5:
            answer = rearrange(gold.answer, choose) if kind else near_miss(gold.answer, self._others, choose)
        else:
            grammar = self._grammar(place)
            answer = near_miss(gold.answer, self._others, choose) if grammar is None else grammar.draw(choose)
            if kind == 5:
                answer = "".join(join_numbers(tokenize(answer), Stock(choose)))
        if (place, answer) in self._known:
            return None
        self._known.add((place, answer))
        return gold, gold.with_answer(answer)


def show_item(item: Item) -> str:
    """An item as JSON, to be compared."""
    return _dumps([plain(item.ground_truth), plain(item.data)])


def _dumps(value: Json) -> str:
    try:
        return json.dumps(value, sort_keys=True)
    except (TypeError, ValueError):  # a scorer put something else into its ground truth
        return ""
