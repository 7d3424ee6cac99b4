"""What several commands share: options, help with the configuration's keys, and exit codes of signals."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from tinyzero_sdk.console import stderr, stdout

Overrides = Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings, by the keys below.")]
TrainOverrides = Annotated[
    list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings; `tinyzero train --help` lists the keys.")
]
TaskOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--task", metavar="TASK[:WEIGHT]", help="Name of a task, or a task file; repeat it for several tasks in a run."
    ),
]
RecipeOption = Annotated[
    str | None,
    typer.Option(
        "--recipe",
        metavar="NAME",
        help="An algorithm's settings, which yours override: a name listed by `tinyzero recipes`, or a .toml file.",
    ),
]
ConfigOption = Annotated[Path | None, typer.Option("--config", metavar="FILE", help="Settings from a TOML file.")]
ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="MODEL",
        help="Directory or Hugging Face Hub name of a transformers causal LM.",
        show_default="the tiny model that comes with the trainer; on a GPU, one made for the task",
    ),
]
GpusOption = Annotated[
    int | None,
    typer.Option("--gpus", metavar="N", min=0, help="Train in several processes on N GPUs, with Ray; 0 = on the CPU."),
]
AddressOption = Annotated[
    str | None,
    typer.Option(
        "--address",
        metavar="HOST:PORT",
        help="A running Ray cluster, or `auto`; by default Ray starts on this machine.",
    ),
]


class CommandWithKeys(TyperCommand):
    """`train` or `warmstart`, whose help ends with the keys of its configuration."""

    def format_help(self, ctx: Any, formatter: Any) -> None:  # click's types or typer's own, by typer's version
        """Typer's help, which prints itself, and a panel for each group of keys."""
        from tinyzero_trainer.config import TrainConfig
        from tinyzero_trainer.config.help import key_help
        from tinyzero_trainer.config.sft import SftConfig

        super().format_help(ctx, formatter)
        for panel in key_help(TrainConfig if self.name == "train" else SftConfig):
            stdout.print(panel)


@contextmanager
def exit_by_signal() -> Iterator[None]:
    """Print one line and set the exit code if a signal ends the work in the block."""
    from tinyzero_trainer.utils.signals import Stopped

    try:
        yield
    except Stopped as stopped:
        stderr.print(str(stopped), soft_wrap=True, markup=False)
        raise typer.Exit(stopped.exit_code) from None
