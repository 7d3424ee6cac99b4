"""Policy losses by name: the built-in ones, and the user's by file or module. No torch in here.

`my_package.losses:my_loss` is a function of an installed module, `./my_loss.py:my_loss` one of a file, which may be
a task file. Arguments and result of the function: algorithms/losses.py.
"""

import importlib
import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from tinyzero_sdk.errors import SettingsError
from tinyzero_sdk.tasks.local_packages import execute

BUILT_IN = ("ppo", "gspo", "cispo", "reinforce")


def check_name(name: str) -> None:
    """Raise a ValueError if this cannot be the name of a policy loss."""
    place, _, function = name.rpartition(":")
    if name not in BUILT_IN and not (place and function.isidentifier()):
        raise ValueError(
            f"algorithm.policy_loss={name!r} is unknown; known: {', '.join(BUILT_IN)}, or your own function by "
            "its file or module, such as ./my_loss.py:my_loss"
        )


def check_place(name: str) -> None:
    """Raise a SettingsError if the file or module of a user's loss does not exist, without importing it."""
    if name in BUILT_IN:
        return
    place = name.rpartition(":")[0]
    if place.endswith(".py"):
        if not Path(place).is_file():
            raise SettingsError(f"algorithm.policy_loss={name}: there is no file {place}")
    elif importlib.util.find_spec(place.partition(".")[0]) is None:
        raise SettingsError(
            f"algorithm.policy_loss={name}: no module {place!r} is installed; a file is named by its path, "
            f"such as ./{place.rpartition('.')[2]}.py:{name.rpartition(':')[2]}"
        )


def load_function(name: str) -> Callable[..., Any]:
    """A user's policy loss; a SettingsError if it cannot be imported."""
    check_place(name)
    place, _, attribute = name.rpartition(":")
    try:
        module = _import_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    except Exception as error:  # a user's module may raise anything
        raise SettingsError(f"algorithm.policy_loss={name} cannot be imported: {error!r}") from error
    function = getattr(module, attribute, None)
    if not callable(function):
        raise SettingsError(f"algorithm.policy_loss={name}: {place} has no function {attribute!r}")
    return function


def _import_file(path: Path) -> ModuleType:
    name = f"tinyzero_losses_{path.stem}_{abs(hash(str(path.resolve())))}"
    return sys.modules.get(name) or execute(name, path)
