"""The default model: where no model is named, a GPU trains a small one that is fine-tuned on the task first.

It is made once and kept in the user's cache, under a key of everything it depends on. On the CPU the tiny model that
comes with the trainer is trained instead. Imports torch only to make a model.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tinyzero_sdk import Task
from tinyzero_sdk.errors import SettingsError, TinyZeroError
from tinyzero_sdk.settings import get, merge, read_toml, to_mapping
from tinyzero_trainer.checkpoint.run_directory import newest_model
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.config.compose import compose
from tinyzero_trainer.config.model_defaults import TINY_NAME
from tinyzero_trainer.config.run import DefaultModelConfig
from tinyzero_trainer.config.sft import SftConfig, warm_start
from tinyzero_trainer.config.tasks import load_tasks
from tinyzero_trainer.hardware import nvml
from tinyzero_trainer.kinds import EXECUTOR_PACKAGE, find_executor, kind_names
from tinyzero_trainer.models.new_model import default_shape
from tinyzero_trainer.monitoring.progress import Progress
from tinyzero_trainer.utils.signals import Stopped, left_at_once
from tinyzero_trainer.utils.startup import set_torch_environment, user_cache, without_collector

PRESET = read_toml(Path(__file__).with_suffix(".toml"))
SETTINGS: dict[str, Any] = PRESET["settings"]
"""Defaults of its reinforcement learning; the user's settings take precedence."""

TEMPLATES = ("compact", "base")  # the first of these that the task has, unless the user names one

NOTHING_LEFT = "before the small model was made; nothing is left of it"


@dataclass(frozen=True)
class DefaultModel:
    """A model to make, or one in the cache."""

    overrides: Mapping[str, Any]
    config: TrainConfig
    recipe: SftConfig
    directory: Path
    """Its place in the cache, to which only complete models are moved."""

    @property
    def about(self) -> str:
        if self.directory.is_dir():
            return f"no --model: using the small model made here before, {self.directory}"
        tasks = " and ".join(spec.name for spec in self.recipe.task_specs)
        steps, seconds = self.config.default_model.steps, self.config.default_model.seconds
        length = f"{steps:,} steps" if seconds is None else f"{seconds:g} s"
        return (
            f"no --model: fine-tuning a small model on examples of {tasks} first, for {length} on the GPU "
            f"(default_model.{'steps' if seconds is None else 'seconds'}); it is kept in {self.directory}"
        )

    def settle(self, fine_tune: Callable[..., object]) -> dict[str, Any]:
        """The user's settings with `model.path` set, in place of `default_model`; `fine_tune` makes it if need be."""
        if not self.directory.is_dir():
            try:
                with left_at_once(NOTHING_LEFT):
                    make_once(self.directory, partial(self._make, fine_tune))
            except Stopped as stopped:  # its run, which could have been resumed, is gone
                raise Stopped(stopped.stopped_by, NOTHING_LEFT) from None
            except OSError as error:
                problem = f"cannot keep a model in {self.directory.parent}: {error.strerror or error}"
                raise TinyZeroError(f"{problem}; give default_model.directory") from error
        path = str(self.directory) if self.directory.is_dir() else TINY_NAME
        kept = {key: value for key, value in self.overrides.items() if key != "default_model"}
        return merge(kept, {"model": {"path": path}})

    def _make(self, fine_tune: Callable[..., object], output: Path) -> None:
        """Fine-tune the model, unless torch cannot use the GPU."""
        set_torch_environment()
        with Progress() as progress:
            if not on_gpu(self.config.run.device, progress):
                progress.log("torch cannot use the GPU: using the tiny model that comes with the trainer")
                return
            import torch

            from tinyzero_trainer.controller.checkpointer import STATE_DIRECTORY
            from tinyzero_trainer.utils.oom import catch_out_of_memory

            smaller = f"give a smaller default_model.layers or default_model.mlp_size, or --model {TINY_NAME}"
            run = output.with_suffix(".run")
            recipe = replace(self.recipe, run=replace(self.recipe.run, output=str(run), device=self.config.run.device))
            try:
                with catch_out_of_memory("the default model was made", smaller):
                    fine_tune(recipe, progress=progress)
                newest = Path(newest_model(str(run)))
                shutil.rmtree(newest / STATE_DIRECTORY)
                newest.rename(output)
            finally:
                shutil.rmtree(run, ignore_errors=True)
            torch.cuda.empty_cache()  # for Ray actors, which may train it


