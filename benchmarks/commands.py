"""Runs commands under a time limit, kills everything they started, and reads the memory of GPUs meanwhile (NVML).

Not a benchmark: `step.py`, `memory.py` and others use it. Detached processes are found on Linux only.
"""

import itertools
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tinyzero_trainer.hardware.nvml import count_gpus, nvidia_driver

ROOT = Path(__file__).parents[1]
KILLED = 124  # exit code of a command that reached its limit
MARK = "TINYZERO_BENCHMARK"
"""Environment variable by which all processes of a command are found, even those that lost their parent."""

BUSY_BYTES = 2**30  # a GPU that holds more than this is in use; the driver itself takes less
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Finished:
    """A command that has ended."""

    lines: list[tuple[float, str]]  # seconds since its start, and what it printed then
    code: int
    seconds: float

    @property
    def output(self) -> str:
        return "\n".join(line for _, line in self.lines)


def run(
    command: Sequence[str],
    limit: float = math.inf,
    *,
    grace: float = 0.0,
    until: Callable[[], bool] | None = None,
    on_line: Callable[[float, str], None] | None = None,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> Finished:
    """Run a command; when it ends or reaches its limit in seconds, all processes that it started are killed.

    Args:
        grace: seconds between SIGTERM at the limit and the kill; 0 = no SIGTERM.
        until: polled twice a second; once it is true the command is killed and counts as successful.
        on_line: called with the seconds since the start and each line of output.
        env: variables to add to the environment.
    """
    started, lines, code = time.monotonic(), [], None
    mark = f"{os.getpid()}/{next(_numbers)}"
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    variables = {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", **(env or {}), MARK: mark}

    def read() -> None:
        with suppress(ValueError):  # the stream may be closed meanwhile
            for line in process.stdout or ():
                lines.append((time.monotonic() - started, line.rstrip()))
                if on_line is not None:
                    on_line(*lines[-1])

    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True,
        errors="replace", cwd=cwd, env=variables, start_new_session=True,
    ) as process:  # fmt: skip
        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        try:
            while code is None and (left := started + limit - time.monotonic()) > 0:
                with suppress(subprocess.TimeoutExpired):
                    code = process.wait(min(0.5, left))
                if until is not None and until():
                    code = 0
            if code is None and grace:
                process.terminate()
                with suppress(subprocess.TimeoutExpired):
                    process.wait(grace)
        finally:
            kill_marked(mark)  # detached processes would keep the output open, and the GPUs
            process.kill()
            reader.join(20)
    seconds = time.monotonic() - started
    if code is None:
        lines.append((seconds, f"stopped after {limit:g} s"))
    return Finished(lines, KILLED if code is None else code, seconds)


def kill_marked(mark: str) -> None:
    """Kill all processes with this mark, until none is left."""
    for _ in range(100):
        processes = [one for one in psutil.process_iter(["environ"]) if (one.info["environ"] or {}).get(MARK) == mark]
        if not processes:
            return
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        time.sleep(0.05)


def visible_gpus() -> list[str]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them; imports nothing that would use one."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return [str(index) for index in range(count_gpus())]
    return [gpu for gpu in visible.split(",") if gpu]


def device_name() -> str:
    """The first GPU and the driver's version; `CPU` without a GPU."""
    driver = nvidia_driver()
    return f"{driver.gpus[0].name}, {driver.version}" if driver is not None and driver.gpus else "CPU"


def memory_reader(gpu: str | None = None) -> Callable[[], int]:
    """A function that returns the bytes in use on a GPU by all processes; by default on the first visible one."""
    import pynvml

    pynvml.nvmlInit()
    gpu = gpu or os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]
    find = pynvml.nvmlDeviceGetHandleByIndex if gpu.isdecimal() else pynvml.nvmlDeviceGetHandleByUUID
    handle = find(int(gpu) if gpu.isdecimal() else gpu)
    return lambda: int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)


def wait_until_idle(gpus: Sequence[str | None], seconds: float = 60.0) -> None:
    """Wait for the memory of processes that have just ended, which is freed some seconds later."""
    deadline = time.monotonic() + seconds
    with suppress(Exception):  # without NVML there is nothing to wait for
        readers = [memory_reader(gpu) for gpu in gpus]
        while any(read() > BUSY_BYTES for read in readers) and time.monotonic() < deadline:
            time.sleep(0.5)


@dataclass(slots=True)
class MemoryReadings:
    """The memory of the first visible GPU over time, by all processes."""

    readings: list[tuple[float, int]] = field(default_factory=list)
    before: int = 0  # bytes in use at the beginning: by the driver and by other processes

    def peak(self, start: float = 0.0, end: float = math.inf) -> int | None:
        """Most bytes in use between two times, minus those in use before; None = there are no readings."""
        found = [used for at, used in self.readings if start <= at <= end]
        return max(found) - self.before if found else None


@contextmanager
def watch_gpu_memory(every: float = 0.05) -> Iterator[MemoryReadings]:
    """Read the memory of the first visible GPU in a thread; without NVML there are no readings."""
    memory, done = MemoryReadings(), threading.Event()
    try:
        read = memory_reader()
        memory.before = read()
    except Exception as error:
        print(f"NVML cannot be read: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        yield memory
        return

    def watch() -> None:
        while not done.wait(every):
            memory.readings.append((time.time(), read()))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield memory
    finally:
        done.set()
        thread.join()
