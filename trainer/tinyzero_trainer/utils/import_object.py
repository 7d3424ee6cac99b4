"""Policy losses by name: those built in, and a user's own, by its file or module. No torch in here.

`my_package.losses:my_loss` is a function of an installed module, `./my_loss.py:my_loss` one of a file, which may be
the task's own. What the function takes and gives is in algorithms/losses.py.
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
"""The names under which algorithms/losses.py registers its own."""


def check_name(name: str) -> None:
    """Refuse what can be the name of no policy loss.

    Raises:
        ValueError: says which names there are.
    """
    place, _, function = name.rpartition(":")
    if name not in BUILT_IN and not (place and function.isidentifier()):
        raise ValueError(
            f"algorithm.policy_loss={name!r} is unknown; known: {', '.join(BUILT_IN)}, or a function of your own by "
            "its file or module, such as ./my_loss.py:my_loss"
        )


def check_place(name: str) -> None:
    """Refuse a loss of one's own whose file or module is not there, without importing it.

    Raises:
        SettingsError: says where it was looked for.
    """
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
    """The function that a loss of one's own is.

    Raises:
        SettingsError: there is no such file, module or function, or it cannot be imported.
    """
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
    """The file as a module of its own; executed once."""
    name = f"tinyzero_losses_{path.stem}_{abs(hash(str(path.resolve())))}"
    return sys.modules.get(name) or execute(name, path)
