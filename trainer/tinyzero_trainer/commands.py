"""`tinyzero train` and `tinyzero warmstart`: what the user typed, turned into one Python call each.

`tinyzero doctor` is in a package of its own.

Whatever is slow to import (torch above all) is imported inside the functions, after the settings have been checked.
"""

import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from tinyzero_sdk.cli.output import stderr, stdout
from tinyzero_sdk.cli.task_options import AllowUnsafe
from tinyzero_sdk.errors import SettingsError
from tinyzero_trainer.doctor.command import doctor

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tinyzero_trainer.config import TrainConfig

TINY_MODEL = "the tiny model that comes with the trainer"

Words = Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings, by the keys below.")]
TaskOption = Annotated[str | None, typer.Option("--task", metavar="TASK", help="Name of a task, or a task file.")]
ConfigOption = Annotated[Path | None, typer.Option("--config", metavar="FILE", help="Settings from a TOML file.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.command("train", cls=_TrainCommand)(train)
    app.command("warmstart", cls=_WarmStartCommand)(warm_start)
    app.command("doctor")(doctor)


def train(
    words: Words = None,
    task: TaskOption = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", metavar="DIR", help="Run directory.", show_default="runs/TASK-DATE-TIME"),
    ] = None,
    config: ConfigOption = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="MODEL",
            help="Directory or Hub name of a transformers causal LM.",
            show_default=TINY_MODEL,
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on from the newest checkpoint in --output, by its config.toml.")
    ] = False,
    allow_unsafe_scorers: AllowUnsafe = False,
) -> None:
    """Train a language model on a task by reinforcement learning.

    Ctrl-C saves a checkpoint and says how to go on.
    """
    from tinyzero_sdk import load_task
    from tinyzero_sdk.settings import merge
    from tinyzero_trainer.config import TrainConfig
    from tinyzero_trainer.configure import gather, make_config, resume_config, suiting_words
    from tinyzero_trainer.interrupts import Interrupted
    from tinyzero_trainer.run_directory import RunDirectory

    flags: dict[str, Any] = {"run.task": task, "run.output": output and str(output), "model.path": model}
    flags["run.allow_unsafe_scorers"] = allow_unsafe_scorers or None
    said = gather(TrainConfig, flags, words or (), config)
    if resume:
        if output is None:
            raise SettingsError("--resume needs --output, the directory of the run to go on with")
        resolved, suited = resume_config(output, said), []
    else:
        resolved, suited = make_config(said), suiting_words(said)
        if not resolved.run.output:
            resolved = make_config(merge(said, {"run": {"output": _new_directory(resolved.run.task)}}))
    # The loop does both too, but seconds later.
    load_task(
        resolved.run.task,
        options=resolved.task,
        wrappers=resolved.run.wrappers,
        allow_unsafe_scorers=resolved.run.allow_unsafe_scorers,
    ).check_scoring_allowed()
    RunDirectory(Path(resolved.run.output)).check(resume=resume)
    _announce(resolved, suited, resume=resume)
    calm_threads()
    from tinyzero_trainer.loop import train as run_loop

    try:
        run_loop(resolved, resume=resume)
    except Interrupted as stopped:
        stderr.print(str(stopped), soft_wrap=True, markup=False)
        raise typer.Exit(stopped.exit_code) from None


def warm_start(
    words: Words = None,
    task: TaskOption = None,
    output: Annotated[
        Path | None, typer.Option("--output", metavar="DIR", help="Directory for the model; must not exist yet.")
    ] = None,
    config: ConfigOption = None,
) -> None:
    """Make a small model from nothing that can attempt a task, from the task's own demonstrations."""
    from tinyzero_sdk.settings import build
    from tinyzero_trainer.configure import gather
    from tinyzero_trainer.display import Display
    from tinyzero_trainer.interrupts import StopFlag
    from tinyzero_trainer.warmstart_config import WarmStartConfig

    flags = {"run.task": task, "run.output": output and str(output)}
    resolved = build(WarmStartConfig, gather(WarmStartConfig, flags, words or (), config))
    for flag, value in (("--task", resolved.run.task), ("--output", resolved.run.output)):
        if not value:
            raise SettingsError(f"a warm start needs {flag}")
    calm_threads()
    with Display() as display:
        display.phase("loading PyTorch")
        from tinyzero_trainer.warmstart import warm_start as make_model

        display.done(make_model(resolved, display=display, stop=StopFlag()).summary)


class _CommandWithKeys(TyperCommand):
    """A command whose help ends with the keys of a configuration."""

    def keys(self) -> "Iterator[RenderableType]":
        """A panel for each group of keys."""
        raise NotImplementedError

    def format_help(
        self, ctx: Any, formatter: Any
    ) -> None:  # of click, or of typer's own copy: that depends on its version
        """Typer's help, which prints itself, and the keys after it."""
        super().format_help(ctx, formatter)
        for panel in self.keys():
            stdout.print(panel)


class _TrainCommand(_CommandWithKeys):
    def keys(self) -> "Iterator[RenderableType]":
        from tinyzero_trainer.config import TrainConfig
        from tinyzero_trainer.configure import key_help

        return key_help(TrainConfig)


class _WarmStartCommand(_CommandWithKeys):
    def keys(self) -> "Iterator[RenderableType]":
        from tinyzero_trainer.configure import key_help
        from tinyzero_trainer.warmstart_config import WarmStartConfig

        return key_help(WarmStartConfig)


def _new_directory(task: str) -> str:
    return f"runs/{Path(task).stem}-{time.strftime('%Y-%m-%d-%H%M%S')}"


def calm_threads() -> None:
    """Before torch is imported: threads that wait actively make a step ten times slower beside a busy process."""
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def _announce(config: "TrainConfig", suited: Sequence[str], *, resume: bool) -> None:
    """Say what is about to happen, at once: loading takes seconds."""
    from tinyzero_trainer.presets import other_task

    verb = "going on with the training of" if resume else "training"
    model, run = config.model.path or TINY_MODEL, config.run
    stderr.print(f"{verb} {model} on {run.task} in {run.output}", soft_wrap=True, markup=False)
    if suited:
        stderr.print(f"with settings that suit it: {' '.join(suited)}", style="dim", soft_wrap=True, markup=False)
    warmed_on = other_task(run.task, Path(model)) if config.model.path else other_task(run.task)
    if warmed_on and not resume:
        stderr.print(
            f"this model was warm-started on {warmed_on} and may know nothing of {run.task}; make one that does with: "
            f"tinyzero warmstart --task {run.task} --output DIR, then train it with --model DIR",
            style="yellow",
            markup=False,
            soft_wrap=True,
        )
    stderr.print("loading PyTorch", style="dim")
