"""A small model of one's own: what a GPU trains where no model is named, since nothing may be downloadable.

It is made once by a warm start, kept in the user's cache under everything that it depends on, and trained as if
`--model` had named it. On the CPU the tiny model of the wheel is trained instead. No torch before it is made.
"""

import hashlib
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinyzero_sdk.errors import SettingsError, TinyZeroError
from tinyzero_sdk.settings import build, get, merge, read_toml, to_mapping, unflatten
from tinyzero_trainer.config import DefaultModelConfig, TrainConfig
from tinyzero_trainer.config.compose import resolve
from tinyzero_trainer.config.model_defaults import PRESET_FILE, TINY_NAME
from tinyzero_trainer.config.sft import SftConfig
from tinyzero_trainer.config.tasks import load_tasks
from tinyzero_trainer.hardware import gpu_seen
from tinyzero_trainer.utils.startup import without_collector

if TYPE_CHECKING:
    from tinyzero_sdk import Task
    from tinyzero_trainer.monitoring.progress import Progress

SETTINGS: Mapping[str, Any] = {
    "model": {"compile": True},
    "run": {"steps": 150},
    "data": {"prompts_per_step": 128},
    # Room to try again: at 256 tokens three in ten completions were still searching when they were cut off, at 1,024
    # one in six.
    "rollout": {"group_size": 16, "return_logprobs": "always", "max_completion_tokens": 1024},
    # Of 0.1, 0.01, 0.003 and 0 the second did best: 0.1 holds the search back too, with 0 the arithmetic drifts.
    "algorithm": {"kl_coefficient": 0.01, "kl_estimator": "exact"},
    # At a constant rate held-out accuracy wavers around 81 %; as the rate falls it goes on to 86 %.
    "optimizer": {
        "learning_rate": 2e-4,
        "lr_schedule": "cosine",
        "beta2": 0.99,
        "num_mini_batches": 4,
        "micro_batch_tokens": 131_072,
    },
    "reward": {"num_workers": 4},
    "eval": {"num_problems": 1024, "num_problems_during": 1024, "every": 15},
    "checkpoint": {"every": 75},
}
"""What suits a model of this size on a GPU, where a step takes a second."""

TRAINING: Mapping[str, Any] = {"batch_size": 512, "learning_rate": 1.5e-3, "max_tokens": 768}
TEMPLATES = ("compact", "base")
"""The first that the task has is taken where the user names none."""

_WRITTEN = re.compile(
    r"(config|generation_config|tokenizer|tokenizer_config|special_tokens_map|added_tokens|model\.safetensors\.index)\.json"
    r"|model(-\d+-of-\d+)?\.safetensors|chat_template\.jinja|README\.md|(tinyzero|warmstart)\.toml"
)
"""Names of what a warm start leaves: a directory with nothing else in it is ours to make anew."""


