"""`tinyzero recipes`: the recipes for `tinyzero train --recipe`, what each sets, and how two of them differ."""

from dataclasses import asdict
from typing import Annotated

import typer
from rich.text import Text

from tinyzero_sdk.cli.summary_report import table
from tinyzero_sdk.console import print_json, stdout
from tinyzero_sdk.errors import SettingsError


def recipes(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME | diff NAME NAME", help="One to show, or two to compare.", show_default=False),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the recipes for training, show what one sets, or how two differ.

    A recipe holds the settings that define an algorithm. In place of a NAME you may give your own .toml file.
    """
    match names or []:
        case []:
            _list(json)
        case [name] if name != "diff":
            _one(name, json)
        case ["diff", left, right]:
            _diff(left, right, json)
        case words:
            raise SettingsError(f"got {' '.join(words)!r} after recipes; expected nothing, NAME, or diff NAME NAME")


def _list(as_json: bool) -> None:
    from tinyzero_trainer.config.recipes import find_recipe, recipe_names

    known = [find_recipe(name) for name in recipe_names()]
    if as_json:
        print_json([{"name": recipe.name, "about": recipe.about, "source": recipe.source} for recipe in known])
        return
    shown = table("recipe", "", numbers=False)
    for recipe in known:
        shown.add_row(Text(recipe.name, "cyan"), Text.assemble(recipe.about, (f"\n{recipe.source}", "dim")))
    stdout.print(shown)
    stdout.print("\nto see one: tinyzero recipes NAME; to train with it: tinyzero train --recipe NAME", style="dim")


def _one(name: str, as_json: bool) -> None:
    from tinyzero_sdk.settings import flatten, format_value
    from tinyzero_trainer.config.recipes import find_recipe

    recipe, help = find_recipe(name), _help()
    settings, full_size = dict(flatten(recipe.settings)), dict(flatten(recipe.full_size))
    if as_json:
        print_json({**asdict(recipe), "settings": settings, "full_size": full_size})
        return
    stdout.print(f"[bold cyan]{recipe.name}[/] ", Text(recipe.about))
    stdout.print(Text(recipe.source, "dim"))
    full_title = "settings for full-size models; the defaults of a model override them"
    for title, values in (("settings", settings), (full_title, full_size)):
        shown = table(title, "", numbers=False)
        for key, value in values.items():
            shown.add_row(Text.assemble((key, "cyan"), f"\n= {format_value(value)}"), help.get(key, ""))
        if values:
            stdout.print("", shown)


def _diff(left: str, right: str, as_json: bool) -> None:
    from tinyzero_sdk.settings import flatten, format_value, merge
    from tinyzero_trainer.config import TrainConfig
    from tinyzero_trainer.config.recipes import find_recipe
    from tinyzero_trainer.config.settings import default_settings

    layers = (merge(recipe.full_size, recipe.settings) for recipe in map(find_recipe, (left, right)))
    sides = [dict(flatten(merge(default_settings(TrainConfig), layer))) for layer in layers]
    texts = [{key: format_value(value) for key, value in side.items()} for side in sides]
    keys = [key for key in _help() if texts[0].get(key) != texts[1].get(key)]
    if as_json:
        print_json({key: {left: sides[0][key], right: sides[1][key]} for key in keys})
        return
    if not keys:
        stdout.print(f"{left} and {right} have the same settings")
        return
    shown = table("setting", left, right, numbers=False)
    for key in keys:
        shown.add_row(Text(key, "cyan"), *(Text(side[key]) for side in texts))
    stdout.print(shown)
    stdout.print("\nwhere only one recipe sets a key, the other has the default", style="dim")


def _help() -> dict[str, str]:
    """What each key means, in the order of the configuration."""
    from tinyzero_sdk.settings import TABLE, describe
    from tinyzero_trainer.config import TrainConfig

    return {field.key: field.help for field in describe(TrainConfig) if field.type != TABLE}
