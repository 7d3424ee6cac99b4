"""`tinyzero train` and `tinyzero warmstart`: what the user typed, turned into one Python call each.

`tinyzero recipes` is in recipes.py, `tinyzero doctor` and `tinyzero plan` in packages of their own.
Whatever is slow to import (torch above all) is imported inside the functions, after the settings have been checked.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from tinyzero_sdk.cli.task_options import AllowUnsafe
from tinyzero_sdk.console import stderr, stdout, warn
from tinyzero_sdk.errors import SettingsError
from tinyzero_trainer.cli import recipes as recipe_commands
from tinyzero_trainer.cli.doctor import doctor
from tinyzero_trainer.cli.plan import plan
from tinyzero_trainer.config.model_defaults import TINY_MODEL, directory_of, other_task
from tinyzero_trainer.utils.startup import without_collector
from tinyzero_trainer.utils.threads import calm_threads

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tinyzero_trainer.config import TrainConfig
    from tinyzero_trainer.config.layers import Layers
    from tinyzero_trainer.models.spec import ModelSpec

Words = Annotated[list[str] | None, typer.Argument(metavar="KEY=VALUE", help="Settings, by the keys below.")]
TaskOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--task", metavar="TASK[:WEIGHT]", help="Name of a task, or a task file; repeated for several tasks in one run."
    ),
]
ConfigOption = Annotated[Path | None, typer.Option("--config", metavar="FILE", help="Settings from a TOML file.")]


def register(app: typer.Typer) -> None:
    """Add the commands of this file."""
    app.command("train", cls=_TrainCommand)(train)
    app.command("recipes")(recipe_commands.recipes)
    app.command("warmstart", cls=_WarmStartCommand)(warm_start)
    app.command("plan")(plan)
    app.command("doctor")(doctor)


def train(
    words: Words = None,
    task: TaskOptions = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", metavar="DIR", help="Run directory.", show_default="runs/TASK-DATE-TIME"),
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            "--recipe",
            metavar="NAME",
            help="An algorithm's settings below your own: a name out of `tinyzero recipes`, or a .toml file.",
        ),
    ] = None,
    config: ConfigOption = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="MODEL",
            help="Directory or Hub name of a transformers causal LM.",
            show_default=f"{TINY_MODEL}; on a GPU, one made for the task",
        ),
    ] = None,
    gpus: Annotated[
        int | None,
        typer.Option("--gpus", metavar="N", help="Several processes, through Ray, with so many GPUs; 0 = on the CPU."),
    ] = None,
    address: Annotated[
        str | None,
        typer.Option(
            "--address", metavar="HOST:PORT", help="A Ray that is there; else one is started on this machine."
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
    from tinyzero_trainer.config import TrainConfig
    from tinyzero_trainer.config.compose import gather
    from tinyzero_trainer.config.parallel import flag_settings as ray_settings
    from tinyzero_trainer.config.tasks import flag_settings

    flags: dict[str, Any] = {**flag_settings(task or ()), "run.output": output and str(output), "model.path": model}
    flags |= ray_settings(gpus, address)
    flags["run.recipe"] = recipe
    flags["reward.allow_unsafe"] = allow_unsafe_scorers or None
    said = gather(TrainConfig, flags, words or (), config)
    with _stops_in_one_line():
        said, planned = (said, False) if resume else _with_model(said)
        resolved, layers = _settle(said, output, resume=resume)
        _check_early(resolved, resume=resume)
        _announce(resolved, layers, planned=planned)
        calm_threads()
        with without_collector():
            from tinyzero_trainer.cli.oom_advice import advise_on_out_of_memory
            from tinyzero_trainer.controller.loop import train as run_loop
        with advise_on_out_of_memory(resolved):
            run_loop(resolved, resume=resume)


def warm_start(
    words: Words = None,
    task: TaskOptions = None,
    output: Annotated[
        Path | None, typer.Option("--output", metavar="DIR", help="Directory for the model; must not exist yet.")
    ] = None,
    config: ConfigOption = None,
) -> None:
    """Make a small model from nothing that can attempt a task, from the task's own demonstrations."""
    from tinyzero_sdk.settings import build
    from tinyzero_trainer.config.compose import gather
    from tinyzero_trainer.config.sft import SftConfig
    from tinyzero_trainer.config.tasks import flag_settings
    from tinyzero_trainer.monitoring.progress import Progress
    from tinyzero_trainer.utils.signals import StopFlag, left_at_once

    flags = {**flag_settings(task or ()), "run.output": output and str(output)}
    resolved = build(SftConfig, gather(SftConfig, flags, words or (), config))
    for flag, value in (("--task", resolved.task_shares()), ("--output", resolved.run.output)):
        if not value:
            raise SettingsError(f"a warm start needs {flag}")
    calm_threads()
    stopped = "before the model was made; nothing is left of it"
    with _stops_in_one_line(), left_at_once(stopped), Progress() as display:
        display.phase("loading PyTorch")
        with without_collector():
            from tinyzero_trainer.sft.train import warm_start as make_model
        display.done(make_model(resolved, display=display, stop=StopFlag()).summary)


@contextmanager
def _stops_in_one_line() -> "Iterator[None]":
    """Within, a signal that ended the work is told of, and is in the exit code."""
    from tinyzero_trainer.utils.signals import Stopped

    try:
        yield
    except Stopped as stopped:
        stderr.print(str(stopped), soft_wrap=True, markup=False)
        raise typer.Exit(stopped.exit_code) from None


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
        from tinyzero_trainer.config.help import key_help

        return key_help(TrainConfig)


