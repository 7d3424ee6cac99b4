"""The Python entry: training and fine-tuning by a configuration that may leave settings to the run (`auto`).

What is `auto` is resolved here, once. Imports no torch before a run.
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from tinyzero_sdk import Task
from tinyzero_trainer.advisor.auto import resolve_auto
from tinyzero_trainer.advisor.engine_choice import resolve_engine
from tinyzero_trainer.config import SftConfig, TrainConfig

if TYPE_CHECKING:
    from tinyzero_trainer.controller.ending import TrainResult
    from tinyzero_trainer.models.spec import ModelSpec
    from tinyzero_trainer.monitoring.progress import Progress


def train(
    config: TrainConfig,
    *,
    resume: bool = False,
    tasks: Mapping[str, Task] | None = None,
    progress: "Progress | None" = None,
) -> "TrainResult":
    """Train a model on a task, or several, by reinforcement learning: what `tinyzero train` does.

    Args:
        config: with `tasks` and `run.output`.
        resume: continue from the newest intact checkpoint in `run.output`.
        tasks: of the run, if they are loaded already.
        progress: shows the phases.

    Raises:
        Interrupted: a signal ended the run; a checkpoint was saved.
        TinyZeroError: anything else a user can cause.
    """
    from tinyzero_trainer.controller import loop
    from tinyzero_trainer.monitoring.progress import Progress

    with progress or Progress() as display:
        return loop.train(resolve(config, display.log), resume=resume, tasks=tasks, progress=display)


def fine_tune(
    config: SftConfig,
    *,
    resume: bool = False,
    tasks: Mapping[str, Task] | None = None,
    progress: "Progress | None" = None,
) -> "TrainResult":
    """Fine-tune a model on examples of tasks or of `data.path`, as `tinyzero sft`; arguments and errors as `train`."""
    from tinyzero_trainer.models.new_model import new_spec
    from tinyzero_trainer.monitoring.progress import Progress
    from tinyzero_trainer.sft.train import fine_tune

    spec = None if config.model.path else new_spec("a new decoder", config.new_model)
    with progress or Progress() as display:
        resolved = config.with_resolved(resolve(config.workers_config, display.log, spec))
        return fine_tune(resolved, resume=resume, tasks=tasks, progress=display)


def resolve(
    config: TrainConfig,
    report: Callable[[str], None],
    spec: "ModelSpec | None" = None,
    check: Callable[[TrainConfig], None] | None = None,
) -> TrainConfig:
    """The configuration with a rollout engine, and values for the memory settings that are `auto`.

    `spec` is of a model that does not exist yet. `check` is called once the engine is chosen.
    """
    config, reason = resolve_engine(config, spec)
    if reason:
        report(f"auto: rollout.engine={config.rollout.engine} ({reason})")
    if check is not None:
        check(config)
    config, line = resolve_auto(config, spec)
    if line:
        report(line)
    return config
