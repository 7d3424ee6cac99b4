"""Inside the child process: scores a completion and tells all that happened on the way.

What was printed (on the descriptors, so by C code too), what was run, imported or opened (by an audit hook), how long
it took, and how much memory. What to make of it is up to the laws; the parent's side is `sandbox.py`.

The bulk search here is not that of `fuzz/search.py`, on purpose. This one tries a fixed number of samples, each made
from its number alone, so that a check says the same wherever a process was lost on the way. The fuzzer goes where
answers, lines and findings lead it, for as long as it may, and so never twice the same way with several workers.
"""

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
from dataclasses import dataclass
from functools import cache
from multiprocessing.connection import Connection
from typing import Any, Literal

from tinyzero_sdk.errors import BrokenTaskError, TinyZeroError, describe_error
from tinyzero_sdk.records import Item, Json, Score, Split
from tinyzero_sdk.tasks.task import Task
from tinyzero_sdk.testing.completions import join_numbers, near_miss, rearrange
from tinyzero_sdk.testing.gold import Gold, find_gold
from tinyzero_sdk.testing.grammar import Grammar
from tinyzero_sdk.workers.process import SharedTimer

MEMORY_GIB = 1.0
"""So much address space a scorer may take beyond what the loaded task has."""

ENOUGH = 8
"""After so many differing verdicts a process ends its part of the bulk search."""

Fate = Literal["", "hung", "died", "hung in oracle", "died in oracle"]


@dataclass(frozen=True, slots=True)
class Observation:
    """What came of scoring one completion."""

    value: float = 0.0
    """The reward; 0 where there is none."""

    correct: bool = False
    """Whether the scorer said it is."""

    reason: str = "error"
    """As in `Score`."""

    answer: str | None = None
    """What was extracted."""

    refused: str = ""
    """Why the host refuses what a hook returned."""

    raised: str = ""
    """The exception and its place."""

    out_of_memory: bool = False
    """It was a MemoryError."""

    printed: str = ""
    """The first 200 bytes that came out on stdout or stderr."""

    actions: tuple[str, ...] = ()
    """The first few things it did that a scorer has no business to do."""

    changed_truth: bool = False
    """The ground truth is not what it was before."""

    seconds: float = 0.0
    """How long it took."""

    memory: int = 0
    """Bytes by which the greatest use of memory rose, where it was asked for."""

    oracle: bool | None = None
    """What the task's oracle says, where it was asked; None = it cannot tell."""

    oracle_raised: str = ""
    """The oracle's exception."""

    fate: Fate = ""
    """What became of the process, if it did not live to tell."""

    @property
    def verdict(self) -> tuple[float, bool, str, str | None]:
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


class _Watch:
    """An audit hook, which cannot be removed and is switched off while nothing is scored."""

    def __init__(self) -> None:
        self.on = False
        self.seen: list[str] = []
        sys.addaudithook(self)
        self._hear_of_threads()

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.on or len(self.seen) >= _MOST_ACTIONS:
            return
        if event in _FORBIDDEN or event.partition(".")[0] in _FORBIDDEN_FAMILIES:
            self.seen.append(f"{event} {_show(arguments)}".strip())

    def _hear_of_threads(self) -> None:
        """Python 3.11 has no audit event for a thread that starts."""
        start = threading.Thread.start

        def tell_and_start(thread: threading.Thread) -> None:
            self("_thread.start", (thread.name,))
            start(thread)

        threading.Thread.start = tell_and_start  # type: ignore[assignment, method-assign]


def _show(arguments: tuple[Any, ...]) -> str:
    for argument in arguments:
        if isinstance(argument, str | bytes | int):
            return ascii(argument[:60] if isinstance(argument, str | bytes) else argument)
        name = getattr(argument, "co_name", None)
        if name:
            return f"{name} of {argument.co_filename}"
    return ""


