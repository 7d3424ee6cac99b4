"""A directory that is made once, by whichever process comes first: under a lock, and moved into place when complete."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from tinyzero_sdk.console import stderr


def make_once(directory: Path, make: Callable[[Path], None]) -> None:
    """Have `make` write the directory to the path that it is given, unless it exists or another process makes it.

    If `make` raises or writes nothing, nothing is left.
    """
    from filelock import FileLock, Timeout

    directory.parent.mkdir(parents=True, exist_ok=True)
    lock, temporary = FileLock(f"{directory}.lock"), Path(f"{directory}.tmp")
    try:
        lock.acquire(blocking=False)
    except Timeout:
        waiting = f"waiting for another process that makes the same model (it holds {lock.lock_file})"
        stderr.print(waiting, soft_wrap=True, markup=False)
        lock.acquire()
    try:
        shutil.rmtree(temporary, ignore_errors=True)  # left by a killed process
        if not directory.is_dir():
            make(temporary)
        if temporary.is_dir():
            os.replace(temporary, directory)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        lock.release()
