"""What several commands share: options and what they set, help with the keys, and exit codes of signals."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from tinyzero_sdk.cli.task_options import complete_task, named_tasks
from tinyzero_sdk.console import stderr, stdout
from tinyzero_sdk.errors import SettingsError
from tinyzero_sdk.tasks.local_packages import is_path


def complete_word(ctx: typer.Context, incomplete: str) -> list[str]:
    """Installed tasks and the command's keys, for the shell."""
    from tinyzero_sdk.settings import describe
    from tinyzero_trainer.config import SftConfig, TrainConfig

    fields = describe(SftConfig if ctx.info_name in ("sft", "warmstart") else TrainConfig)
    return [*complete_task(incomplete), *(f"{field.key}=" for field in fields if field.key.startswith(incomplete))]


def complete_recipe(incomplete: str) -> list[str]:
    """Recipes that come with the trainer, for the shell."""
    from tinyzero_trainer.config.recipes import recipe_names

    return [name for name in recipe_names() if name.startswith(incomplete)]


Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="TASK | KEY=VALUE",
        help="Tasks, as --task names them, and settings; `tinyzero train --help WORD` searches the keys.",
        autocompletion=complete_word,
    ),
]
TaskOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--task",
        metavar="TASK[:WEIGHT]",
        help="Name of a task, or a task file; repeat it for several tasks in a run.",
        autocompletion=complete_task,
    ),
]
RecipeOption = Annotated[
    str | None,
    typer.Option(
        "--recipe",
        metavar="NAME",
        autocompletion=complete_recipe,
        help="An algorithm's settings, which yours override: a name listed by `tinyzero recipes`, or a .toml file.",
    ),
]
ConfigOption = Annotated[Path | None, typer.Option("--config", metavar="FILE", help="Settings from a TOML file.")]
ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        metavar="MODEL",
        help="Directory or Hugging Face Hub name of a transformers causal LM, or a run.",
        show_default="a small one: see `model.path`",
    ),
]
OutputOption = Annotated[
    Path | None, typer.Option("--output", metavar="DIR", help="Run directory.", show_default="runs/…-DATE-TIME")
]
ResumeOption = Annotated[
    bool, typer.Option("--resume", help="Resume from the newest checkpoint in --output, with its config.toml.")
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


def with_named(tasks: list[str] | None, words: list[str] | None) -> tuple[list[str], list[str]]:
    """The tasks of --task and those among the words, and the other words."""
    names, overrides = named_tasks(words)
    return [*(tasks or ()), *names], overrides


def flag_settings(tasks: Sequence[str] | None, gpus: int | None = None, address: str | None = None) -> dict[str, Any]:
    """The settings that `--task`, `--gpus` and `--address` stand for, by full names; None = not given.

    Example:
        >>> flag_settings(["rg/chain_sum:2", "countdown"])
        {'tasks.chain_sum.task': 'rg/chain_sum', 'tasks.chain_sum.weight': 2.0, 'tasks.countdown.task': 'countdown'}
        >>> flag_settings(["countdown"], gpus=0)
        {'run.task': 'countdown', 'run.executor': 'ray', 'ray.address': None, 'ray.gpus': 0, 'run.device': 'cpu'}
    """
    settings: dict[str, Any] = {}
    for flag in tasks or ():
        task, weight = _parse_task(flag)
        if weight is None and tasks and len(tasks) == 1:
            settings["run.task"] = task
            break
        # A name that can be typed in tasks.NAME.options.KEY=….
        name = "".join(letter if letter.isalnum() else "_" for letter in Path(task).stem)
        name = name if name.isidentifier() else f"_{name}"
        if f"tasks.{name}.task" in settings:
            raise SettingsError(
                f"two of --task would be called {name!r}; give them different names in a file, "
                f"as [tasks.NAME] with task = {task!r}"
            )
        settings[f"tasks.{name}.task"] = task
        if weight is not None:
            settings[f"tasks.{name}.weight"] = weight
    if gpus is not None or address is not None:
        settings |= {"run.executor": "ray", "ray.address": address}
    if gpus is not None:  # the device too, since a resumed run may have had another
        settings |= {"ray.gpus": gpus, "run.device": "auto" if gpus else "cpu"}
    return settings


def _parse_task(text: str) -> tuple[str, float | None]:
    task, colon, number = text.rpartition(":")
    if not colon or (is_path(text) and number.endswith(".py")):
        return text, None
    try:
        return task, float(number)
    except ValueError:
        raise SettingsError(f"--task {text}: got the weight {number!r}, expected TASK or TASK:WEIGHT") from None


class CommandWithKeys(TyperCommand):
    """`train`, `sft` or `warmstart`, whose help ends with the keys of its configuration.

    Words after --help search these keys.
    """

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:  # click's types or typer's own, by typer's version
        """Keep what follows --help, whose callback is called before any argument is read."""
        place = next((place for place, word in enumerate(args, 1) if word in ctx.help_option_names), len(args))
        ctx.meta["search"] = args[place:]
        return super().parse_args(ctx, args)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Typer's help, which prints itself, and a panel for each group of keys; or the keys searched for alone."""
        from tinyzero_trainer.config import TrainConfig
        from tinyzero_trainer.config.foreign_keys import find_keys
        from tinyzero_trainer.config.help import key_help
        from tinyzero_trainer.config.sft import SftConfig

        cls, words = TrainConfig if self.name == "train" else SftConfig, ctx.meta.get("search")
        only = find_keys(cls, words) if words else ()
        if not words:
            super().format_help(ctx, formatter)
        for panel in key_help(cls, only):
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
