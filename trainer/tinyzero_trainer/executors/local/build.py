"""Builds the workers of a run in this process."""

import gc
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tinyzero_sdk import Task
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.distributed.cuda_allocator import expand_segments
from tinyzero_trainer.distributed.fsdp import FsdpOptions, device_of, process_group
from tinyzero_trainer.executors.base import Workers
from tinyzero_trainer.executors.micro_batch_halving import halve_until_it_fits
from tinyzero_trainer.executors.restart import RestartingEngine
from tinyzero_trainer.executors.tasks import run_tasks
from tinyzero_trainer.models.loading import LanguageModel, load_model
from tinyzero_trainer.monitoring.progress import Progress
from tinyzero_trainer.rollout import RolloutEngine
from tinyzero_trainer.rollout.background_engine import BackgroundEngine
from tinyzero_trainer.rollout.build import build_engine
from tinyzero_trainer.training.build import build_trained_models
from tinyzero_trainer.utils.oom import catch_out_of_memory


@contextmanager
def build_workers(
    config: TrainConfig,
    tasks: Mapping[str, Task],
    device: torch.device,
    *,
    display: Progress,
    training: bool,
    checkpoint: Path | None,
) -> Iterator[Workers]:
    """Build the workers in this process, with the models on `device`; other arguments: see executors/build.py."""
    if training and device.type == "cuda":
        expand_segments(config)
    with process_group(device) if training else nullcontext(), ExitStack() as stack:
        policy: Any = None
        critic: Any = None
        teacher: Any = None
        with catch_out_of_memory("the models were loaded"):
            if training:
                models = build_trained_models(config, FsdpOptions.of(config, device), checkpoint=checkpoint)
                language_model = models.language_model
            else:
                language_model = load_model(str(checkpoint) if checkpoint else config.model.path, device)
            run = stack.enter_context(run_tasks(config, tasks, language_model.tokenizer))
        display.record_startup("model")
        if training:
            policy, critic, teacher = models.policy, models.critic, models.teacher
            if device.type == "cuda":
                halve_until_it_fits(config, partial(models.try_largest, config), display.log)
            display.record_startup("warm_up")
        if message := config.rollout.kind.startup_message:
            display.phase(message)
        with catch_out_of_memory("the rollout engine took over the weights"):
            engine = build_local_engine(config, language_model, display.log)
        display.record_startup("engine")
        display.end_phase()
        try:
            yield Workers(run, language_model, engine, policy, critic, teacher, display)
        finally:
            if training and device.type == "cuda":
                gc.unfreeze()  # see `Learner`: models and engine become garbage, whose memory another run may need
            engine.close()


def build_local_engine(
    config: TrainConfig, language_model: LanguageModel, note: Callable[[str], None]
) -> RolloutEngine:
    """Build the rollout engine; one in a process of its own is restarted when it fails.

    With `rollout.max_async_level` an engine with weights of its own samples on while the policy is trained.
    """
    build, kind = partial(build_engine, config, language_model, note), config.rollout.kind
    if kind.separate_process(config):
        return RestartingEngine.local(build, kind.max_restarts(config), note)
    engine = build()
    if config.rollout.max_async_level and not engine.shares_weights:
        return BackgroundEngine(engine, device_of(language_model.model))
    return engine
