"""`tinyzero warmstart`: supervised fine-tuning of a small new model on a task's demonstrations."""

from pathlib import Path
from typing import Annotated

import typer

from tinyzero_sdk.errors import SettingsError
from tinyzero_trainer.cli import options
from tinyzero_trainer.utils.startup import calm_threads, without_collector


def warm_start(
    overrides: options.Overrides = None,
    task: options.TaskOptions = None,
    output: Annotated[
        Path | None, typer.Option("--output", metavar="DIR", help="Directory for the model; must not exist yet.")
    ] = None,
    config: options.ConfigOption = None,
) -> None:
    """Train a small new model on a task's own demonstrations, so that reinforcement learning has a start."""
    from tinyzero_sdk.settings import build
    from tinyzero_trainer.config.compose import gather
    from tinyzero_trainer.config.sft import SftConfig
    from tinyzero_trainer.monitoring.progress import Progress
    from tinyzero_trainer.utils.signals import StopFlag, left_at_once

    flags = {**options.flag_settings(task), "run.output": output and str(output)}
    resolved = build(SftConfig, gather(SftConfig, flags, overrides or (), config))
    for flag, value in (("--task", resolved.task_specs), ("--output", resolved.run.output)):
        if not value:
            raise SettingsError(f"a warm start needs {flag}")
    calm_threads()
    stopped = "before the model was made; nothing is left of it"
    with options.exit_by_signal(), left_at_once(stopped), Progress() as display:
        display.phase("loading PyTorch")
        with without_collector():
            from tinyzero_trainer.sft.train import fine_tune
        display.done(fine_tune(resolved, progress=display, stop=StopFlag()).summary)
