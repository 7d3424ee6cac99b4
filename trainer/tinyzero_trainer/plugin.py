"""The trainer as an extension of `tinyzero`. Imported for every `tinyzero --help`, so it imports next to nothing."""

from typing import TYPE_CHECKING

from tinyzero_sdk import hookimpl

if TYPE_CHECKING:
    import typer

    from tinyzero_sdk.evaluation.protocol import LocalModels


@hookimpl
def register_commands(app: "typer.Typer") -> None:
    """Add `train`, `sft`, `runs`, `replay`, `recipes`, `warmstart`, `plan` and `doctor`."""
    from tinyzero_trainer.cli.doctor import doctor
    from tinyzero_trainer.cli.options import CommandWithKeys
    from tinyzero_trainer.cli.plan import plan
    from tinyzero_trainer.cli.recipes import recipes
    from tinyzero_trainer.cli.replay import replay
    from tinyzero_trainer.cli.runs import runs
    from tinyzero_trainer.cli.sft import sft, warm_start
    from tinyzero_trainer.cli.train import train

    app.command("train", cls=CommandWithKeys)(train)
    app.command("sft", cls=CommandWithKeys)(sft)
    app.command("runs")(runs)
    app.command("replay")(replay)
    app.command("recipes")(recipes)
    app.command("warmstart", cls=CommandWithKeys)(warm_start)
    app.command("plan")(plan)
    app.command("doctor")(doctor)


@hookimpl
def local_models() -> "LocalModels":
    """Load transformers models."""
    from tinyzero_trainer.controller.eval_config import LocalModels

    return LocalModels()
