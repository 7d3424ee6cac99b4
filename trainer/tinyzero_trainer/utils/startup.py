"""Python's collector of garbage, kept away from what is imported. No torch in here: it is for before torch is."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collector() -> Iterator[None]:
    """For the import of torch: nothing looks for garbage within, nor ever among what there is at its end.

    Torch and transformers make 600,000 objects that stay. To look through them again and again, and once more when the
    process ends, takes two of the seven seconds of a short command. Where torch is already, nothing changes.
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
