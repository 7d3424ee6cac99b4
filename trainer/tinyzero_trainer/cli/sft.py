"""`tinyzero sft` and its preset `tinyzero warmstart`: supervised fine-tuning, from the command line to one call.

What is slow to import (torch above all) is imported inside functions, after the settings have been checked.
"""

import shlex
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tinyzero_sdk.cli.task_options import AllowUnsafe
from tinyzero_sdk.console import stderr
from tinyzero_trainer.cli import options, start

if TYPE_CHECKING:
    from tinyzero_trainer.config import SftConfig


def sft(
    overrides: options.Overrides = None,
    task: options.TaskOptions = None,
    data: Annotated[
        str | None,
        typer.Option(
            "--data",
            metavar="FILE",
            help="Examples: scored completions, chat messages, or prompts with completions; without it, those that "
            "the tasks make.",
        ),
    ] = None,
    model: options.ModelOption = None,
    output: options.OutputOption = None,
    config: options.ConfigOption = None,
    gpus: options.GpusOption = None,
    address: options.AddressOption = None,
    resume: options.ResumeOption = False,
    allow_unsafe_scorers: AllowUnsafe = False,
) -> None:
    """Fine-tune a language model on examples of a task, or of a file.

    Reinforcement learning needs a model that is sometimes right: this makes one. Ctrl-C saves a checkpoint and prints
    the command that resumes the run.
    """
    from tinyzero_trainer.config.sft import compose_sft

    task, overrides = options.with_named(task, overrides)
    flags = {"model.path": model, "data.path": data, "reward.allow_unsafe": allow_unsafe_scorers or None}
    _run(compose_sft, {**options.flag_settings(task, gpus, address), **flags}, overrides, output, config, resume=resume)


def warm_start(
    overrides: options.Overrides = None,
    task: options.TaskOptions = None,
    output: options.OutputOption = None,
    config: options.ConfigOption = None,
    resume: options.ResumeOption = False,
) -> None:
    """Train a small new model on a task's own examples: `tinyzero sft` with settings that suit one."""
    from tinyzero_trainer.config.sft import warm_start

    task, overrides = options.with_named(task, overrides)
    _run(warm_start, options.flag_settings(task), overrides, output, config, resume=resume)


def _run(
    compose: "Callable[[Mapping[str, Any]], SftConfig]",
    flags: dict[str, Any],
    overrides: list[str],
    output: Path | None,
    file: Path | None,
    *,
    resume: bool,
) -> None:
    from tinyzero_sdk.settings import flatten
    from tinyzero_trainer.advisor.limits import refuse_model
    from tinyzero_trainer.api import resolve
    from tinyzero_trainer.config.compose import gather
    from tinyzero_trainer.config.resume import resume_config
    from tinyzero_trainer.config.sft import SftConfig, model_defaults
    from tinyzero_trainer.models.new_model import new_spec

    settings = gather(SftConfig, {**flags, "run.output": output and str(output)}, overrides, file)
    with options.exit_by_signal():
        defaults: Mapping[str, Any] = {}
        if resume:
            resolved = resume_config(output, settings, SftConfig)
        else:
            settings = start.with_checkpoints(start.with_output(settings, "sft-", other="data"))
            resolved, defaults = compose(settings), model_defaults(settings)
        config, spec = resolved.workers_config, None
        if resolved.model.path is None:
            spec = new_spec("a new decoder", resolved.new_model)
        else:
            refuse_model(config, resume=resume)
        # Of a file, data.test_fraction holds out examples, whatever the task's splits.
        tasks = start.check(config, {} if resolved.data.path else settings, resume=resume)
        what = resolved.data.path or f"examples of {' and '.join(tasks)}"
        verb = "resuming the fine-tuning of" if resume else "fine-tuning"
        name = resolved.model.path or "a new decoder"
        stderr.print(f"{verb} {name} on {what} in {resolved.run.output}", soft_wrap=True, markup=False)
        start.print_origin("defaults of the model", dict(flatten(defaults)))
        check = partial(start.warn_of_memory, spec=spec, command="tinyzero plan --sft")
        config = resolve(config, start.print_choice, spec, check)
        with start.imported("tinyzero_trainer.sft.train", config) as progress:
            from tinyzero_trainer.sft.train import fine_tune

            fine_tune(resolved.with_resolved(config), resume=resume, tasks=tasks, progress=progress)
        if tasks:
            weighted = [spec.task + ("" if spec.weight == 1 else f":{spec.weight:g}") for spec in resolved.task_specs]
            named = [word for task in weighted for word in ("--task", task)]
            command = shlex.join(["tinyzero", "train", *named, "--model", resolved.run.output])
            stderr.print(f"next: {command}", soft_wrap=True, markup=False)
