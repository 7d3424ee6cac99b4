"""The default model: where no model is named, a GPU trains a small one that is fine-tuned on the task first.

It is made once and kept in the user's cache, under a key of everything it depends on. On the CPU the tiny model that
comes with the trainer is trained instead. Imports torch only to make a model.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tinyzero_sdk import Task
from tinyzero_sdk.console import stderr
from tinyzero_sdk.errors import SettingsError, TinyZeroError
from tinyzero_sdk.settings import build, get, merge, read_toml, to_mapping
from tinyzero_trainer.config import DefaultModelConfig, TrainConfig
from tinyzero_trainer.config.compose import compose
from tinyzero_trainer.config.model_defaults import TINY_NAME
from tinyzero_trainer.config.sft import SftConfig, SftRunConfig, TinyShape
from tinyzero_trainer.config.tasks import load_tasks
from tinyzero_trainer.hardware import nvml
from tinyzero_trainer.models.hub import find_spec
from tinyzero_trainer.models.spec import ModelSpec, spec_from_config
from tinyzero_trainer.monitoring.progress import Progress
from tinyzero_trainer.sft.tiny_model import qwen2_sizes
from tinyzero_trainer.utils.signals import StopFlag, left_at_once
from tinyzero_trainer.utils.startup import calm_threads, without_collector

_PRESET = read_toml(Path(__file__).with_suffix(".toml"))
SETTINGS: Mapping[str, Any] = _PRESET["settings"]
"""Defaults of its reinforcement learning; the user's settings take precedence."""

TEMPLATES = ("compact", "base")
"""Where the user names none, the first of these that the task has."""


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
        return (
            f"no --model: fine-tuning a small model on examples of {tasks} first, for "
            f"{self.recipe.training.seconds:g} s on the GPU (default_model.seconds); it is kept in {self.directory}"
        )

    def settle(self) -> dict[str, Any]:
        """The user's settings with `model.path` set, in place of `default_model`; makes the model if need be."""
        if not self.directory.is_dir():
            try:
                self.directory.parent.mkdir(parents=True, exist_ok=True)
                with left_at_once("before the small model was made; nothing is left of it"), self._locked():
                    self._make(self.directory.with_name(f"{self.directory.name}.tmp"))
            except OSError as error:
                raise TinyZeroError(
                    f"cannot keep a model in {self.directory.parent}: {error.strerror or error}; give "
                    "default_model.directory"
                ) from error
        path = str(self.directory) if self.directory.is_dir() else TINY_NAME
        kept = {key: value for key, value in self.overrides.items() if key != "default_model"}
        return merge(kept, {"model": {"path": path}})

    def _locked(self) -> AbstractContextManager[object]:
        from filelock import FileLock, Timeout

        lock = FileLock(self.directory.with_name(f"{self.directory.name}.lock"))
        try:
            return lock.acquire(blocking=False)
        except Timeout:
            waiting = f"waiting for another process that makes the same model (it holds {lock.lock_file})"
            stderr.print(waiting, soft_wrap=True, markup=False)
            return lock.acquire()

    def _make(self, temporary: Path) -> None:
        if self.directory.is_dir():  # another process has made it
            return
        calm_threads()
        shutil.rmtree(temporary, ignore_errors=True)  # left by a killed process
        with Progress() as progress:
            if not on_gpu(self.config.run.device, progress):
                progress.log("torch cannot use the GPU: using the tiny model that comes with the trainer")
                return
            import torch

            from tinyzero_trainer.sft.train import fine_tune
            from tinyzero_trainer.utils.oom import catch_out_of_memory

            smaller = f"give a smaller default_model.layers or default_model.mlp_size, or --model {TINY_NAME}"
            recipe = replace(self.recipe, run=SftRunConfig(str(temporary), device=self.config.run.device))
            try:
                with catch_out_of_memory("the default model was made", smaller):
                    made = fine_tune(recipe, progress=progress, stop=StopFlag())
                os.replace(made.output, self.directory)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)
                torch.cuda.empty_cache()  # for Ray actors, which may train it
            progress.done(made.summary.replace(str(temporary), str(self.directory)))


