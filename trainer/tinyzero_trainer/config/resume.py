"""The configuration of a resumed run: what --resume may change, and the fingerprint that all else is unchanged."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tinyzero_sdk.errors import SettingsError
from tinyzero_sdk.settings import build, flatten, format_value, merge, read_toml, to_mapping, unflatten
from tinyzero_trainer.config.compose import drop_unused
from tinyzero_trainer.config.renamed_keys import RENAMED_KEYS, with_new_names
from tinyzero_trainer.config.tasks import with_task_table
from tinyzero_trainer.config.train_config import TrainConfig
from tinyzero_trainer.config.unused import unused_settings

RESUMABLE = (
    "run.output",
    "run.steps",
    "run.device",
    "run.executor",
    "ray.address",
    "ray.gpus",
    "parallel.world_size",
    "rollout.num_engines",
    "rollout.chunks_per_engine",
    "parallel.dp_replicate",
    "parallel.sequence_parallel",
    "ray.max_restarts",
    "model.compile",
    "memory.activation_checkpointing",
    "memory.cpu_offload",
    "rollout.max_num_seqs",
    "vllm.gpu_memory_gb",
    "vllm.sleep_mode",
    "vllm.tensor_parallel",
    "vllm.separate_process",
    "vllm.cuda_graphs",
    "vllm.max_restarts",
    "vllm.timeout",
    "vllm.verify_weights",
    "optimizer.micro_batch_tokens",
    "optimizer.packing",
    "reward.num_workers",
    "reward.memory_limit_gb",
    "eval.every",
    "eval.num_problems_during",
    "checkpoint.every",
    "checkpoint.keep",
    "log.trackers",
    "log.project",
    "log.rollouts_every",
    "log.rollouts_count",
)
"""Keys that --resume may change: they affect speed, memory and records, not what is learned."""


def resume_config(directory: Path, overrides: Mapping[str, Any]) -> TrainConfig:
    """The configuration that a run was started with, and the overrides that --resume may make.

    Args:
        directory: of the run, which may have been moved.
        overrides: what the user typed with --resume; repeating what is saved is fine.

    Raises:
        SettingsError: there is no run, or `overrides` would change what is learned.
    """
    file = directory / "config.toml"
    if not file.exists():
        raise SettingsError(f"{directory} holds no run to resume; leave out --resume to start one")
    saved = build(TrainConfig, with_new_names(read_toml(file)))
    before = to_mapping(saved)
    overrides = with_task_table({"tasks": saved.tasks, **overrides})
    try:
        # A resumable setting that a change leaves without effect returns to its default.
        resumable = {key: value for key, value in flatten(before) if key in RESUMABLE}
        kept = {key: value for key, value in flatten(before) if key not in RESUMABLE}
        values = merge(drop_unused(unflatten(resumable), merge(unflatten(kept), overrides)), overrides)
        config = build(TrainConfig, merge(merge(unflatten(kept), values), {"run": {"output": str(directory)}}))
    except SettingsError:
        _refuse_changes(saved, _flat(saved) | dict(flatten(overrides)))  # the reason, if there is such a change
        raise
    _refuse_changes(saved, _flat(config))
    typed = dict(flatten(overrides))
    for key, value, reason in unused_settings(config):
        if key in typed:
            raise SettingsError(f"{key}={value!r} has no effect: {reason}")
    if config.run.steps < saved.run.steps:
        raise SettingsError(f"--resume can raise run.steps={saved.run.steps}, but not lower it; leave it out")
    if config.run.steps > saved.run.steps and (schedules := ending_schedules(saved)):
        raise SettingsError(
            f"--resume cannot raise run.steps={saved.run.steps}, where {' and '.join(schedules)} ends: it would jump "
            "back; leave it out, or start a run in another --output"
        )
    return config


def _refuse_changes(saved: TrainConfig, after: Mapping[str, Any]) -> None:
    before = _flat(saved)
    for key in sorted(before.keys() | after.keys()):
        old, new = before.get(key), after.get(key)
        if old != new and key not in RESUMABLE:
            change = f"{key} from {format_value(old)} to {format_value(new)}"
            raise SettingsError(f"--resume cannot change {change}; leave it out, or start a run in another --output")


def fingerprint(config: TrainConfig) -> str:
    """A hash of everything that affects what is learned, i.e. all but `RESUMABLE`."""
    return _hash({key: value for key, value in _flat(config).items() if key not in RESUMABLE})


def check_fingerprint(config: TrainConfig, saved: str) -> None:
    """Refuse to resume from a checkpoint of another configuration; release 0.1 hashed the old keys.

    Raises:
        SettingsError: `saved` is not the fingerprint of `config`.
    """
    old = {new: key for key, new in RENAMED_KEYS.items()}
    by_old_keys = {old.get(key, key): value for key, value in _flat(config).items() if key not in RESUMABLE}
    of_one_task = {key: value for key, value in by_old_keys.items() if not key.startswith("tasks.")}
    for spec in config.task_specs[:1]:
        of_one_task |= {"run.task": spec.task, **dict(flatten(spec.options, "task."))}
    if saved not in (fingerprint(config), _hash(by_old_keys), _hash(of_one_task)):
        raise SettingsError(
            "config.toml has changed since the checkpoint was saved; restore it, or start a run in another --output"
        )


def _hash(settings: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(settings, sort_keys=True, default=str).encode()).hexdigest()


def _flat(config: TrainConfig) -> dict[str, Any]:
    return dict(flatten(to_mapping(config)))


def ending_schedules(config: TrainConfig) -> list[str]:
    """The settings, as `key=value`, with which a schedule ends at `run.steps`."""
    optimizer, rollout, algorithm = config.optimizer, config.rollout, config.algorithm
    found = {
        "optimizer.lr_schedule": optimizer.lr_schedule if optimizer.lr_schedule != "constant" else None,
        "rollout.temperature_end": rollout.temperature_end,
        "algorithm.kl_coefficient_end": algorithm.kl_coefficient_end,
    }
    return [f"{key}={value}" for key, value in found.items() if value is not None]
