"""The import of torch: its environment, no garbage collection meanwhile, and one line if it fails. No torch in here."""

import atexit
import gc
import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from traceback import walk_tb

from tinyzero_sdk.errors import TinyZeroError
from tinyzero_trainer.errors import first_line

_COMPILED_IN = {
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TRITON_CACHE_DIR": "triton",
    "FLASH_ATTENTION_CUTE_DSL_CACHE_DIR": "flash-attn-4",
}
"""Variables that say where compiled kernels are kept, and the directory's name in the user's cache."""


def user_cache(name: str) -> str:
    """A directory of the user's cache, which may not exist yet."""
    return f"{os.environ.get('XDG_CACHE_HOME') or '~/.cache'}/tinyzero/{name}"


def set_torch_environment() -> None:
    """Set the variables that torch reads once, where the user has not set them.

    transformers imports torchao where it is installed, which warns of compiled kernels that do not fit torch.
    Threads wait passively: active waiting makes a step ten times slower next to a busy process. Compiled kernels are
    kept in the user's cache, since torch's own place for them is /tmp.
    """
    if sys.flags.optimize > 1:
        raise TinyZeroError("python -OO removes the docstrings that transformers needs; use -O, or PYTHONOPTIMIZE=1")
    logging.getLogger("torchao").setLevel(logging.ERROR)
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    for variable, name in _COMPILED_IN.items():
        directory = Path(user_cache("compiled"), name).expanduser()
        with suppress(OSError):  # a home that cannot be written to, as in some containers
            if variable not in os.environ:
                directory.mkdir(parents=True, exist_ok=True)
                os.environ[variable] = str(directory)


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
        atexit.register(gc.freeze)  # a run on a GPU has unfrozen it by then


@contextmanager
def import_errors_in_one_line() -> Iterator[None]:
    """A TinyZeroError for a missing or broken package that the block imports; an error of our own code stays as it is.

    It names the package that our code imported, though the fault may be in another one that this needs.
    """
    try:
        yield
    except (ImportError, OSError) as error:  # OSError: a shared library cannot be loaded
        modules = [frame.f_globals.get("__name__", "") for frame, _ in walk_tb(error.__traceback__)]
        packages = [name.partition(".")[0] for name in (*modules, getattr(error, "name", None) or "")]
        package = next((name for name in packages if name not in ("", "importlib") and name[:9] != "tinyzero_"), None)
        if package is None:
            raise
        advice = "`tinyzero doctor` looks at the installation"
        if "failed to map segment" in str(error):
            advice = "memory is short, or `ulimit -v` limits it"
        raise TinyZeroError(f"cannot import {package} ({first_line(error)}); {advice}") from error
