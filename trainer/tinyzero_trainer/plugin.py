"""The trainer as an extension of `tinyzero`. Imported for every `tinyzero --help`, so it imports next to nothing."""

from typing import TYPE_CHECKING

from tinyzero_sdk import hookimpl

if TYPE_CHECKING:
    import typer


@hookimpl
def register_commands(app: "typer.Typer") -> None:
    """Add `train`, `eval` and `warmstart`."""
    from tinyzero_trainer import commands

    commands.register(app)
