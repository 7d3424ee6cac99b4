"""The workers of a run, from the executor that `run.executor` names."""

from collections.abc import Mapping
from contextlib import AbstractContextManager
from functools import partial
from importlib import import_module
from pathlib import Path

import torch

from tinyzero_sdk import Task
from tinyzero_trainer.algorithms.advantages import find_estimator
from tinyzero_trainer.algorithms.losses import find_policy_loss
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.config.tasks import load_tasks
from tinyzero_trainer.executors.base import Workers
from tinyzero_trainer.kinds import find_executor
from tinyzero_trainer.models.device import choose_device
from tinyzero_trainer.models.files import start_loading
from tinyzero_trainer.models.hub import architecture
from tinyzero_trainer.monitoring.progress import Progress
from tinyzero_trainer.rollout.build import require_engine
from tinyzero_trainer.training.float8 import require_float8


def build_workers(
    config: TrainConfig,
    *,
    display: Progress,
    training: bool,
    checkpoint: Path | None = None,
    tasks: Mapping[str, Task] | None = None,
) -> AbstractContextManager[Workers]:
    """Build the workers that `run.executor` names; leaving the context ends their processes.

    An executor's own function of this name gets the tasks, which are loaded, and the device of its workers as well.

    Args:
        training: whether to build a policy with its optimizer, and a reference model and a critic if they are needed.
        checkpoint: directory whose weights are loaded instead of the starting model's.
        tasks: of the run, if they are loaded already.
    """
    kind = find_executor(config.run.executor if training else "local")
    # Processes of their own choose their devices: this one may have none, and must not initialize CUDA.
    elsewhere = torch.device("cuda" if config.ray.gpus else "cpu")
    device = elsewhere if kind.own_processes else choose_device(config.run.device)
    model = str(checkpoint) if checkpoint else config.model.path
    here = config.ray.address is None  # elsewhere the model may be on the workers' machines only
    require_engine(config, device, partial(architecture, model) if here else None)
    if training and config.model.float8 and not kind.own_processes:
        require_float8(device)
    if here:
        start_loading(model, display)
    tasks = tasks or load_tasks(
        config.task_specs,
        config.data,
        wrappers=config.wrappers_with_limit() if training else (),
        allow_unsafe_scorers=config.reward.allow_unsafe,
    )
    if training:
        # An error in a function of the user's own is reported before models load.
        find_estimator(config.algorithm.advantage_estimator)
        find_policy_loss(config.algorithm.policy_loss)
    built: AbstractContextManager[Workers] = import_module(kind.build).build_workers(
        config, tasks, device, display=display, training=training, checkpoint=checkpoint
    )
    return built