def plan(overrides: Mapping[str, Any]) -> DefaultModel | None:
    """The model to train where the user named none and there is a GPU; otherwise None.

    Raises:
        SettingsError: a setting is unknown, impossible or without effect; a task has no demonstrations.
    """
    device = get(overrides, "run.device") or "auto"
    if get(overrides, "model.path") is not None or not isinstance(device, str):
        return None  # the former is for config/unused.py, the latter for `build`
    no_ray_gpu = get(overrides, "run.executor") == "ray" and not get(overrides, "ray.gpus")
    if no_ray_gpu or not nvml.sees_gpu(device):
        if overrides.get("default_model"):
            why = "Ray with ray.gpus=0 has" if no_ray_gpu else f"run.device={device} finds"
            raise SettingsError(
                f"default_model has no effect: {why} no GPU, and on the CPU the tiny model that comes with the trainer "
                "is trained; leave it out"
            )
        return None
    config = compose(overrides, merge(SETTINGS, {"data": {"prompt_template": TEMPLATES[0]}})).config
    tasks = load_tasks(config.task_specs, allow_unsafe_scorers=config.reward.allow_unsafe)
    given = get(overrides, "data.prompt_template")
    templates = {_prompt_template(name, task, given) for name, task in tasks.items()}
    if len(templates) > 1:
        raise SettingsError(
            f"the tasks share no template of {' and '.join(TEMPLATES)}; give data.prompt_template or --model"
        )
    training = {
        **_PRESET["training"],
        "seconds": config.default_model.seconds,
        "template": templates.pop(),
        "test_fraction": config.data.test_fraction,
        "eval_size": SETTINGS["eval"]["num_problems"],
    }
    recipe = build(
        SftConfig,
        {"model": _shape(config.default_model), "training": training, "settings": SETTINGS, "tasks": config.tasks},
    )
    depends = {
        "recipe": to_mapping(recipe),
        "tasks": {name: task.version for name, task in tasks.items()},
        "trainer": version("tinyzero-trainer"),
    }
    key = hashlib.sha256(json.dumps(depends, sort_keys=True, default=str).encode()).hexdigest()[:12]
    names = re.sub(r"[^A-Za-z0-9+_-]", "_", "+".join(tasks))
    cache = config.default_model.directory or f"{os.environ.get('XDG_CACHE_HOME') or '~/.cache'}/tinyzero/models"
    return DefaultModel(overrides, config, recipe, Path(cache).expanduser().absolute() / f"{names}-{key}")


def default_spec(config: DefaultModelConfig) -> ModelSpec:
    """The sizes of the default model, which has the tiny one's vocabulary."""
    shape = build(TinyShape, _shape(config))
    sizes = {"model_type": "qwen2", **qwen2_sizes(shape, find_spec(None).vocabulary)}
    return spec_from_config("the small model that train makes (default_model)", sizes)


def _shape(config: DefaultModelConfig) -> dict[str, Any]:
    return {name: value for name, value in to_mapping(config).items() if name in TinyShape.__dataclass_fields__}


def on_gpu(device: str, progress: Progress) -> bool:
    progress.phase("loading PyTorch")
    with without_collector():
        from tinyzero_trainer.models.device import choose_device

    return choose_device(device).type == "cuda"


def _prompt_template(name: str, task: Task, template: str | None) -> str:
    """The user's template, or the first of `TEMPLATES` that the task has."""
    item = next(task.dataset("train", 1))
    if task.demonstrate(item, 0) is None:
        raise SettingsError(
            f"task {name!r} has no demonstrations to make a small model from; give --model DIR, or model.path="
            f"{TINY_NAME} for the tiny one that comes with the trainer"
        )
    if template is None:
        with suppress(TinyZeroError):  # it has no such template
            if isinstance(task.make_prompt(item, TEMPLATES[0]), str):
                return TEMPLATES[0]
    return template or TEMPLATES[1]
