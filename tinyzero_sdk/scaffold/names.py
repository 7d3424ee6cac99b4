"""Names of new tasks: which are allowed. No files here."""

import contextlib
import importlib.util
import keyword
import re
import sys
from importlib.metadata import PackageNotFoundError, distribution

from tinyzero_sdk.errors import SettingsError
from tinyzero_sdk.plugins.registry import family_tasks
from tinyzero_sdk.tasks.registry import list_tasks

_NAME = re.compile("[a-z][a-z0-9]*(-[a-z0-9]+)*")
_LONGEST = 32  # characters; keeps the lines of the package short
_TAKEN_IN_THE_PACKAGE = ("tests", "conftest")  # modules of the package that a task of that name would shadow


def module_name(name: str) -> str:
    """The name of the module of a task.

    Example:
        >>> module_name("my-task")
        'my_task'
    """
    return name.replace("-", "_")


def check_name(name: str) -> None:
    """Refuse a name that cannot be a distribution, a module and a task at once, or that is taken."""
    if not _NAME.fullmatch(name) or len(name) > _LONGEST:
        near = "-".join(re.findall("[a-z0-9]+", name.lower())).lstrip("-0123456789")[:_LONGEST].rstrip("-")
        hint = f", such as {near}" if len(near) > 1 else ""
        raise SettingsError(
            f"{name!r} cannot be a task's name; use lower-case letters and digits in words joined by single hyphens, "
            f"starting with a letter, at most {_LONGEST} characters{hint}"
        )
    if taken := _taken_by(name):
        raise SettingsError(f"{name!r} cannot be a task's name, since it is {taken}; choose another, such as my-{name}")


def _taken_by(name: str) -> str | None:
    module = module_name(name)
    if keyword.iskeyword(module):
        return "a keyword of Python"
    if module in sys.stdlib_module_names:
        return "a module of Python's standard library"
    if module in _TAKEN_IN_THE_PACKAGE:
        return "a file of the package's own"
    for entry in list_tasks():
        if entry.name == name:
            return f"a task already, of {entry.distribution} {entry.version}"
    if name in family_tasks():
        return "a task already"
    spec = importlib.util.find_spec(module)
    if spec is not None and spec.origin is not None:  # without an origin: any directory of that name
        return f"an installed module, {module}"
    with contextlib.suppress(PackageNotFoundError):
        distribution(name)
        return "an installed distribution"
    return None