class _Output:
    """What comes out on the descriptors 1 and 2."""

    def __init__(self) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 - open as long as the process lives
        self._stderr = os.dup(2)
        for descriptor in (1, 2):
            os.dup2(self._file.fileno(), descriptor)

    def take(self) -> str:
        """The first of what came since the last call."""
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except Exception:  # a scorer may have put anything in their place, or closed them
                continue
        descriptor = self._file.fileno()
        if not os.fstat(descriptor).st_size:
            return ""
        text = os.pread(descriptor, 200, 0)
        os.ftruncate(descriptor, 0)
        os.lseek(descriptor, 0, os.SEEK_SET)
        return text.decode("utf-8", "backslashreplace")

    def restore(self) -> None:
        """Put stderr back, for the worker's own last words."""
        os.dup2(self._stderr, 2)


class _Peak:
    """The greatest use of memory, in bytes; where the system cannot reset it, it only ever rises."""

    def reset(self) -> int:
        """Begin anew; what is in use now."""
        try:
            with open("/proc/self/clear_refs", "w") as file:
                file.write("5")
        except OSError:
            pass
        return self.read()

    def read(self) -> int:
        try:
            with open("/proc/self/status", "rb") as file:
                for line in file:
                    if line.startswith(b"VmHWM"):
                        return int(line.split()[1]) * 1024
        except OSError:
            pass
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def serve(task: Task, connection: Connection, timer: SharedTimer) -> None:
    """What the child does (see `worker.Service`): requests (name of a method, arguments …) in, what it returns out."""
    _limit_memory()
    observer = _Observer(task, timer)
    try:
        while True:
            name, *arguments = connection.recv()
            connection.send(getattr(observer, name)(*arguments))
    finally:
        observer.output.restore()


def _limit_memory() -> None:
    try:
        with open("/proc/self/statm", "rb") as file:
            in_use = int(file.read().split()[0]) * os.sysconf("SC_PAGESIZE")
    except OSError:
        return
    limit = in_use + int(MEMORY_GIB * 2**30)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


