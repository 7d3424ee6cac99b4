"""Output of the commands: results, warnings, errors and exit codes.

Results go to stdout, everything else to stderr, so that `--json` can be piped. Exit codes: 0 success, 1 some rows or
checks failed, 2 usage error, 70 internal error (`EX_SOFTWARE` of sysexits.h), 130 interrupted.
"""

import errno
import json
import math
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from rich.console import Console
from rich.markup import escape

from tinyzero_sdk.errors import TinyZeroError

UNEXPECTED = 70  # exit code of an unexpected error


# No emoji: `:x:` in a message is the user's own text.
stdout = Console(highlight=False, emoji=False)
stderr = Console(stderr=True, highlight=False, emoji=False)


def plural(number: int, name: str) -> str:
    """A number of things.

    Example:
        >>> plural(1, "step"), plural(1000, "step")
        ('1 step', '1,000 steps')
    """
    return f"{number:,} {name}{'' if number == 1 else 's'}"


def percent(fraction: float) -> str:
    """A fraction as every command prints it.

    Example:
        >>> percent(0.4567)
        '45.7%'
    """
    return f"{fraction:.1%}"


def print_json(value: Any) -> None:
    """Print `value` on stdout as JSON, in ASCII, so that any model's text survives any terminal."""
    stdout.out(json.dumps(finite(value), indent=2, default=str), highlight=False)


def finite(value: Any) -> Any:
    """The same with null for NaN and infinities, which JSON does not have.

    Example:
        >>> finite({"rate": 0.5, "values": (1, float("inf"))})
        {'rate': 0.5, 'values': [1, None]}
    """
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(entry) for key, entry in value.items()}
    return [finite(entry) for entry in value] if isinstance(value, (list, tuple)) else value


def warn(message: str) -> None:
    """Print a one-line warning on stderr."""
    _line("[yellow]warning:[/]", message)


class LossyStream:
    """A stream that loses what cannot be written: a full disk, or a reader that leaves (`| head -1`), costs the output,
    not the work.
    """

    lost: OSError | None = None
    """Why something was lost."""

    def __init__(self, stream: Any, edit: Callable[[str], str] = lambda text: text) -> None:
        """`edit` is what becomes of each text, such as `redact`."""
        self._stream = stream
        self._edit = edit

    def write(self, text: str) -> int:
        self._keep_on(lambda: self._stream.write(self._edit(text)))
        return len(text)

    def flush(self) -> None:
        self._keep_on(self._stream.flush)

    def _keep_on(self, write: Callable[[], object]) -> None:
        try:
            write()
        except OSError as error:
            self.lost = error
            with suppress(OSError):  # what is buffered would be tried again, up to the interpreter's exit
                os.dup2(os.open(os.devnull, os.O_WRONLY), self._stream.fileno())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def exit_on_error() -> Iterator[None]:
    """Turn an error into one line on stderr and an exit code; with TINYZERO_DEBUG=1 also into a traceback."""
    try:
        yield
    except KeyboardInterrupt:  # while commands are collected; typer handles it afterwards
        sys.exit(130)
    except Exception as error:  # the border to the user: no tracebacks
        if os.environ.get("TINYZERO_DEBUG") == "1":
            traceback.print_exc()
        if isinstance(error, TinyZeroError):
            _line("[red]error:[/]", str(error))
            sys.exit(error.exit_code)
        if isinstance(error, OSError):
            what = error.filename or ("cannot write the output" if error.errno == errno.ENOSPC else None)
            _line("[red]error:[/]", f"{what}: {error.strerror}" if what else str(error))
            sys.exit(2)
        _line("[red]unexpected error:[/]", f"{type(error).__name__}: {error} (set TINYZERO_DEBUG=1 to see where)")
        sys.exit(UNEXPECTED)


def _line(label: str, message: str) -> None:
    stderr.print(label, escape(" ".join(message.split())), soft_wrap=True)
