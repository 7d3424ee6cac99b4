"""Recipes by name: an algorithm as a small TOML file that holds only the settings that define it.

A recipe's tables are those of a configuration, plus `about` (a line) and `source`. Its table `full_size` holds settings
for a model of the size that it was published with; they yield to what suits the model. See config/compose.py.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tinyzero_sdk.errors import SettingsError, did_you_mean
from tinyzero_sdk.settings import build, read_toml
from tinyzero_sdk.tasks.trust import require_trust
from tinyzero_trainer.config.settings import check_keys
from tinyzero_trainer.config.train_config import TrainConfig

FOLDER = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Recipe:
    """An algorithm's settings."""

    name: str = ""
    """Its name, or the path of its file."""

    about: str = ""
    source: str = ""
    """The paper or script it is taken from."""

    settings: dict[str, Any] = field(default_factory=dict)
    full_size: dict[str, Any] = field(default_factory=dict)
    """Settings for a model of the size that it was published with."""


def recipe_names() -> list[str]:
    """The recipes that come with the trainer."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def find_recipe(name: str) -> Recipe:
    """The recipe of a name, or of a TOML file (a path that ends in `.toml`)."""
    if name.endswith(".toml"):
        return _read(name, Path(name))
    names = recipe_names()
    if name not in names:
        hint = did_you_mean(name, names, show=repr)
        raise SettingsError(f"no recipe {name!r}; {hint}known: {', '.join(names)}, or the path of a .toml file")
    return _read(name, FOLDER / f"{name}.toml")


def _read(name: str, path: Path) -> Recipe:
    settings = read_toml(path)
    require_trust(path, settings)
    own: dict[str, Any] = {key: settings.pop(key) for key in ("about", "source", "full_size") if key in settings}
    recipe = build(Recipe, {"name": name, "settings": settings, **own}, f"{path}: ")
    for values in (recipe.settings, recipe.full_size):
        check_keys(TrainConfig, values, path)
        if "recipe" in values.get("run", {}):
            raise SettingsError(f"{path}: a recipe cannot name another in run.recipe; copy what you need of it")
    return recipe
