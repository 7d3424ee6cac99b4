"""The child process of the sandbox: scores completions and records what happened on the way.

It records what was printed (on the descriptors, so by C code too), what was run, imported or opened (by an audit hook),
the time and the memory taken. What that means is up to the properties; the parent's side is `sandbox.py`.
"""

import hashlib
import json
import os
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
from multiprocessing.connection import Connection
from random import Random
from typing import Any, Literal

from tinyzero_sdk.data.rows import plain
from tinyzero_sdk.errors import BrokenTaskError, TinyZeroError, describe_error
from tinyzero_sdk.records import Item, Json, Score, Split
from tinyzero_sdk.tasks.task import Task
from tinyzero_sdk.testing.gold import LONG, Gold, TestCompletion, find_gold
from tinyzero_sdk.testing.surroundings import READS, Surroundings
from tinyzero_sdk.workers.process import SharedTimer, address_space, limit_memory

MEMORY_GIB = 1.0  # address space that a scorer may take beyond that of the loaded task
OracleUse = Literal["", "all", "some"]
"""Whether the oracle is called; `some`: on all correct answers, and on a part of the others, since it is slow."""

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

    reads: tuple[str, ...] = ()
    """The first few of the surroundings that the scorer read, but for the clock."""

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

    def describe(self) -> str:
        """The outcome in one line, for messages."""
        if self.exit_status:
            return _EXITS[self.exit_status]
        if self.raised:
            return f"the scorer raised {self.raised}"
        if self.refused:
            return self.refused
        if self.answer is None:
            return f"score {self.value:g}, no answer found"
        status = "correct" if self.correct else self.reason
        return f"score {self.value:g}, {status}, for the answer {short(self.answer)}"


_EXITS = {
    "hung": "no score: the scorer hung, and its process was killed",
    "died": "no score: the scorer's process died",
    "hung in oracle": "the oracle hung, and its process was killed",
    "died in oracle": "the oracle's process died",
}


def short(text: str, most: int = 60) -> str:
    """`text` in ASCII between quotes; the middle of a long one is left out."""
    shown = ascii(text)
    if len(shown) <= most:
        return shown
    return f"{shown[: most * 2 // 3]} … {shown[-most // 6 :]} ({len(text):,} characters)"


_FORBIDDEN = {
    "compile", "exec", "import", "open", "code.__new__", "marshal.load", "marshal.loads", "pickle.find_class",
    "builtins.input", "builtins.breakpoint", "sys.addaudithook", "time.sleep",
}  # fmt: skip
_FORBIDDEN_FAMILIES = {
    "os", "subprocess", "socket", "ctypes", "shutil", "tempfile", "glob", "pty", "sqlite3", "urllib", "http", "ftplib",
    "smtplib", "imaplib", "poplib", "webbrowser", "winreg", "msvcrt", "pathlib", "fcntl", "resource", "_thread",
}  # fmt: skip
_MOST_ACTIONS = 3
_DECADES = 30 * 365 * 86400.0  # seconds


class _AuditWatch:
    """An audit hook, which cannot be removed and is switched off while nothing is scored."""

    def __init__(self) -> None:
        self.on = False
        self.seen: list[str] = []
        self.reads: list[str] = []
        sys.addaudithook(self)
        start = threading.Thread.start

        def record_and_start(thread: threading.Thread) -> None:
            self("_thread.start", (thread.name,))  # Python 3.11 has no audit event for it
            start(thread)

        threading.Thread.start = record_and_start  # type: ignore[assignment, method-assign]

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.on or len(self.seen) >= _MOST_ACTIONS:
            return
        if event == READS and len(self.reads) < _MOST_ACTIONS:
            self.reads.append(f"{arguments[0]} {_show(arguments[1:])}".strip())
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


def _peak_memory(*, reset: bool = False) -> int:
    """The peak of memory use, in bytes; `reset` starts a new one, where the system can."""
    if reset:
        with suppress(OSError), open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    with suppress(OSError), open("/proc/self/status", "rb") as file:
        for line in file:
            if line.startswith(b"VmHWM"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def serve(
    task: Task, connection: Connection, timer: SharedTimer, *, surroundings: Surroundings, moves_clock: bool
) -> None:
    """What the child does (see `workers.process.Service`): receives (method, arguments …), sends what it returns."""
    if in_use := address_space():
        limit_memory(in_use + int(MEMORY_GIB * 2**30))
    server = _SandboxServer(task, timer, surroundings, moves_clock)
    try:
        while True:
            name, *arguments = connection.recv()
            connection.send(getattr(server, name)(*arguments))
    finally:
        server.output.restore()


class _SandboxServer:
    def __init__(self, task: Task, timer: SharedTimer, surroundings: Surroundings, moves_clock: bool) -> None:
        self._task = task
        self._timer = timer
        self._surroundings = surroundings
        self._chance = Random(0) if moves_clock else None
        self._watch = _AuditWatch()
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

    def observe(self, samples: Sequence[TestCompletion], oracle: OracleUse, memory: bool) -> list[Outcome]:
        """Score completions; the timer shows twice the sample's place, plus 1 during the oracle's call."""
        texts, truths = [sample.completion for sample in samples], [sample.ground_truth for sample in samples]
        self._task.prefetch(texts, deepcopy(truths), lambda: self._timer.start(0))
        return [self._observe(place, sample, oracle, memory) for place, sample in enumerate(samples)]

    def _observe(self, place: int, sample: TestCompletion, oracle: OracleUse, measure_memory: bool) -> Outcome:
        truth = deepcopy(sample.ground_truth)  # samples of a batch may share it, and a scorer may change it
        before = json.dumps(truth, sort_keys=True)
        floor = _peak_memory(reset=True) if measure_memory else 0
        self._watch.seen.clear()
        self._watch.reads.clear()
        self._timer.start(2 * place)
        started = time.perf_counter()
        self._watch.on = True
        self._surroundings.ahead = self._chance.uniform(0, _DECADES) if self._chance else 0.0
        try:
            result = self._score(sample.completion, truth)
        finally:
            self._watch.on, self._surroundings.ahead = False, 0.0
        seconds = time.perf_counter() - started
        self._timer.stop()
        memory = _peak_memory() - floor if measure_memory else 0
        changed = _dumps(truth) != before
        answer = result.get("answer")
        if isinstance(answer, str):
            if oracle == "all" or (oracle and (result.get("correct") or place % 16 == 0)):
                result |= self._call_oracle(answer, json.loads(before), 2 * place + 1)
            if len(answer) > LONG:
                digest = hashlib.blake2b(answer.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
                result["answer"] = f"{answer[:200]} … {answer[-20:]} (hash {digest})"
        limit = sys.getrecursionlimit()  # it has no audit event
        sys.setrecursionlimit(self._recursion_limit)
        if limit != self._recursion_limit:
            self._watch.seen.append(f"sys.setrecursionlimit {limit}")
        return Outcome(
            printed=self.output.take(),
            actions=tuple(self._watch.seen),
            reads=tuple(self._watch.reads),
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


def show_item(item: Item) -> str:
    """An item as JSON, to be compared."""
    return _dumps([plain(item.ground_truth), plain(item.data)])


def _dumps(value: Json) -> str:
    try:
        return json.dumps(value, sort_keys=True)
    except (TypeError, ValueError):  # a scorer put something else into its ground truth
        return ""