class _Observer:
    def __init__(self, task: Task, timer: SharedTimer) -> None:
        self._task = task
        self._clock = timer
        self._watch = _Watch()
        self._peak = _Peak()
        self._hunt: _Hunt | None = None
        self._recursion_limit = sys.getrecursionlimit()
        self.output = _Output()
        warnings.simplefilter("always", append=True)  # else another law may hear what is said only once

    def warm_up(self, samples: Sequence[tuple[str, Json]]) -> None:
        """Score once unwatched, so that what a task imports on its first call is imported."""
        for text, truth in samples:
            self._clock.start(0)
            self._verdict(text, truth)
            self._clock.stop()
            self.output.take()
            sys.setrecursionlimit(self._recursion_limit)

    def _actions(self) -> tuple[str, ...]:
        """What it did, with what no audit event tells: the limit of recursion is another, and is put back."""
        limit = sys.getrecursionlimit()
        if limit == self._recursion_limit:
            return tuple(self._watch.seen)
        sys.setrecursionlimit(self._recursion_limit)
        return *self._watch.seen, f"sys.setrecursionlimit {limit}"

    def observe(self, text: str, truth: Json, ask_oracle: bool, weigh: bool) -> Observation:
        """Score one completion."""
        before = json.dumps(truth, sort_keys=True)
        floor = self._peak.reset() if weigh else 0
        self._watch.seen.clear()
        self._clock.start(0)
        started = time.perf_counter()
        self._watch.on = True
        try:
            told = self._verdict(text, truth)
        finally:
            self._watch.on = False
        seconds = time.perf_counter() - started
        self._clock.stop()
        memory = self._peak.read() - floor if weigh else 0
        if ask_oracle and isinstance(told.get("answer"), str):
            told |= self._ask_oracle(told["answer"], json.loads(before))
        return Observation(
            printed=self.output.take(),
            actions=self._actions(),
            changed_truth=_dumps(truth) != before,
            seconds=seconds,
            memory=memory,
            **told,
        )

    def _verdict(self, text: str, truth: Json) -> dict[str, Any]:
        answer = None
        try:
            answer = self._task.extract_answer(text)
            score = Score(0.0, False, "no_answer") if answer is None else self._task.score(answer, truth)
        except BaseException as error:  # a scorer may raise anything
            self._watch.on = False  # what we do to tell of it is not the scorer's doing
            kind = "refused" if type(error) is BrokenTaskError else "raised"
            told = str(error) if kind == "refused" else describe_error(error)
            return {kind: told, "answer": answer, "out_of_memory": isinstance(error, MemoryError)}
        return {"value": score.value, "correct": score.correct, "reason": score.reason, "answer": answer}

    def _ask_oracle(self, answer: str, truth: Json, index: int = 1) -> dict[str, Any]:
        self._clock.start(index)
        try:
            verdict = self._task.oracle(answer, truth)
            return {"oracle": None if verdict is None else bool(verdict)}
        except BaseException as error:  # as above
            return {"oracle_raised": str(error)}
        finally:
            self._clock.stop()

    def candidates(self, split: Split, size: int, seed: int, start: int) -> list[str]:
        """The candidates that `generate_dataset` makes in this process, as JSON."""
        return [show_item(item) for item in self._task.generate(split, size, seed=seed, start=start)]

    def solve(self, item: Item) -> Gold | None:
        """The gold completion of an item; None where the task cannot solve it."""
        self._clock.start(0)
        try:
            return find_gold(self._task, item)
        except (TinyZeroError, MemoryError):
            return None
        finally:
            self._clock.stop()
            self.output.take()

    def prepare_hunt(self, golds: Sequence[Gold], seed: int) -> None:
        """Take what `hunt` starts from."""
        self._hunt = _Hunt(self._task, golds, seed)

    def hunt(self, start: int, stop: int, seconds: float) -> tuple[int, list[tuple[int, str, bool]]]:
        """Judge samples number start … stop - 1, for so long at most.

        Returns the number of the first that was not judged, and of those where scorer and oracle differ: the number
        of the gold, the completion, and whether the scorer called it correct.
        """
        assert self._hunt is not None
        found = []
        until = time.monotonic() + seconds
        for number in range(start, stop):
            if number % 64 == 0 and time.monotonic() > until:
                stop = number
                break
            place, text = self._hunt.sample(number)
            gold = self._hunt.golds[place]
            truth = gold.item.ground_truth
            self._clock.start(number)
            told = self._verdict(text, truth)
            correct = told.get("correct", False)
            # The oracle is slow, and a correct answer rare: its word on the others is taken now and then.
            if isinstance(told.get("answer"), str) and (correct or number % 16 == 0):
                right = self._ask_oracle(told["answer"], truth, number).get("oracle")
                if right is not None and right != correct:
                    found.append((place, text, correct))
                    if len(found) >= ENOUGH:
                        stop = number + 1
                        break
        self._clock.stop()
        self.output.take()
        return stop, found


class _Hunt:
    """Samples by number, each the same whenever it is made: of the grammar, where there is one, and near gold."""

    def __init__(self, task: Task, golds: Sequence[Gold], seed: int) -> None:
        self.golds = golds
        self._others = [gold.answer for gold in golds[:100]]
        self._seed = seed
        self._random = random.Random()
        self._grammar = cache(lambda place: self._read_grammar(task, place))

    def _read_grammar(self, task: Task, place: int) -> Grammar | None:
        rules = task.grammar(self.golds[place].item)
        return Grammar(rules) if rules else None

    def sample(self, number: int) -> tuple[int, str]:
        """The place of the gold, and a completion."""
        self._random.seed(self._seed << 40 | number)
        choose = self._choose
        place = choose(len(self.golds))
        gold = self.golds[place]
        kind = number % 8
        if kind < 5:
            answer = rearrange(gold.answer, choose) if kind else near_miss(gold.answer, self._others, choose)
        else:
            grammar = self._grammar(place)
            answer = near_miss(gold.answer, self._others, choose) if grammar is None else grammar.draw(choose)
            if kind == 5:
                answer = join_numbers(answer, self._others, choose)
        return place, gold.with_answer(answer)

    def _choose(self, count: int) -> int:
        return int(self._random.random() * count)


def show_item(item: Item) -> str:
    """An item as JSON, to be compared."""
    from tinyzero_sdk.data.rows import plain

    return _dumps([plain(item.ground_truth), plain(item.data)])


def _dumps(value: Json) -> str:
    try:
        return json.dumps(value, sort_keys=True)
    except (TypeError, ValueError):  # a scorer put something else into its ground truth
        return ""
