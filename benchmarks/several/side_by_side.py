"""Runs jobs side by side, each on GPUs of its own and under a limit of time, after which all that it started is killed.

What the jobs do is not in here. A job that fails does not stop the others. Linux only.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, NoReturn

from benchmarks.watching import ROOT

MARK = "TINYZERO_SIDE_BY_SIDE"
"""Variable in the environment of all that a job starts, by which it is found even without its parent."""

BEAT_SECONDS = 20.0
"""Between two lines about the jobs that are running."""

APART_SECONDS = 2.0
"""Between the starts of two jobs: two Rays that look for free ports at the same moment may find the same one."""

LEAST_SECONDS = 15.0
"""Jobs are not started for less."""

FREE_SECONDS = 20.0
"""To wait for the memory of processes that have ended, which comes back some seconds later."""

FREE_MB = 2048
"""What a GPU may hold that nobody uses: more than a driver takes for itself."""

SHOWN_LINES = 12
"""Of the output of a job that failed."""

Results = MutableMapping[str, Any]


class Failed(Exception):
    """A job could not do what it was to; the message is for the results."""


@dataclass(slots=True)
class Place:
    """Where a job runs, and how it runs commands there."""

    name: str
    """Of the job."""

    cards: Sequence[str]
    """The GPUs that its commands see, as CUDA_VISIBLE_DEVICES names them; none = they see none."""

    ends: float
    """When it is stopped, by `time.monotonic`."""

    log: Path
    """File for what its commands print."""

    mark: str
    """Of its processes."""

    lines: deque[str] = field(default_factory=lambda: deque(maxlen=200))
    """What was printed last, with the seconds in front."""

    began: float = field(default_factory=time.monotonic)
    """When it was started."""

    def run(self, command: Sequence[str], *, until: Callable[[], bool] | None = None) -> None:
        """Run a command.

        Args:
            command: what to run.
            until: asked twice a second; once it says so the command is killed, and has succeeded. None = to its end.

        Raises:
            Failed: it did, or its time is over.
        """
        path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
        mine = {"PYTHONPATH": path, "PYTHONUNBUFFERED": "1", MARK: self.mark}
        mine["CUDA_VISIBLE_DEVICES"] = ",".join(self.cards)
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True,
            errors="replace", env={**os.environ, **mine}, start_new_session=True,
        ) as process:  # fmt: skip
            assert process.stdout is not None
            reader = threading.Thread(target=self._read, args=(process.stdout,), daemon=True)
            reader.start()
            code: int | None = None
            try:
                while code is None and time.monotonic() < self.ends:
                    with suppress(subprocess.TimeoutExpired):
                        code = process.wait(min(0.5, max(0.0, self.ends - time.monotonic())))
                    if until is not None and until():
                        code = 0
            finally:
                kill_marked(self.mark)  # or what has lost its parent would hold the output open, and the GPUs
                process.kill()
                reader.join(FREE_SECONDS)
        if code:
            raise Failed(f"exit code {code}\n{self.last_lines()}")
        if code is None:
            raise Failed(f"stopped at its limit, after {self.seconds:.0f} s\n{self.last_lines()}")

    @property
    def seconds(self) -> float:
        """Since it was started."""
        return time.monotonic() - self.began

    def last_lines(self, count: int = SHOWN_LINES) -> str:
        """What was printed last."""
        return "\n".join(list(self.lines)[-count:])

    def _read(self, stream: IO[str]) -> None:
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("a", encoding="utf-8") as log, suppress(ValueError):  # the stream may be closed meanwhile
            for line in stream:
                self.lines.append(f"{self.seconds:6.1f} s  {line.rstrip()}")
                print(self.lines[-1], file=log, flush=True)


@dataclass(frozen=True, slots=True)
class Job:
    """Something to measure."""

    name: str
    """Of it, and of its result."""

    gpus: int
    """That it takes; on the CPU, processes."""

    work: Callable[[Place], Mapping[str, Any]]
    """Does it; what it found must be plain JSON."""

    needs: tuple[str, ...] = ()
    """Jobs that must have succeeded before."""

    limit: float = 240.0
    """Seconds, after which it is killed."""


class Board:
    """Which jobs wait, run and are done. One is started as soon as there are GPUs for it, in the order of the list."""

    def __init__(
        self, cards: Sequence[str], *, folder: Path, ends: float, save: Callable[[], None], gpus: bool, together: bool
    ) -> None:
        """
        Args:
            cards: the GPUs, as CUDA_VISIBLE_DEVICES names them.
            folder: for what jobs print.
            ends: when everything is over, by `time.monotonic`.
            save: is called after each job.
            gpus: whether they are GPUs at all, and not room on the CPU.
            together: whether several jobs may run at a time.
        """
        self._cards, self._folder, self._ends, self._save = list(cards), folder, ends, save
        self._all = len(cards)
        self._gpus, self._together, self._began = gpus, together, time.monotonic()
        self._running: dict[Future[Mapping[str, Any]], tuple[Job, Place, list[str]]] = {}

    def run(self, jobs: Iterable[Job], found: Results) -> None:
        """Do all jobs that have no result without an error yet; theirs is in `found` as soon as it is there."""
        waiting = [job for job in jobs if not succeeded(found, job.name)]
        for job in waiting:
            found.pop(job.name, None)
        beat = time.monotonic()
        pool = ThreadPoolExecutor(max(1, len(self._cards)))
        try:
            while waiting or self._running:
                waiting = self._refuse(waiting, found)
                ready = self._next(waiting, found)
                if ready is not None:
                    waiting.remove(ready)
                    self._start(pool, ready)
                done, _ = wait(self._running, 0.0 if ready else 1.0, FIRST_COMPLETED)
                for future in done:
                    self._close(future, found)
                if time.monotonic() - beat >= BEAT_SECONDS:
                    beat = time.monotonic()
                    self._tell_running()
        finally:
            for _, place, _ in self._running.values():
                place.ends = time.monotonic()  # it starts nothing more
            kill_marked(run_mark())
            pool.shutdown(wait=False, cancel_futures=True)

    def _refuse(self, waiting: list[Job], found: Results) -> list[Job]:
        """Give up those that can no longer be done."""
        left = []
        for job in waiting:
            missing = [name for name in job.needs if name in found and not succeeded(found, name)]
            if missing:
                self._give_up(job, f"it needs what {missing[0]!r} was to make", found)
            elif job.gpus > self._all:
                self._give_up(job, f"it needs {job.gpus} GPUs", found)
            elif self._ends - time.monotonic() < LEAST_SECONDS:
                self._give_up(job, "no time left", found)
            else:
                left.append(job)
        known = {job.name for job in left} | {job.name for job, *_ in self._running.values()} | found.keys()
        for job in left:
            assert known.issuperset(job.needs), f"{job.name} needs {job.needs}"
        return left

    def _give_up(self, job: Job, why: str, found: Results) -> None:
        found[job.name] = {"error": f"not started: {why}"}
        self._tell(f"{job.name}: not started: {why}")
        self._save()

    def _next(self, waiting: Sequence[Job], found: Results) -> Job | None:
        if self._running and not self._together:
            return None
        ready = (job for job in waiting if job.gpus <= len(self._cards))
        return next((job for job in ready if all(succeeded(found, name) for name in job.needs)), None)

    def _start(self, pool: ThreadPoolExecutor, job: Job) -> None:
        if self._running:
            time.sleep(APART_SECONDS)
        cards = [self._cards.pop(0) for _ in range(job.gpus)]
        ends = min(self._ends, time.monotonic() + job.limit)
        log = self._folder / f"{slug(job.name)}.txt"
        place = Place(job.name, cards if self._gpus else (), ends, log, f"{run_mark()}{slug(job.name)}/")
        where = f" on GPU {', '.join(cards)}" if self._gpus else ""
        self._tell(f"{job.name}: started{where}, for {ends - time.monotonic():.0f} s at most")
        self._running[pool.submit(_work, job, place)] = job, place, cards

    def _close(self, future: "Future[Mapping[str, Any]]", found: Results) -> None:
        job, place, cards = self._running.pop(future)
        self._cards = sorted([*self._cards, *cards])
        error = future.exception()
        if error is None:
            found[job.name] = {**future.result(), "job_s": place.seconds}
            self._tell(f"{job.name}: done in {place.seconds:.0f} s")
        else:
            text = str(error) if isinstance(error, Failed) else f"{type(error).__name__}: {error}"
            found[job.name] = {"error": text, "job_s": place.seconds}
            self._tell(f"{job.name}: FAILED after {place.seconds:.0f} s: {text}")
        self._save()

    def _tell_running(self) -> None:
        for job, place, _ in self._running.values():
            self._tell(f"{job.name}: {place.last_lines(1) or 'nothing printed yet'}")

    def _tell(self, line: str) -> None:
        print(f"[{time.monotonic() - self._began:4.0f} s] {line}", file=sys.stderr, flush=True)


def _work(job: Job, place: Place) -> Mapping[str, Any]:
    try:
        return job.work(place)
    finally:
        kill_marked(place.mark)
        if place.cards:
            wait_until_free(place.cards)


def succeeded(found: Mapping[str, Any], name: str) -> bool:
    """Whether there is a result, and it is no error."""
    return name in found and "error" not in found[name]


def slug(name: str) -> str:
    """A name as one of a file.

    Example:
        >>> slug("same 0.5B: 2 GPUs, memory.cpu_offload=idle")
        'same-0.5B-2-GPUs-memory.offload-idle'
    """
    return "-".join("".join(sign if sign.isalnum() or sign in "._" else " " for sign in name).split())


def run_mark() -> str:
    """Beginning of the marks of all jobs of this process."""
    return f"{os.getpid()}/"


def marked(mark: str) -> Iterator[int]:
    """Processes, by their number, with a mark that begins so; without those of other users."""
    sign = f"{MARK}={mark}".encode()
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        with suppress(OSError):  # gone, or another user's
            if any(entry.startswith(sign) for entry in (folder / "environ").read_bytes().split(b"\0")):
                yield int(folder.name)


def kill_marked(mark: str) -> None:
    """Kill them, and what they start meanwhile."""
    for _ in range(100):
        numbers = [number for number in marked(mark) if number != os.getpid()]
        if not numbers:
            return
        for number in numbers:
            with suppress(OSError):
                os.kill(number, signal.SIGKILL)
        time.sleep(0.05)


def find_cards() -> list[str]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them; imports nothing that would take one."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [card for card in visible.split(",") if card]
    try:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60, check=True)
        count = sum(line.startswith("GPU ") for line in done.stdout.splitlines())
    except (OSError, subprocess.SubprocessError):
        count = len(list(Path("/dev").glob("nvidia[0-9]*")))
    return [str(number) for number in range(count)]


def wait_until_free(cards: Sequence[str]) -> None:
    """Wait for the memory of GPUs that nobody uses any more; not for ever."""
    ask = ["nvidia-smi", "-i", ",".join(cards), "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    until = time.monotonic() + FREE_SECONDS
    while time.monotonic() < until:
        try:
            done = subprocess.run(ask, capture_output=True, text=True, timeout=20, check=True)
            if all(float(line) <= FREE_MB for line in done.stdout.split()):
                return
        except (OSError, ValueError, subprocess.SubprocessError):
            return
        time.sleep(0.5)


def end_on_sigterm() -> None:
    """Have SIGTERM end this process as Ctrl-C does, so that it kills what it started."""

    def leave(number: int, _: object) -> NoReturn:
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, leave)
