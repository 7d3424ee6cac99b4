"""What vLLM says: in this process only errors, in its own everything, into a file, where the reason of its end is."""

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

LINES = 400
"""Of the end of the file, in which the reason is looked for."""

LEVEL = "VLLM_LOGGING_LEVEL"
"""Variable of vLLM's; where the user has set it, that holds in all processes."""

_ERROR = re.compile(r"(?:^|\s)((?:[\w.]+\.)?\w*(?:Error|Exception): .*)$")
_SAYS_NOTHING = ("EngineDeadError", "Engine core initialization failed", "WorkerProc initialization failed")


class EngineLog:
    """The file of one engine after another."""

    def __init__(self, path: Path) -> None:
        """
        Args:
            path: made, or written to at its end.
        """
        self.path = path
        self._python = spawn.get_executable()
        self._begin = 0

    @contextlib.contextmanager
    def taken_by_children(self) -> Iterator[None]:
        """Within, processes that multiprocessing spawns write to the file."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._begin = self.path.stat().st_size if self.path.exists() else 0
        python, wrapper = self._python, self.path.with_suffix(".sh")
        level = "" if LEVEL in os.environ else f"export {LEVEL}=INFO\n"
        command = f'exec {shlex.quote(os.fsdecode(python))} "$@" >>{shlex.quote(str(self.path))} 2>&1'
        wrapper.write_text(f"#!/bin/sh\n{level}{command}\n", encoding="utf-8")
        wrapper.chmod(wrapper.stat().st_mode | stat.S_IXUSR)
        try:
            if _runs(wrapper):  # else, where nothing of the folder may be run, it is the terminal
                spawn.set_executable(str(wrapper))
            yield
        finally:
            spawn.set_executable(python)
            wrapper.unlink(missing_ok=True)

    def reason(self) -> str | None:
        """The last error that the present engine's process has told of, in one line; None where there is none."""
        if not self.path.exists():
            return None
        with self.path.open("rb") as file:
            file.seek(self._begin)
            lines = file.read().decode("utf-8", errors="replace").splitlines()[-LINES:]
        found = [match[1] for line in lines if (match := _ERROR.search(line))]
        telling = [line for line in found if not any(empty in line for empty in _SAYS_NOTHING)]
        return (telling or found or [None])[-1]


def hush() -> None:
    """Let vLLM say nothing but errors in this process, also before it has set up its log."""
    if LEVEL not in os.environ:
        logging.getLogger("vllm").setLevel(logging.ERROR)


def _runs(program: Path) -> bool:
    try:
        return subprocess.run([program, "-c", ""], check=False).returncode == 0
    except OSError:
        return False
