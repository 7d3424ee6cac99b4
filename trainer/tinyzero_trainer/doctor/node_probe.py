"""What a process sees on a node of a cluster: run there by Ray, and here to compare.

Its source is sent to the nodes, since what is installed there may be older, or missing. Therefore it uses nothing but
the standard library.
"""

import os
import shutil
import time
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from platform import python_version
from typing import Any

MARKER_SECONDS = 3.0  # until a file that was just written is visible through a network file system


def look(names: list[str], marker: str, content: str, model: str) -> dict[str, Any]:
    """Fields of `NodeReport`, for JSON; `marker` is a file with `content` in the run directory, empty = none."""
    return {
        "python": python_version(),
        "packages": versions(names),
        "shared_memory": shutil.disk_usage("/dev/shm").total if Path("/dev/shm").is_dir() else None,
        "directory": directory(marker, content) if marker else "",
        "model": Path(model).is_dir() if model else None,
    }


def versions(names: list[str]) -> dict[str, str]:
    """Versions of the installed packages among these."""
    installed = {}
    for name in names:
        with suppress(metadata.PackageNotFoundError):
            installed[name] = metadata.version(name)
    return installed


def directory(marker: str, content: str, seconds: float = MARKER_SECONDS) -> str:
    """Whether the directory of a file that another machine wrote is the same one here; see `NodeReport.directory`."""
    file, deadline = Path(marker), time.monotonic() + seconds
    while True:
        with suppress(OSError):
            if file.read_text(encoding="utf-8") == content:
                return "shared" if os.access(file.parent, os.W_OK | os.X_OK) else "unwritable"
        if time.monotonic() > deadline:
            return "missing"
        time.sleep(0.1)
