"""The configuration of a resumed run: what --resume may change, and the fingerprint that all else is unchanged."""

import hashlib
import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from tinyzero_sdk.errors import SettingsError
from tinyzero_sdk.settings import build, flatten, format_value, get, merge, read_toml, to_mapping, unflatten
from tinyzero_sdk.tasks.trust import require_trust
from tinyzero_trainer.config.settings import drop_unused, refuse_unused, resumable, setting
from tinyzero_trainer.config.sft import SftConfig
from tinyzero_trainer.config.tasks import with_task_table
from tinyzero_trainer.config.train_config import TrainConfig

C = TypeVar("C", TrainConfig, SftConfig)


def is_sft(content: Mapping[str, Any]) -> bool:
    """Whether a saved configuration is of supervised fine-tuning."""
    return "new_model" in content


def resume_command(config: TrainConfig | SftConfig | Mapping[str, Any], output: str | Path | None = None) -> str:
    """The command that resumes a run, by its configuration or by what is saved of it, and its directory."""
    sft = is_sft(config) if isinstance(config, Mapping) else isinstance(config, SftConfig)
    place = str(config.run.output if output is None and not isinstance(config, Mapping) else output)
    return f"tinyzero {'sft' if sft else 'train'} --output {shlex.quote(place)} --resume"


def resume_config(
    directory: Path | None,
    overrides: Mapping[str, Any],
    cls: type[C] = TrainConfig,  # type: ignore[assignment]  # the default of a type variable
) -> C:
    """The configuration that a run was started with, and the overrides that --resume may make.

    Args:
        directory: of the run, which may have been moved; None is refused.
        overrides: what the user typed with --resume; repeating what is saved is fine.
        cls: the kind of run.

    Raises:
        SettingsError: there is no run, or `overrides` would change what is learned.
    """
    if directory is None:
        raise SettingsError("--resume needs --output, the directory of the run to resume")
    directory = directory.expanduser()
    file = directory / "config.toml"
    if not file.exists():
        raise SettingsError(f"{directory} holds no run to resume; leave out --resume to start one")
    content = read_toml(file)
    if is_sft(content) != (cls is SftConfig):
        raise SettingsError(
            f"{directory} holds another kind of run; resume it with: {resume_command(content, directory)}"
        )
    require_trust(file, content)
    saved = build(cls, content)
    before = dict(flatten(to_mapping(saved)))
    if get(overrides, "rollout.engine") == "auto":  # which chose the saved one
        overrides = merge(overrides, {"rollout": {"engine": saved.rollout.engine}})
    overrides = with_task_table({"tasks": saved.tasks, **overrides})
    typed = dict(flatten(overrides))
    try:
        # A resumable setting that a change leaves without effect returns to its default.
        values = drop_unused(merge(to_mapping(saved), overrides), unflatten(_learned_from(saved) | typed), cls)
        config = build(cls, merge(values, {"run": {"output": str(directory)}}))
    except SettingsError:
        _reject_changes(cls, before, before | typed)  # the reason, if there is such a change
        raise
    _reject_changes(cls, before, dict(flatten(to_mapping(config))))
    refuse_unused(config, typed)
    steps, saved_steps = config.run.steps or 0, saved.run.steps or 0
    if steps < saved_steps:
        raise SettingsError(f"--resume can raise run.steps={saved_steps}, but not lower it; leave it out")
    workers = saved.workers_config if isinstance(saved, SftConfig) else saved
    keys = ("optimizer.lr_schedule", "rollout.temperature_end", "algorithm.kl_coefficient_end")
    schedules = [f"{key}={value}" for key in keys if (value := setting(workers, key)) not in (None, "constant")]
    if steps > saved_steps and schedules:
        raise SettingsError(
            f"--resume cannot raise run.steps={saved_steps}, where {' and '.join(schedules)} ends: it would jump "
            "back; leave it out, or start a run in another --output"
        )
    return config


def _reject_changes(cls: type, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    for key in sorted(before.keys() | after.keys()):
        old, new = before.get(key), after.get(key)
        if old != new and key not in resumable(cls):
            change = f"{key} from {format_value(old)} to {format_value(new)}"
            raise SettingsError(f"--resume cannot change {change}; leave it out, or start a run in another --output")


def fingerprint(config: TrainConfig | SftConfig) -> str:
    """A hash of everything that affects what is learned, i.e. all that --resume may not change."""
    return hashlib.sha256(json.dumps(_learned_from(config), sort_keys=True, default=str).encode()).hexdigest()


def check_fingerprint(config: TrainConfig | SftConfig, saved: str) -> None:
    """Raise a SettingsError if `saved` is not the fingerprint of `config`."""
    if saved != fingerprint(config):
        raise SettingsError(
            "config.toml has changed since the checkpoint was saved; restore it, or start a run in another --output"
        )


def _learned_from(config: TrainConfig | SftConfig) -> dict[str, Any]:
    return {key: value for key, value in flatten(to_mapping(config)) if key not in resumable(type(config))}
