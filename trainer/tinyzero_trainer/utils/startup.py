"""What precedes the import of torch: quiet threads, and no garbage collection meanwhile. No torch in here."""

import gc
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


def calm_threads() -> None:
    """Make torch's threads wait passively; active waiting makes a step ten times slower next to a busy process."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


@contextmanager
def without_collector() -> Iterator[None]:
    """Import torch without garbage collection, and exempt from it whatever exists at the end.

    Scanning the 600,000 lasting objects of torch and transformers, again when the process ends, takes two of the seven
    seconds of a short command. Where torch is already imported, nothing changes.
    """
    if "torch" in sys.modules or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
