"""What all commands share: how results, warnings and errors are shown, and the exit codes.

Results go to stdout, everything else to stderr, so that `--json` can be piped. Exit codes: 0 fine, 1 some
rows or checks failed, 2 wrong use, 70 a fault of ours (`EX_SOFTWARE` of sysexits.h), 130 interrupted.
"""

import json
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.markup import escape

from tinyzero_sdk.errors import TinyZeroError

UNEXPECTED = 70
"""Exit code of an error that nobody foresaw; 1 would say that some rows failed."""

# No emoji: `:x:` in a message is what somebody typed.
stdout = Console(highlight=False, emoji=False)
stderr = Console(stderr=True, highlight=False, emoji=False)


def print_json(value: Any) -> None:
    """`value` on stdout as JSON, in ASCII, so that any text of a model survives any terminal."""
    print(json.dumps(value, indent=2, default=str))


def warn(message: str) -> None:
    """One line on stderr, for what the user should know and the command survives."""
    _line("[yellow]warning:[/]", message)


@contextmanager
def exit_on_error() -> Iterator[None]:
    """Turn an error into one line on stderr and an exit code; with TINYZERO_DEBUG=1 also into a traceback."""
    try:
        yield
    except KeyboardInterrupt:  # while commands are still being collected; typer sees to the rest
        sys.exit(130)
    except Exception as error:  # the border to the user: nothing may pass it as a traceback
        if os.environ.get("TINYZERO_DEBUG") == "1":
            traceback.print_exc()
        if isinstance(error, TinyZeroError):
            _line("[red]error:[/]", str(error))
            sys.exit(error.exit_code)
        if isinstance(error, OSError):  # a full disk, say: nobody's fault in here
            _line("[red]error:[/]", str(error))
            sys.exit(2)
        _line("[red]unexpected error:[/]", f"{type(error).__name__}: {error} (set TINYZERO_DEBUG=1 to see where)")
        sys.exit(UNEXPECTED)


def _line(label: str, message: str) -> None:
    stderr.print(label, escape(" ".join(message.split())), soft_wrap=True)
