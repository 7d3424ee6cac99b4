"""A user's own function, which a setting names by its file (`./my_loss.py:my_loss`) or module (`my_package.losses:f`).

A file may be a task file. No torch in here.
"""

import hashlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from tinyzero_sdk.errors import SettingsError, describe_error
from tinyzero_sdk.tasks.local_packages import execute, place_of_function


def checked_name(key: str, name: str, built_in: Collection[str]) -> str:
    """`name`, the value of a setting, a file by its absolute path; a ValueError if it is neither that nor built in."""
    place = place_of_function(name)
    if name not in built_in and not place:
        mine = f"my_{key.rpartition('_')[2]}"
        raise ValueError(
            f"{key}={name!r} is unknown; known: {', '.join(built_in)}, or your own function by its file or module, "
            f"such as ./{mine}.py:{mine}"
        )
    return str(Path(os.path.expanduser(name)).absolute()) if place.endswith(".py") else name


def version_of(name: str) -> str:
    """A hash of the file that a user's function is in."""
    place = name.rpartition(":")[0]
    spec = None if place.endswith(".py") else importlib.util.find_spec(place)
    return hashlib.sha256(Path((spec and spec.origin) or place).read_bytes()).hexdigest()


def check_place(key: str, name: str) -> None:
    """Raise a SettingsError if the file or module of a function does not exist, without importing it."""
    place = name.rpartition(":")[0]
    if not (Path(place).is_file() if place.endswith(".py") else importlib.util.find_spec(place.partition(".")[0])):
        raise SettingsError(f"{key}={name}: there is no file or module {place}; a file is named by its path")


def load_function(key: str, name: str) -> Callable[..., Any]:
    """The function that the setting `key=name` stands for; a SettingsError if it cannot be imported."""
    check_place(key, name)
    place, _, attribute = name.rpartition(":")
    try:
        if place.endswith(".py"):
            module_name = f"tinyzero_own_{Path(place).stem}_{abs(hash(str(Path(place).resolve())))}"
            module = sys.modules.get(module_name) or execute(module_name, Path(place))
        else:
            module = importlib.import_module(place)
    except Exception as error:  # a user's module may raise anything
        raise SettingsError(f"{key}={name} cannot be imported: {_described(error)}") from error
    function = getattr(module, attribute, None)
    if not callable(function):
        raise SettingsError(f"{key}={name}: {place} has no function {attribute!r}")
    return function


def call_own(key: str, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """What the user's function `key=name` returns; a SettingsError with its error and the line if it fails."""
    try:
        return function(*arguments)
    except Exception as error:  # a user's function may raise anything
        raise SettingsError(f"{key}={name} failed: {_described(error)}") from error


def _described(error: Exception) -> str:
    """An error of a user's code, with the user's last line; the first frame is that of this file."""
    return describe_error(error.with_traceback(error.__traceback__ and error.__traceback__.tb_next))