def make_once(directory: Path, make: Callable[[Path], None]) -> None:
    """Have `make` write the directory to a path, unless it exists; one process at a time.

    It is moved into place when it is complete; if `make` raises or writes nothing, nothing is left.
    """
    from filelock import FileLock

    directory.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(f"{directory}.tmp")
    with FileLock(f"{directory}.lock"):
        try:
            shutil.rmtree(temporary, ignore_errors=True)  # left by a killed process
            if not directory.is_dir():
                make(temporary)
            if temporary.is_dir():
                os.replace(temporary, directory)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def on_gpu(device: str, progress: Progress) -> bool:
    progress.phase("loading PyTorch")
    with without_collector():
        from tinyzero_trainer.models.device import choose_device

    return choose_device(device).type == "cuda"


def plan(overrides: Mapping[str, Any]) -> DefaultModel | None:
    """The model to train where the user named none and there is a GPU; otherwise None."""
    device = get(overrides, "run.device") or "auto"
    if get(overrides, "model.path") is not None or not isinstance(device, str):
        return None  # the former is for config/unused.py, the latter for `build`
    executor = get(overrides, "run.executor")
    own_processes = executor in kind_names(EXECUTOR_PACKAGE) and find_executor(executor).own_processes
    no_ray_gpu = own_processes and not get(overrides, "ray.gpus")
    if no_ray_gpu or not nvml.sees_gpu(device):
        if merge(by_default := vars(DefaultModelConfig()), overrides.get("default_model") or {}) != by_default:
            why = "Ray with ray.gpus=0 has" if no_ray_gpu else f"run.device={device} finds"
            raise SettingsError(
                f"default_model has no effect: {why} no GPU, and on the CPU the tiny model that comes with the trainer "
                "is trained; leave it out"
            )
        return None
    config = compose(overrides, merge(SETTINGS, {"data": {"prompt_template": TEMPLATES[0]}})).config
    tasks = load_tasks(config.task_specs, allow_unsafe_scorers=config.reward.allow_unsafe)
    templates = {_prompt_template(name, task, get(overrides, "data.prompt_template")) for name, task in tasks.items()}
    if len(templates) > 1:
        raise SettingsError(
            f"the tasks share no template of {' and '.join(TEMPLATES)}; give data.prompt_template or --model"
        )
    seconds = config.default_model.seconds
    own = {
        "run": {"steps": config.default_model.steps} if seconds is None else {"seconds": seconds},
        "tasks": config.tasks,
        "new_model": to_mapping(default_shape(config.default_model)),
        "data": {"prompt_template": templates.pop(), "test_fraction": config.data.test_fraction},
        "settings": SETTINGS,
    }
    recipe = warm_start(merge(PRESET["sft"], own))
    versions = {name: task.version for name, task in tasks.items()}
    depends = {"recipe": to_mapping(recipe), "tasks": versions, "trainer": version("tinyzero-trainer")}
    key = hashlib.sha256(json.dumps(depends, sort_keys=True, default=str).encode()).hexdigest()[:12]
    names = re.sub(r"[^A-Za-z0-9+_-]", "_", "+".join(tasks))
    cache = config.default_model.directory or user_cache("models")
    return DefaultModel(overrides, config, recipe, Path(cache).expanduser().absolute() / f"{names}-{key}")


def _prompt_template(name: str, task: Task, requested: str | None) -> str:
    item = next(task.dataset("train", 1))
    if task.demonstrate(item, 0) is None:
        raise SettingsError(
            f"task {name!r} has no demonstrations to make a small model from; give --model DIR, or model.path="
            f"{TINY_NAME} for the tiny one that comes with the trainer"
        )
    if requested is None:
        with suppress(TinyZeroError):  # it has no such template
            if isinstance(task.make_prompt(item, TEMPLATES[0]), str):
                return TEMPLATES[0]
    return requested or TEMPLATES[1]
