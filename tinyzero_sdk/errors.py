"""The errors a user can cause, in one family.

Each message is one line that says what was given, what was expected and what to do. The command line prints it without
a traceback and exits with `exit_code`. A failed assertion, by contrast, is a bug of ours.
"""

import difflib
import os
import sysconfig
import traceback
from collections.abc import Callable, Iterable

import pluggy

from tinyzero_sdk.redaction import redact

_SDK, _PLUGGY = os.path.dirname(__file__), os.path.dirname(pluggy.__file__)
_STDLIB = sysconfig.get_path("stdlib")
_LONGEST = 4000  # characters of an exception's message


class TinyZeroError(Exception):
    """Base of every error the SDK, a task or the trainer raises on purpose."""

    exit_code = 2
    """Exit code of the command line: 2 = usage error, 1 = some rows or checks failed."""

    policy_intact = True
    """Whether a training run that it ends can still save its last whole step."""


class SettingsError(TinyZeroError):
    """An option has an unknown name, is given twice, or has a value that does not fit."""


class TaskNotFoundError(TinyZeroError):
    """No installed distribution, family or file has the task."""


class TaskClashError(TinyZeroError):
    """Two distributions have a task of the same name."""


class BrokenTaskError(TinyZeroError):
    """A task cannot be loaded, lacks or misspells a hook, or returned an invalid value."""


class VersionMismatchError(TinyZeroError):
    """A task requires another SDK, or a worker has another version of the task than its controller."""


class UnsafeScorerError(TinyZeroError):
    """An unsafe scorer was called without the user's permission, or in a process where it may not run."""


class DataError(TinyZeroError):
    """A file or row cannot be read; the message names the file and, where there is one, the line."""


class ExhaustedError(DataError):
    """A task has fewer different problems than requested."""


def did_you_mean(name: str, known: Iterable[str], *, most: int = 1, show: Callable[[str], str] = str) -> str:
    """A suggestion of at most `most` known names for an unknown one, as part of a message; empty if none is similar.

    Example:
        >>> did_you_mean("countdwn", ["countdown", "gsm8k"]) + "installed: countdown, gsm8k"
        'did you mean countdown? installed: countdown, gsm8k'
        >>> did_you_mean("DAPO", ["dapo", "grpo"])
        'did you mean dapo? '
    """
    spelt = {other.casefold(): other for other in known}
    near = [spelt[other] for other in difflib.get_close_matches(name.casefold(), spelt, n=most)]
    return f"did you mean {' or '.join(map(show, near))}? " if near else ""


def describe_error(error: BaseException, *, quote: bool = False) -> str:
    """An exception of a plugin's code in one line: its type, its message, and the place of the last line of the plugin
    before it; with `quote` also that line, which for a SyntaxError is the wrong one.
    """
    try:
        text = redact(" ".join(str(error)[:_LONGEST].split()))
    except BaseException:  # an exception's message is plugin code too
        text = "(its message cannot be shown)"
    lines = [(frame.filename, frame.lineno, frame.line) for frame in traceback.extract_tb(error.__traceback__)]
    own = next((os.path.dirname(file) for file, *_ in lines if not _is_host(file)), None)
    within = [line for line in lines if own and line[0].startswith(own + os.sep)]
    lines = [line for line in within if "site-packages" not in line[0][len(str(own)) :]]
    if isinstance(error, SyntaxError) and error.filename:
        lines, text = [(error.filename, error.lineno, error.text)], error.msg
    quoted = "".join(f": {code.strip()}" for *_, code in lines[-1:] if quote and code)
    place = "".join(f" ({file}:{line})" for file, line, _ in lines[-1:]) + quoted
    return f"{type(error).__name__}: {text}{place}"


def _is_host(filename: str) -> bool:
    """Whether it is a file of the SDK or of what calls plugins for it."""
    is_installed = "site-packages" in filename
    return filename.startswith((_SDK, _PLUGGY)) or (not is_installed and filename.startswith((_STDLIB, "<frozen ")))
