"""The trainer's commands, added to `tinyzero`."""

import typer

from tinyzero_trainer.cli.doctor import doctor
from tinyzero_trainer.cli.plan import plan
from tinyzero_trainer.cli.recipes import recipes
from tinyzero_trainer.cli.sft import WarmStartCommand, warm_start
from tinyzero_trainer.cli.train import TrainCommand, train


def register(app: typer.Typer) -> None:
    """Add `train`, `recipes`, `warmstart`, `plan` and `doctor`."""
    app.command("train", cls=TrainCommand)(train)
    app.command("recipes")(recipes)
    app.command("warmstart", cls=WarmStartCommand)(warm_start)
    app.command("plan")(plan)
    app.command("doctor")(doctor)