@dataclass(frozen=True)
class DefaultModel:
    """A model to make, or made before."""

    said: Mapping[str, Any]
    """What the user said of the run."""

    config: TrainConfig
    """Of the run, as far as it is known without the model."""

    recipe: SftConfig
    """Of the model; its directory is where the model will be."""

    @property
    def directory(self) -> Path:
        """Where the model is kept."""
        return Path(self.recipe.run.output)

    @property
    def is_made(self) -> bool:
        """Whether it is there, and whole as far as can be told without loading it."""
        return self.directory.is_dir() and find_fault(self.directory) is None

    @property
    def about(self) -> str:
        """One line for the user."""
        if self.is_made:
            return f"no --model: taking the small model made here before, {self.directory}"
        tasks = " and ".join(share.title for share in self.recipe.task_shares())
        broken = ""
        if self.directory.is_dir():
            broken = f"the small model made here before is broken ({find_fault(self.directory)}) and is made anew; "
        return (
            f"{broken}no --model: warm-starting a small model on {tasks} first, for "
            f"{self.recipe.training.seconds:g} s on the GPU (default_model.seconds); it is kept in {self.directory}"
        )

    def settle(self) -> dict[str, Any]:
        """What the user said, with the model, which is made if need be, in place of the words on how to make it.

        Raises:
            TinyZeroError: it cannot be made or kept.
        """
        self._make()
        named = unflatten({"model.path": str(self.directory) if self.is_made else TINY_NAME})
        return merge({key: value for key, value in self.said.items() if key != "default_model"}, named)

    def _make(self) -> None:
        from tinyzero_trainer.utils.signals import left_at_once

        if self.is_made:
            return
        try:
            self.directory.parent.mkdir(parents=True, exist_ok=True)
            with left_at_once("before the small model was made; nothing is left of it"), self._alone():
                if not self.is_made:  # another process may have made it while this one waited
                    self._remove_broken()
                    self._warm_start(self.directory.with_name(f"{self.directory.name}.tmp"))
        except OSError as error:
            raise TinyZeroError(
                f"cannot keep a model in {self.directory.parent}: {error.strerror or error}; give "
                "default_model.directory"
            ) from error

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the lock of this model, and say so where another process has it."""
        from filelock import FileLock, Timeout

        from tinyzero_sdk.console import stderr

        lock = FileLock(self.directory.with_name(f"{self.directory.name}.lock"))
        try:
            lock.acquire(blocking=False)
        except Timeout:
            waiting = f"another process is making the same model; waiting for it (it holds {lock.lock_file})"
            stderr.print(waiting, soft_wrap=True, markup=False)
            lock.acquire()
        try:
            yield
        finally:
            lock.release()

    def _remove_broken(self) -> None:
        """Clear away what is there and is no model, for one to take its place.

        Raises:
            TinyZeroError: it holds what no warm start writes, so that it may be the user's.
        """
        if not self.directory.exists():
            return
        strange = sorted(entry.name for entry in self.directory.iterdir() if not _WRITTEN.fullmatch(entry.name))
        if strange:
            raise TinyZeroError(
                f"{self.directory} holds no whole model ({find_fault(self.directory)}), but {strange[0]}, which no "
                "warm start writes; delete the directory, or give default_model.directory"
            )
        shutil.rmtree(self.directory)

    def _warm_start(self, aside: Path) -> None:
        from tinyzero_trainer.monitoring.progress import Progress
        from tinyzero_trainer.utils.signals import StopFlag
        from tinyzero_trainer.utils.threads import calm_threads

        calm_threads()
        shutil.rmtree(aside, ignore_errors=True)  # of one that was killed
        with Progress() as display:
            if not on_gpu(self.recipe.run.device, display):
                display.note("torch cannot use the GPU: taking the tiny model that comes with the trainer")
                return
            import torch

            from tinyzero_trainer.sft.train import warm_start
            from tinyzero_trainer.utils.oom import catch_out_of_memory

            recipe = replace(self.recipe, run=replace(self.recipe.run, output=str(aside)))
            try:
                with catch_out_of_memory("a small model was made", self._smaller()):
                    made = warm_start(recipe, display=display, stop=StopFlag())
                os.replace(made.output, self.directory)
            finally:
                shutil.rmtree(aside, ignore_errors=True)
                torch.cuda.empty_cache()  # actors of Ray may be who trains it
            display.done(made.summary.replace(str(aside), str(self.directory)))

    def _smaller(self) -> str:
        """What to type where memory is too small to make it in."""
        own = self.config.default_model
        if own.layers > 1:
            return f"give default_model.layers={own.layers // 2}, or --model tiny"
        return f"give default_model.mlp_size={max(1, own.mlp_size // 2)}, or --model tiny"


def find_fault(directory: Path) -> str | None:
    """What is missing or cut short in a model that was kept, in words; None = nothing that shows. Loads no weights."""
    from tinyzero_trainer.models import files as model_files

    if (fault := model_files.find_fault(directory)) is not None:
        return fault.what.removeprefix(f"{directory}{os.sep}")
    for name in ("tokenizer.json", PRESET_FILE):
        if not (directory / name).is_file():
            return f"{name} is missing"
    for path in [*sorted(directory.glob("*.json")), directory / PRESET_FILE]:
        try:
            json.loads(path.read_bytes()) if path.suffix == ".json" else read_toml(path)
        except (OSError, ValueError, TinyZeroError):
            return f"{path.name} cannot be read"
    return None


def plan(said: Mapping[str, Any]) -> DefaultModel | None:
    """The model to train where the user named none and a GPU is there; None where that is not so.

    Args:
        said: what the user said of a new run, as a nested mapping.

    Raises:
        SettingsError: a setting is unknown or impossible, or `default_model` has no effect; a task has no
            demonstrations.
    """
    device = get(said, "run.device") or "auto"
    if get(said, "model.path") is not None or not isinstance(device, str):
        return None  # the former is for config/unused.py, the latter for `build`
    without = get(said, "run.executor") == "ray" and not get(said, "ray.gpus")  # so is device_of in config/parallel.py
    if without or not gpu_seen.sees_gpu(device):
        if said.get("default_model"):
            why = "Ray with ray.gpus=0 has" if without else f"run.device={device} finds"
            raise SettingsError(
                f"default_model has no effect: {why} no GPU, and on the CPU the tiny model that comes with the trainer "
                "is trained; leave it out"
            )
        return None
    config, _ = resolve(said, preset=merge(SETTINGS, {"data": {"prompt_template": TEMPLATES[0]}}))
    tasks = load_tasks(config.task_shares(), allow_unsafe_scorers=config.reward.allow_unsafe)
    given = get(said, "data.prompt_template")
    templates = {_check_task(name, task, given) for name, task in tasks.items()}
    if len(templates) > 1:
        raise SettingsError(
            f"the tasks share no template of {' and '.join(TEMPLATES)}; give data.prompt_template or --model"
        )
    recipe = _recipe(config, templates.pop())
    versions = {name: task.version for name, task in tasks.items()}
    return DefaultModel(
        said, config, replace(recipe, run=replace(recipe.run, output=str(_directory(config, recipe, versions))))
    )


def on_gpu(device: str, display: "Progress") -> bool:
    """Whether torch, too, would take a GPU."""
    display.phase("loading PyTorch")
    with without_collector():
        from tinyzero_trainer.models.loading import choose_device

    return choose_device(device).type == "cuda"


def _check_task(name: str, task: "Task", template: str | None) -> str:
    """The template to word the task's problems with.

    Raises:
        SettingsError: it has no demonstrations.
    """
    item = next(task.dataset("train", 1))
    if task.demonstrate(item, 0) is None:
        raise SettingsError(
            f"task {name!r} has no demonstrations to make a small model from; give --model DIR, or model.path="
            f"{TINY_NAME} for the tiny one that comes with the trainer"
        )
    if template is not None:
        return template
    for candidate in TEMPLATES[:-1]:
        try:
            if isinstance(task.make_prompt(item, candidate), str):
                return candidate
        except TinyZeroError:
            continue  # it has no such template
    return TEMPLATES[-1]


def _recipe(config: TrainConfig, template: str) -> SftConfig:
    """How to make the model of a run."""
    own = config.default_model
    tasks = {"tasks": config.tasks} if config.tasks else {"task": config.task}
    values = {
        "run": {"task": config.run.task, "device": config.run.device},
        "model": {name: getattr(own, name) for name in ("hidden_size", "layers", "head_size", "kv_heads", "mlp_size")},
        "training": {
            **TRAINING,
            "seconds": own.seconds,
            "template": template,
            "test_fraction": config.data.test_fraction,
            "eval_size": SETTINGS["eval"]["num_problems"],
        },
        "settings": SETTINGS,
    }
    return build(SftConfig, values | tasks)


def _directory(config: TrainConfig, recipe: SftConfig, versions: Mapping[str, str]) -> Path:
    """Where the model is kept: named by all that it depends on, but for chance and the card."""
    content = to_mapping(recipe)
    content["run"] = {name: value for name, value in content["run"].items() if name not in ("output", "device")}
    depends = {"recipe": content, "tasks": dict(versions), "trainer": version("tinyzero-trainer")}
    key = hashlib.sha256(json.dumps(depends, sort_keys=True, default=str).encode()).hexdigest()[:12]
    titles = "+".join(share.title for share in config.task_shares())
    return _cache(config.default_model) / f"{re.sub(r'[^A-Za-z0-9+_-]', '_', titles)}-{key}"


def _cache(own: DefaultModelConfig) -> Path:
    if own.directory is not None:
        return Path(own.directory).expanduser().absolute()
    caches = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(caches).expanduser().absolute() / "tinyzero" / "models"
