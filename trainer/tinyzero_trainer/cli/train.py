"""`tinyzero train`: from the command line to one call of the training loop.

What is slow to import (torch above all) is imported inside functions, after the settings have been checked.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tinyzero_sdk.cli.task_options import AllowUnsafe, show_judge
from tinyzero_sdk.console import stderr, warn
from tinyzero_sdk.errors import SettingsError
from tinyzero_trainer.cli import options, start

if TYPE_CHECKING:
    from tinyzero_sdk import Task
    from tinyzero_trainer.config import TrainConfig
    from tinyzero_trainer.config.compose import Composition


def train(
    overrides: options.Overrides = None,
    task: options.TaskOptions = None,
    output: options.OutputOption = None,
    recipe: options.RecipeOption = None,
    config: options.ConfigOption = None,
    model: options.ModelOption = None,
    gpus: options.GpusOption = None,
    address: options.AddressOption = None,
    resume: options.ResumeOption = False,
    allow_unsafe_scorers: AllowUnsafe = False,
) -> None:
    """Train a language model on a task by reinforcement learning.

    Ctrl-C saves a checkpoint and prints the command that resumes the run.
    """
    from tinyzero_trainer.api import resolve
    from tinyzero_trainer.config import TrainConfig
    from tinyzero_trainer.config.compose import compose, gather, is_of_run
    from tinyzero_trainer.config.resume import resume_config

    task, overrides = options.with_named(task, overrides)
    flags = options.flag_settings(task, gpus, address)
    flags |= {"run.output": output and str(output), "run.recipe": recipe, "model.path": model}
    flags["reward.allow_unsafe"] = allow_unsafe_scorers or None
    settings = gather(TrainConfig, flags, overrides, config)
    with options.exit_by_signal():
        composition, is_planned = None, False
        if resume:
            resolved = resume_config(output, settings)
        else:
            settings, is_planned = _with_model(start.with_checkpoints(settings))
            composition = compose(start.with_output(settings))
            resolved = composition.config
        typed = gather(TrainConfig, flags, overrides) if is_of_run(config) else settings
        tasks = _check(resolved, typed, resume=resume)
        _announce(resolved, composition)
        resolved = resolve(resolved, start.print_choice, check=None if is_planned else start.warn_of_memory)
        with start.imported("tinyzero_trainer.controller.loop", resolved) as progress:
            from tinyzero_trainer.controller.loop import train as run_loop

            try:
                run_loop(resolved, resume=resume, tasks=tasks, progress=progress)
            finally:
                for judged in tasks.values():
                    show_judge(judged)


def _with_model(overrides: dict[str, Any]) -> tuple[dict[str, Any], bool]:
    """The overrides with a model, on a GPU one made for the task if they name none, and whether they were checked.

    The check of memory comes before the model is trained for minutes.
    """
    from tinyzero_sdk.settings import get, merge
    from tinyzero_trainer.advisor.engine_choice import resolve_engine
    from tinyzero_trainer.api import fine_tune
    from tinyzero_trainer.config.model_defaults import TINY_NAME
    from tinyzero_trainer.models.new_model import default_spec
    from tinyzero_trainer.sft.default_model import plan

    if get(overrides, "data.path") and get(overrides, "model.path") is None:
        raise SettingsError(
            "data.path needs --model: the small models that are trained without it have seen problems of the task, and "
            "so perhaps the file's held-out ones"
        )
    own = plan(overrides)
    if own is None:
        is_named = get(overrides, "model.path") is not None
        return (overrides if is_named else merge(overrides, {"model": {"path": TINY_NAME}})), False
    spec = default_spec(own.config.default_model)
    config, _ = resolve_engine(own.config, spec)
    _check(config, overrides, resume=False)
    stderr.print(own.about, soft_wrap=True, markup=False)
    start.warn_of_memory(config, spec)
    return own.settle(fine_tune), True


def _check(config: "TrainConfig", typed: Mapping[str, Any], *, resume: bool) -> Mapping[str, "Task"]:
    """`start.check`, and what concerns reinforcement learning alone."""
    from tinyzero_trainer.advisor.limits import refuse_model
    from tinyzero_trainer.algorithms.kinds import POLICY_LOSSES
    from tinyzero_trainer.algorithms.user_functions import check_place

    if config.data.test_path and not config.data.path:
        raise SettingsError(f"data.test_path={config.data.test_path} alone trains on nothing; give data.path too")
    if config.algorithm.policy_loss not in POLICY_LOSSES:
        check_place("algorithm.policy_loss", config.algorithm.policy_loss)
    refuse_model(config, resume=resume)
    return start.check(config, typed, resume=resume)


def _announce(config: "TrainConfig", composition: "Composition | None") -> None:
    """Print at once what is about to happen, since loading takes seconds; no composition = the run is resumed."""
    verb = "resuming the training of" if composition is None else "training"
    from tinyzero_trainer.config.model_defaults import TINY_MODEL, directory_of, other_task

    where, specs = directory_of(config.model.path), config.task_specs
    model = TINY_MODEL if where is None else config.model.path
    names = (f"{spec.name} (weight {spec.weight:g})" if len(specs) > 1 else spec.task for spec in specs)
    stderr.print(f"{verb} {model} on {' and '.join(names)} in {config.run.output}", soft_wrap=True, markup=False)
    if composition is None:
        return
    start.print_origin(f"recipe {composition.config.run.recipe}", composition.recipe)
    start.print_origin("defaults of the model", composition.model_defaults)
    for spec in specs:
        if trained_on := other_task(spec.task, where):
            unable = f"this model was warm-started on {trained_on} and may be unable to solve {spec.task}"
            warn(f"{unable}; `tinyzero warmstart` makes one for it")
