"""Runs jobs concurrently, each on its own GPUs and under a time limit; what the jobs do is in jobs.py.

A job that fails does not stop the others.
"""

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.commands import KILLED, kill_marked, run, wait_until_idle

HEARTBEAT_SECONDS = 20.0
"""Between two lines about the running jobs."""

DELAY_SECONDS = 2.0
"""Between the starts of two jobs: two Rays that look for free ports at the same moment may find the same one."""

LEAST_SECONDS = 15.0
"""A job is not started if less time is left."""

SHOWN_LINES = 12
"""Of the output of a job that failed."""


class Failed(Exception):
    """A job failed; the message goes into the results."""


@dataclass(slots=True)
class RunningJob:
    """A job at work, which runs commands on its GPUs until its deadline."""

    name: str
    gpus: Sequence[str]
    """The GPUs that its commands see, as CUDA_VISIBLE_DEVICES names them."""

    deadline: float
    """By `time.monotonic`."""

    log: Path
    """File for the output of its commands."""

    lines: deque[str] = field(default_factory=lambda: deque(maxlen=SHOWN_LINES))
    """The last lines of output, after the seconds since its start."""

    began: float = field(default_factory=time.monotonic)

    def run(self, command: Sequence[str], *, until: Callable[[], bool] | None = None) -> None:
        """Run a command; `until` as in `commands.run`.

        Raises:
            Failed: the command failed, or reached the deadline.
        """
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("a", encoding="utf-8") as log:

            def show(_: float, line: str) -> None:
                self.lines.append(f"{self.seconds:6.1f} s  {line}")
                print(self.lines[-1], file=log, flush=True)

            env = {"CUDA_VISIBLE_DEVICES": ",".join(self.gpus)}
            done = run(command, self.deadline - time.monotonic(), until=until, on_line=show, env=env)
        if done.code:
            why = (
                f"stopped at its limit, after {self.seconds:.0f} s" if done.code == KILLED else f"exit code {done.code}"
            )
            raise Failed("\n".join([why, *self.lines]))

    @property
    def seconds(self) -> float:
        """Since its start."""
        return time.monotonic() - self.began


@dataclass(frozen=True, slots=True)
class Job:
    """Something to measure."""

    name: str
    gpus: int
    """On the CPU: processes."""

    work: Callable[[RunningJob], Mapping[str, Any]]
    """Measures it; the result must be plain JSON."""

    needs: tuple[str, ...] = ()
    """Names of jobs that must succeed before."""

    limit: float = 240.0
    """Seconds, after which it is killed."""


def run_jobs(
    jobs: Sequence[Job],
    results: MutableMapping[str, Any],
    *,
    gpus: Sequence[str],
    folder: Path,
    deadline: float,
    save: Callable[[], None],
    on_gpus: bool = True,
    concurrent: bool = True,
) -> None:
    """Do all jobs that have no successful result yet, each as soon as there are GPUs for it.

    Args:
        jobs: earlier ones are preferred.
        results: by name of the job; each is added when its job ends.
        gpus: as CUDA_VISIBLE_DEVICES names them; on the CPU, any names of as many processes.
        folder: for the logs of jobs.
        deadline: of all jobs, by `time.monotonic`.
        save: called after each job.
        on_gpus: whether jobs see GPUs.
        concurrent: whether several jobs may run at a time.
    """
    began, changed, stopped = time.monotonic(), threading.Condition(), threading.Event()
    free, running = list(gpus), list[RunningJob]()
    waiting = [job for job in jobs if not succeeded(results, job.name)]
    for job in waiting:
        results.pop(job.name, None)

    def report(line: str) -> None:
        print(f"[{time.monotonic() - began:4.0f} s] {line}", file=sys.stderr, flush=True)

    def is_ready(job: Job) -> bool:
        failed = any(name in results and not succeeded(results, name) for name in job.needs)
        enough = len(free) >= (job.gpus if concurrent else len(gpus))
        return stopped.is_set() or failed or (enough and all(name in results for name in job.needs))

    def start(job: Job) -> tuple[RunningJob, list[str]] | str:
        """The running job and its GPUs; or why it cannot be started."""
        if job.gpus > len(gpus):
            return f"it needs {job.gpus} GPUs"
        latest = deadline - LEAST_SECONDS
        in_time = changed.wait_for(partial(is_ready, job), latest - time.monotonic()) and time.monotonic() <= latest
        if failed := [name for name in job.needs if name in results and not succeeded(results, name)]:
            return f"it needs the result of {failed[0]!r}"
        if not in_time or stopped.is_set():
            return "no time left"
        if running:
            time.sleep(DELAY_SECONDS)
        taken = [free.pop(0) for _ in range(job.gpus)]
        end = min(deadline, time.monotonic() + job.limit)
        running.append(RunningJob(job.name, taken if on_gpus else (), end, folder / f"{slug(job.name)}.txt"))
        where = f" on GPU {', '.join(taken)}" if on_gpus else ""
        report(f"{job.name}: started{where}, for at most {end - time.monotonic():.0f} s")
        return running[-1], taken

    def do(job: Job) -> None:
        with changed:
            started = start(job)
            if isinstance(started, str):
                report(f"{job.name}: not started: {started}")
                results[job.name] = {"error": f"not started: {started}"}
                save()
                changed.notify_all()
                return
        at_work, taken = started
        try:
            result = dict(job.work(at_work))
            report(f"{job.name}: done in {at_work.seconds:.0f} s")
        except Exception as error:
            result = {"error": str(error) if isinstance(error, Failed) else f"{type(error).__name__}: {error}"}
            report(f"{job.name}: FAILED after {at_work.seconds:.0f} s: {result['error']}")
        result["job_s"] = at_work.seconds
        wait_until_idle(at_work.gpus, seconds=20.0)
        with changed:
            free.extend(taken)
            running.remove(at_work)
            results[job.name] = result
            save()
            changed.notify_all()

    pool = ThreadPoolExecutor(max(1, len(waiting)))
    try:
        unfinished = {pool.submit(do, job) for job in waiting}
        while unfinished := wait(unfinished, HEARTBEAT_SECONDS).not_done:
            for job in list(running):
                report(f"{job.name}: {job.lines[-1] if job.lines else 'no output yet'}")
    finally:
        stopped.set()
        for job in list(running):
            job.deadline = 0.0  # its next command ends at once
        kill_marked()
        with changed:
            changed.notify_all()
        pool.shutdown(cancel_futures=True)


def succeeded(results: Mapping[str, Any], name: str) -> bool:
    """Whether there is a result without an error."""
    return name in results and "error" not in results[name]


def slug(name: str) -> str:
    """A name as a file name.

    Example:
        >>> slug("parity 0.5B: 2 GPUs, memory.cpu_offload=idle")
        'parity-0.5B-2-GPUs-memory.cpu_offload-idle'
    """
    return "-".join("".join(sign if sign.isalnum() or sign in "._" else " " for sign in name).split())
