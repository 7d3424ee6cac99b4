"""What `train` and `sft` do before a run: checks that need no model, a warning of memory, and the import of torch."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinyzero_sdk.console import stderr, warn
from tinyzero_sdk.errors import TinyZeroError
from tinyzero_trainer.utils.background import run_in_background
from tinyzero_trainer.utils.startup import import_errors_in_one_line, set_torch_environment, without_collector

if TYPE_CHECKING:
    from tinyzero_sdk import Task
    from tinyzero_trainer.config import TrainConfig
    from tinyzero_trainer.models.spec import ModelSpec
    from tinyzero_trainer.monitoring.progress import Progress


def check(config: "TrainConfig", typed: Mapping[str, Any], *, resume: bool) -> Mapping[str, "Task"]:
    """The run's tasks, after checks of all that needs no model: a TinyZeroError says what to change."""
    from tinyzero_trainer.checkpoint.run_directory import RunDirectory
    from tinyzero_trainer.config.tasks import load_tasks, refuse_unused

    allow_unsafe = config.reward.allow_unsafe
    wrappers = config.wrappers_with_limit()
    tasks = load_tasks(config.task_specs, config.data, wrappers=wrappers, allow_unsafe_scorers=allow_unsafe)
    others = load_tasks(config.eval.task_specs, allow_unsafe_scorers=allow_unsafe, table="eval.tasks")
    for task in (*tasks.values(), *others.values()):
        task.check_scoring_allowed()
    refuse_unused(tasks, typed)
    config.run.kind.check(config)
    if config.ray.address is None:  # elsewhere the workers' machines need what the engine needs
        config.rollout.kind.require_installed()
    if config.run.output:
        RunDirectory(Path(config.run.output)).check(resume=resume)
    return tasks


def with_checkpoints(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with a run's newest checkpoint where they name the run as a model."""
    from tinyzero_sdk.settings import merge
    from tinyzero_trainer.checkpoint.run_directory import newest_model
    from tinyzero_trainer.config.compose import text

    named = {name: text(settings, f"model.{name}") for name in ("path", "teacher")}
    models = {name: newest_model(model) for name, model in named.items() if model}
    return merge(settings, {"model": models} if models else {})


def with_output(settings: Mapping[str, Any], prefix: str = "", other: str = "") -> dict[str, Any]:
    """The settings with a run directory named after the tasks, or `other`, and the time, if they name none."""
    from tinyzero_sdk.settings import get, merge

    if get(settings, "run.output"):
        return dict(settings)
    names = "+".join(Path(name).name for name in settings.get("tasks", ())) or other
    return merge(settings, {"run": {"output": f"runs/{prefix}{names}-{time.strftime('%Y-%m-%d-%H%M%S')}"}})


def print_origin(origin: str, settings: Mapping[str, Any]) -> None:
    """A line for the settings of a recipe, or those recorded with a model, if there are any."""
    from tinyzero_sdk.settings import format_value

    if settings:
        words = " ".join(f"{key}={format_value(value)}" for key, value in settings.items())
        stderr.print(f"{origin}: {words}", style="dim", soft_wrap=not stderr.is_terminal, markup=False, highlight=False)


def warn_of_memory(config: "TrainConfig", spec: "ModelSpec | None" = None, *, command: str = "tinyzero plan") -> None:
    """Warn of a run that will not fit into the GPU's memory; `spec` is of a model that does not exist yet."""
    from tinyzero_trainer.advisor import advice

    if warning := advice.warning(config, spec):
        warn(f"{warning} (details: {command})")


def print_choice(line: str) -> None:
    """What was chosen for a setting that is `auto`."""
    stderr.print(line, style="dim", soft_wrap=True, markup=False, highlight=False)


@contextmanager
def imported(module: str, config: "TrainConfig") -> Iterator["Progress"]:
    """Import what a run needs, `module` and with it torch, and show the run's progress."""
    from tinyzero_trainer.monitoring.progress import Progress
    from tinyzero_trainer.utils.signals import left_at_once

    with Progress() as progress, left_at_once("while the run was being loaded"):
        progress.phase("loading PyTorch")
        set_torch_environment()
        with without_collector():
            if (start := config.run.kind.prepare(config)) is not None:
                # Not in a thread: Ray's processes end with the one that started them. Where it fails, the run tries
                # again, and says why.
                with run_in_background(lambda _: import_module(module)), suppress(TinyZeroError):
                    start()
            with import_errors_in_one_line():
                from tinyzero_trainer.cli.oom_advice import advise_on_out_of_memory

                import_module(module)
        progress.record_startup("imports")
        with advise_on_out_of_memory(config):
            yield progress
