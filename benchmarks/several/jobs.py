"""Runs jobs one after another, each on its own GPUs and under a time limit; what the jobs do is in suites.py.

A job that fails stops only those that need its result.
"""

import sys
import time
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.commands import KILLED, run, wait_until_idle

LEAST_SECONDS = 15.0  # a job is not started if less time is left
SHOWN_LINES = 12  # of the output of a job that failed


class Failed(Exception):
    """A job failed; the message goes into the results."""


@dataclass(slots=True)
class RunningJob:
    """A job at work, which runs commands on its GPUs until its deadline."""

    name: str
    gpus: Sequence[str]  # the GPUs that its commands see, as CUDA_VISIBLE_DEVICES names them
    deadline: float  # by `time.monotonic`
    lines: list[str] = field(default_factory=list)
    """The output of its commands, after the seconds since its start; it also goes to standard error."""

    began: float = field(default_factory=time.monotonic)
    failed: str | None = None  # why a command failed whose results are usable

    def run(
        self,
        command: Sequence[str],
        *,
        until: Callable[[], bool] = lambda: False,
        usable: Callable[[], bool] = lambda: False,
    ) -> None:
        """Run a command. Once `until` is true it is killed and counts as successful.

        Raises:
            Failed: the command failed or reached the deadline, without usable results.
        """

        def show(_: float, line: str) -> None:
            self.lines.append(f"{self.seconds:6.1f} s  {line}")
            print(f"{self.name}: {self.lines[-1]}", file=sys.stderr, flush=True)

        env = {"CUDA_VISIBLE_DEVICES": ",".join(self.gpus)}
        done = run(command, self.deadline - time.monotonic(), until=until, on_line=show, env=env)
        if done.code:
            limit = f"stopped at its limit, after {self.seconds:.0f} s"
            reason = limit if done.code == KILLED else f"exit code {done.code}"
            why = "\n".join([reason, *self.lines[-SHOWN_LINES:]])
            if not usable():
                raise Failed(why)
            self.failed = why

    @property
    def seconds(self) -> float:
        """Since its start."""
        return time.monotonic() - self.began


@dataclass(frozen=True, slots=True)
class Job:
    """Something to measure."""

    name: str
    gpus: int  # on the CPU: processes
    work: Callable[[RunningJob], Mapping[str, Any]]  # measures it; the result must be plain JSON
    needs: str | None = None  # name of a job that must succeed before
    limit: float = 300.0  # seconds, after which it is killed


def run_jobs(
    jobs: Sequence[Job],
    results: MutableMapping[str, Any],
    *,
    gpus: Sequence[str],
    deadline: float,
    save: Callable[[], None],
) -> None:
    """Do all jobs that have no successful result yet, in order; each follows the one that it needs.

    A job's result is added under its name, and saved. On the CPU there are no GPUs.
    """
    for job in jobs:
        if succeeded(results, job.name):
            continue
        end = min(deadline, time.monotonic() + job.limit)
        at_work = RunningJob(job.name, gpus[: job.gpus], end)
        try:
            if job.needs is not None and not succeeded(results, job.needs):
                raise Failed(f"not started: it needs the result of {job.needs!r}")
            if deadline - time.monotonic() < LEAST_SECONDS:
                raise Failed("not started: no time left")
            results[job.name] = dict(job.work(at_work))
            if at_work.failed:
                results[job.name]["failed"] = at_work.failed
        except Exception as error:  # the next job can still be measured
            results[job.name] = {
                "error": str(error) if isinstance(error, Failed) else f"{type(error).__name__}: {error}"
            }
        results[job.name]["job_s"] = at_work.seconds
        save()
        outcome = results[job.name].get("error", "done")
        print(f"{job.name}: {outcome} ({at_work.seconds:.0f} s)", file=sys.stderr, flush=True)
        wait_until_idle(at_work.gpus, seconds=20.0)


def succeeded(results: Mapping[str, Any], name: str) -> bool:
    """Whether there is a result without an error."""
    return name in results and "error" not in results[name]
