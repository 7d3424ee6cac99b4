"""What a process sees on a node of a cluster: run there by Ray, and here to compare.

Its source is sent to the nodes, since what is installed there may be older, or missing. Therefore it uses nothing but
the standard library.
"""

import os
import resource
import shutil
import subprocess
import time
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from platform import python_version
from typing import Any

GROUPS = ("tinyzero.plugins", "tinyzero.tasks")  # entry points of distributions that bring tasks
GPU_SECONDS = 10.0
MARKER_SECONDS = 3.0  # until a file that was just written is visible through a network file system


def look(names: list[str], marker: str, content: str, model: str) -> dict[str, Any]:
    """Fields of `NodeReport`, for JSON; `marker` is a file with `content` in the run directory, empty = none."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return {
        "python": python_version(),
        "packages": versions(names),
        "shared_memory": shutil.disk_usage("/dev/shm").total if Path("/dev/shm").is_dir() else None,
        "open_files": 2**31 if soft == resource.RLIM_INFINITY else soft,
        "gpus": gpus(),
        "directory": directory(marker, content) if marker else "",
        "model": Path(model).is_dir() if model else None,
    }


def versions(names: list[str]) -> dict[str, str]:
    """Versions of the installed packages among these and of all that bring tasks."""
    installed = {}
    points = [point for group in GROUPS for point in metadata.entry_points(group=group)]
    plugins = [point.dist.name for point in points if point.dist is not None]
    for name in dict.fromkeys([*names, *plugins]):
        with suppress(metadata.PackageNotFoundError):
            installed[name] = metadata.version(name)
    return installed


def gpus() -> list[str] | None:
    """Names of the GPUs that the driver knows, whichever of them Ray assigns; None = it cannot be queried."""
    command = ("nvidia-smi", "--query-gpu=name", "--format=csv,noheader")
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=GPU_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return [line.strip() for line in done.stdout.splitlines() if line.strip()]


def directory(marker: str, content: str, seconds: float = MARKER_SECONDS) -> str:
    """Whether the directory of a file that another machine wrote is the same one here; see `NodeReport.directory`."""
    file, deadline = Path(marker), time.monotonic() + seconds
    if not file.parent.is_dir():
        return "missing"
    while True:
        with suppress(OSError):
            if file.read_text(encoding="utf-8") == content:
                return "shared" if os.access(file.parent, os.W_OK | os.X_OK) else "unwritable"
        if time.monotonic() > deadline:
            return "other"
        time.sleep(0.1)
