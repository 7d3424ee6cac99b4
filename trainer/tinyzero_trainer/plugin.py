"""The trainer as an extension of `tinyzero`. Imported for every `tinyzero --help`, so it imports next to nothing."""

from typing import TYPE_CHECKING

from tinyzero_sdk import hookimpl

if TYPE_CHECKING:
    import typer

    from tinyzero_sdk.evaluation.protocol import LocalModels


@hookimpl
def register_commands(app: "typer.Typer") -> None:
    """Add `train`, `warmstart`, `recipes`, `plan` and `doctor`."""
    from tinyzero_trainer.cli import app as trainer_app

    trainer_app.register(app)


@hookimpl
def local_models() -> "LocalModels":
    """Load transformers models."""
    from tinyzero_trainer.controller.eval_config import LocalModels

    return LocalModels()
