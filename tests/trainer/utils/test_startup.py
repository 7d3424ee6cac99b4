"""Garbage collection during the import of torch."""

import gc
import subprocess
import sys

from tinyzero_trainer.utils.startup import without_collector

CODE = """
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


def test_what_is_imported_is_exempt_from_collection() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False", "0", "True", "True"]


def test_nothing_changes_where_torch_is_imported_already() -> None:
    import torch  # noqa: F401

    before = gc.isenabled(), gc.get_freeze_count()
    with without_collector():
        assert gc.isenabled()
    assert (gc.isenabled(), gc.get_freeze_count()) == before