class _WarmStartCommand(_CommandWithKeys):
    def keys(self) -> "Iterator[RenderableType]":
        from tinyzero_trainer.config.help import key_help
        from tinyzero_trainer.config.sft import SftConfig

        return key_help(SftConfig)


def _settle(said: Mapping[str, Any], output: Path | None, *, resume: bool) -> "tuple[TrainConfig, Layers | None]":
    """The configuration, with a run directory, and the layers it is of; no layers: the run goes on."""
    from tinyzero_trainer.config.compose import resolve
    from tinyzero_trainer.config.resume import resume_config

    if resume:
        if output is None:
            raise SettingsError("--resume needs --output, the directory of the run to go on with")
        return resume_config(output, said), None
    config, layers = resolve(said)
    if not config.run.output:
        config = replace(config, run=replace(config.run, output=_new_directory(config)))
    return config, layers


def _with_model(said: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """What the user said, and on a GPU, where he named no model, one of the trainer's making.

    Also whether the plan was asked: before a model is made for minutes, not after.
    """
    from tinyzero_trainer.models.hub import shape_of_own
    from tinyzero_trainer.sft.default_model import plan

    own = plan(said)
    if own is None:
        return said, False
    _check_early(own.config, resume=False)
    stderr.print(own.about, soft_wrap=True, markup=False)
    _consult_plan(own.config, shape_of_own(own.config.default_model))
    return own.settle(), True


def _new_directory(config: "TrainConfig") -> str:
    tasks = "+".join(share.title for share in config.task_shares())
    return f"runs/{tasks}-{time.strftime('%Y-%m-%d-%H%M%S')}"


def _check_early(config: "TrainConfig", *, resume: bool) -> None:
    """What the loop checks too, but seconds later."""
    from tinyzero_trainer.checkpoint.run_directory import RunDirectory
    from tinyzero_trainer.config.tasks import load_tasks
    from tinyzero_trainer.plan.limits import refuse_no_prompt
    from tinyzero_trainer.rollout.vllm.version import require_vllm
    from tinyzero_trainer.utils.import_object import check_place

    tasks = load_tasks(
        config.task_shares(),
        wrappers=config.wrappers_with_limit(),
        allow_unsafe_scorers=config.reward.allow_unsafe,
    )
    for task in tasks.values():
        task.check_scoring_allowed()
    check_place(config.algorithm.policy_loss)
    if config.run.executor == "ray":
        from tinyzero_trainer.config.parallel import layout_of
        from tinyzero_trainer.executors.ray.cluster import check_address

        layout_of(config)
        check_address(config.ray.address)
    if config.rollout.engine == "vllm" and config.ray.address is None:  # elsewhere it is the workers' matter
        require_vllm()
    refuse_no_prompt(config)
    if config.run.output:
        RunDirectory(Path(config.run.output)).check(resume=resume)


def _announce(config: "TrainConfig", layers: "Layers | None", *, planned: bool = False) -> None:
    """Say what is about to happen, at once: loading takes seconds. No layers: the run goes on."""
    resume = layers is None
    verb = "going on with the training of" if resume else "training"
    where, shares = directory_of(config.model.path), config.task_shares()
    model = TINY_MODEL if where is None else config.model.path
    names = (f"{share.name} (weight {share.weight:g})" if len(shares) > 1 else share.task for share in shares)
    on = " and ".join(names)
    stderr.print(f"{verb} {model} on {on} in {config.run.output}", soft_wrap=True, markup=False)
    for line in () if layers is None else _origins(layers):
        stderr.print(line, style="dim", soft_wrap=True, markup=False, highlight=False)
    strange = {share.task: warmed_on for share in shares if (warmed_on := other_task(share.task, where))}
    if strange and not resume:
        flags = " ".join(f"--task {share.task}" for share in shares)
        stderr.print(
            f"this model was warm-started on {next(iter(strange.values()))} and may know nothing of "
            f"{' and '.join(strange)}; make one that does with: "
            f"tinyzero warmstart {flags} --output DIR, then train it with --model DIR",
            style="yellow",
            markup=False,
            soft_wrap=True,
        )
    if not planned:
        _consult_plan(config)
    stderr.print("loading PyTorch", style="dim")


def _consult_plan(config: "TrainConfig", shape: "ModelSpec | None" = None) -> None:
    """Warn of a run that will not fit into the GPU's memory; the shape is of a model that is yet to be made."""
    from tinyzero_trainer.plan import advice

    if (warning := advice.warning(config, shape)) is not None:
        warn(warning)


def _origins(layers: "Layers") -> "Iterator[str]":
    """Where the settings are from that the user did not give himself."""
    from tinyzero_sdk.settings import flatten, format_value

    if layers.recipe is not None:
        parts, values = (layers.recipe.full_size, layers.recipe.settings), dict(flatten(layers.values))
        held = {key: value for part in parts for key, value in flatten(part) if values.get(key) == value}
        settings = " ".join(f"{key}={format_value(value)}" for key, value in held.items())
        yield f"by recipe {layers.recipe.name}: {settings}"
    if layers.suited:
        settings = " ".join(f"{key}={format_value(value)}" for key, value in layers.suited.items())
        yield f"with settings that suit it: {settings}"
    if layers.left_out:
        gone = "; ".join(f"{key} ({reason})" for key, reason in layers.left_out.items())
        yield f"left out of those: {gone}"
