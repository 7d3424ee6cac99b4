"""Imports that nothing looks for garbage in."""

import gc
import subprocess
import sys

from tinyzero_trainer.utils.startup import without_collector

SEEN = """
import gc, sys
from tinyzero_trainer.utils.startup import without_collector
seen = ["torch" in sys.modules]
try:
    with without_collector():
        seen += [gc.isenabled(), gc.get_freeze_count()]
        raise ImportError
except ImportError:
    print(*seen, gc.isenabled(), gc.get_freeze_count() > 1000)
"""


def test_what_is_imported_is_never_looked_through() -> None:
    done = subprocess.run([sys.executable, "-c", SEEN], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False", "0", "True", "True"]


def test_a_process_that_has_torch_already_keeps_its_garbage() -> None:
    import torch  # noqa: F401

    before = gc.isenabled(), gc.get_freeze_count()
    with without_collector():
        assert gc.isenabled()
    assert (gc.isenabled(), gc.get_freeze_count()) == before
