"""A user's own function, which a setting names by its file (`./my_loss.py:my_loss`) or module (`my_package.losses:f`).

A file may be a task file. No torch in here.
"""

import importlib
import importlib.util
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from tinyzero_sdk.errors import SettingsError
from tinyzero_sdk.tasks.local_packages import execute


def check_name(key: str, name: str, built_in: Collection[str]) -> None:
    """Raise a ValueError if `name`, the value of a setting, is neither built in nor says where a function is."""
    place, _, function = name.rpartition(":")
    if name not in built_in and not (place and function.isidentifier()):
        mine = f"my_{key.rpartition('_')[2]}"
        raise ValueError(
            f"{key}={name!r} is unknown; known: {', '.join(built_in)}, or your own function by its file or module, "
            f"such as ./{mine}.py:{mine}"
        )


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
        raise SettingsError(f"{key}={name} cannot be imported: {error!r}") from error
    function = getattr(module, attribute, None)
    if not callable(function):
        raise SettingsError(f"{key}={name}: {place} has no function {attribute!r}")
    return function


def try_out(key: str, name: str, call: Callable[[], Any]) -> Any:
    """The result of a trial of a user's function on a few synthetic tokens, before a model is loaded."""
    try:
        return call()
    except SettingsError:
        raise
    except Exception as error:  # a user's function may raise anything
        raise SettingsError(f"{key}={name} failed on a few synthetic tokens: {error!r}") from error
