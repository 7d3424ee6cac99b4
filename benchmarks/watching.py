"""Runs a command under a limit of time, and watches the GPU's memory meanwhile: NVML, over all processes.

Not a benchmark: `step.py` and `memory.py` use it.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
KILLED = 124
"""Exit code of a command that reached its limit."""


def reader() -> Callable[[], int]:
    """A function for the bytes in use on the first GPU that is visible, by anybody.

    Raises:
        Exception: there is no NVIDIA driver, or no `pynvml`.
    """
    import pynvml

    pynvml.nvmlInit()
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]
    number = visible.isdecimal()
    card = pynvml.nvmlDeviceGetHandleByIndex(int(visible)) if number else pynvml.nvmlDeviceGetHandleByUUID(visible)
    return lambda: int(pynvml.nvmlDeviceGetMemoryInfo(card).used)


def bytes_in_use() -> int:
    """On the first GPU that is visible; 0 where there is none."""
    try:
        return reader()()
    except Exception:
        return 0


@dataclass(slots=True)
class Watch:
    """Readings of NVML, in a thread."""

    readings: list[tuple[float, int]] = field(default_factory=list)
    """Time, and bytes in use on the first GPU that is visible, by anybody."""

    before: int = 0
    """Bytes in use before the command: the driver's, and other people's."""

    done: threading.Event = field(default_factory=threading.Event)
    """Ends it."""

    def run(self, every: float = 0.05) -> None:
        """Read until `done`."""
        try:
            read = reader()
            self.before = read()
        except Exception as error:  # no NVIDIA driver: there is nothing to read
            print(f"NVML cannot be read: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            return
        while not self.done.wait(every):
            self.readings.append((time.time(), read()))

    def most(self, start: float = 0.0, end: float = float("inf")) -> int | None:
        """Most bytes in use between two times, without those from before; None = nothing was read."""
        found = [used for at, used in self.readings if start <= at <= end]
        return max(found) - self.before if found else None


@dataclass(frozen=True, slots=True)
class Watched:
    """What came of a command."""

    lines: list[tuple[float, str]]
    """What it printed, to either stream, and when: seconds after its start."""

    code: int
    """Its exit code."""

    watch: Watch
    """The GPU's memory meanwhile."""

    @property
    def output(self) -> str:
        """What it printed."""
        return "\n".join(line for _, line in self.lines)

    @property
    def timed_output(self) -> str:
        """The same, with the seconds in front of each line."""
        return "\n".join(f"{at:6.1f} s  {line}" for at, line in self.lines)


def run_watched(command: Sequence[str], limit: float, *, cwd: Path | None = None) -> Watched:
    """Run a command; at its limit, in seconds, it is killed with all processes that it started."""
    watch = Watch()
    watcher = threading.Thread(target=watch.run)
    watcher.start()
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    started = time.monotonic()
    lines: list[tuple[float, str]] = []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", cwd=cwd,
        stdin=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"},
        start_new_session=True,
    ) as process:  # fmt: skip
        # An engine left behind would hold memory from what comes next.
        killer = threading.Timer(limit, os.killpg, (process.pid, signal.SIGKILL))
        killer.start()
        try:
            assert process.stdout is not None
            lines.extend((time.monotonic() - started, line.rstrip()) for line in process.stdout)
            code = process.wait()
        finally:
            killer.cancel()
            watch.done.set()
            watcher.join()
    if code == -signal.SIGKILL:
        lines.append((time.monotonic() - started, f"stopped after {limit:g} s"))
        code = KILLED
    return Watched(lines, code, watch)
