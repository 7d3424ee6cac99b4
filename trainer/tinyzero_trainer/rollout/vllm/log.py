"""vLLM's output: errors only in this process; its own process writes to a file, which has the reason of a failure."""

import contextlib
import logging
import os
import re
import shlex
import stat
import subprocess
from collections.abc import Iterator
from multiprocessing import spawn
from pathlib import Path

LINES = 400  # at the end of the file, which are searched for the reason
LEVEL = "VLLM_LOGGING_LEVEL"  # vLLM's environment variable; if the user has set it, it applies to all processes

_ERROR = re.compile(r"(?:^|\s)((?:[\w.]+\.)?\w*(?:Error|Exception): .*)$")
_UNINFORMATIVE = ("EngineDeadError", "Engine core initialization failed", "WorkerProc initialization failed")


class EngineLog:
    """The log file of consecutive engines, which append to it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._python = spawn.get_executable()
        self._begin = 0

    @contextlib.contextmanager
    def captured(self) -> Iterator[None]:
        """Within the context, processes that multiprocessing spawns write to the file."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._begin = self.path.stat().st_size if self.path.exists() else 0
        python, wrapper = self._python, self.path.with_suffix(".sh")
        level = "" if LEVEL in os.environ else f"export {LEVEL}=INFO\n"
        command = f'exec {shlex.quote(os.fsdecode(python))} "$@" >>{shlex.quote(str(self.path))} 2>&1'
        wrapper.write_text(f"#!/bin/sh\n{level}{command}\n", encoding="utf-8")
        wrapper.chmod(wrapper.stat().st_mode | stat.S_IXUSR)
        try:
            with contextlib.suppress(OSError):  # a folder may forbid execution; then the output goes to the terminal
                if subprocess.run([wrapper, "-c", ""], check=False).returncode == 0:
                    spawn.set_executable(str(wrapper))
            yield
        finally:
            spawn.set_executable(python)
            wrapper.unlink(missing_ok=True)

    def reason(self) -> str | None:
        """The last error that the current engine's process has logged, in one line; None if there is none."""
        if not self.path.exists():
            return None
        with self.path.open("rb") as file:
            file.seek(self._begin)
            lines = file.read().decode("utf-8", errors="replace").splitlines()[-LINES:]
        errors = [match[1] for line in lines if (match := _ERROR.search(line))]
        informative = [line for line in errors if not any(name in line for name in _UNINFORMATIVE)]
        return (informative or errors or [None])[-1]


def quiet_logger() -> None:
    """Let vLLM log only errors in this process, even before it has set up its logger."""
    if LEVEL not in os.environ:
        logging.getLogger("vllm").setLevel(logging.ERROR)
