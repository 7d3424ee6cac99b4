"""Whose word it is that code runs: what a file of settings names is asked about before anything of it is loaded.

What a user types, and what a run of theirs has run, is their own word, and is remembered for their account. What a file
of somebody else names, such as a configuration, a recipe, or the settings of a run or a model, needs it.
"""

import hashlib
import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.prompt import Confirm

from tinyzero_sdk.console import stderr
from tinyzero_sdk.errors import SettingsError
from tinyzero_sdk.tasks.local_packages import is_path, place_of_function

TRUST_OPTION, TRUST_VARIABLE = "--trust-code", "TINYZERO_TRUST_CODE"
"""Given, or set to 1, where whatever is named may run."""

_PERMISSIONS = ("allow_unsafe=", "address=")  # to score text by running it; to take orders from a cluster
_named = set[str]()  # in this process, also where nothing can be written


def vouch(settings: Mapping[str, Any]) -> None:
    """Take the code that settings name as the user's own, now and in later processes."""
    new = _named_by(settings) - _trusted()
    _named.update(new)
    with suppress(OSError, RuntimeError):  # no home, or one that cannot be written: the user is asked again
        if lines := "".join(f"{code}\n" for code in sorted(new) if code.isprintable()):
            _record().parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with _record().open("a", encoding="utf-8") as file:
                file.write(lines)


def require_trust(file: Path, settings: Mapping[str, Any]) -> None:
    """Ask the user about the code that a file's settings name, unless it is trusted already.

    Raises:
        SettingsError: the user does not trust it, or cannot be asked.
    """
    unknown = sorted(_named_by(settings) - _trusted())
    if unknown and os.environ.get(TRUST_VARIABLE) != "1":
        shown = ", ".join(code if code.isprintable() else ascii(code) for code in unknown[:5])
        what = f"{file} names code that would run: {shown}{' …' if unknown[5:] else ''}"
        asks = sys.stdin is not None and sys.stdin.isatty() and stderr.is_terminal
        if not asks or not Confirm.ask(escape(f"{what}. Do you trust it?"), console=stderr, default=False):
            raise SettingsError(f"{what}; read it, and if you trust it add {TRUST_OPTION}")
    vouch(settings)


def _record() -> Path:
    """The file of what is trusted: a line each, which may be deleted."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "tinyzero" / "trusted_code"


def _trusted() -> set[str]:
    with suppress(OSError, RuntimeError, UnicodeDecodeError):
        return {*_record().read_text(encoding="utf-8").split("\n")} | _named
    return _named


def _named_by(settings: Mapping[str, Any]) -> set[str]:
    """The code that settings name; a permission is one of these very settings, and of no others."""
    content = json.dumps(settings, sort_keys=True, default=str).encode("utf-8", "surrogatepass")
    ours = hashlib.blake2b(content, digest_size=8).hexdigest()
    return {f"{code} of {ours}" if code.startswith(_PERMISSIONS) else code for code in _code(settings)}


def _code(value: Any, key: str = "") -> Iterator[str]:
    """What settings name that runs code of somebody's choice: files and folders of tasks, functions, permissions.

    Example:
        >>> [*_code({"run": {"task": "countdown", "output": "./out"}, "tasks": {"a": {"task": "/a.py:b"}}})]
        ['/a.py:b']
        >>> [*_code({"algorithm": {"policy_loss": "sys:exit"}, "reward": {"allow_unsafe": True}})]
        ['sys:exit (built-in)', 'allow_unsafe=True']
    """
    place = place_of_function(value) if isinstance(value, str) and key != "task" else ""  # a task is no function
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _code(name, "task" if key == "tasks" else "")
            yield from _code(inner, name)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _code(inner, "task" if key == "tasks" else key)
    elif place and not place.endswith(".py"):
        spec = None
        with suppress(ValueError):  # of __main__
            spec = find_spec(place.partition(".")[0])
        origin = spec and (spec.origin or [*(spec.submodule_search_locations or ())])
        yield f"{value} ({origin or 'not found'})"  # there may be another of its name elsewhere
    elif isinstance(value, str) and (place or value.endswith(".py") or (key == "task" and is_path(value))):
        place = os.path.expanduser(place or value)
        yield place if "\0" in place else os.path.realpath(place)
    elif f"{key}=" in _PERMISSIONS and value not in (None, False, "auto"):
        yield f"{key}={value}"
