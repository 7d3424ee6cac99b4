"""The configuration of an evaluation: the keys that bear on it, and what a run's model takes from its run."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tinyzero_sdk.errors import SettingsError
from tinyzero_sdk.settings import flatten, get, merge, read_toml, unflatten
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.config.compose import make_config, text
from tinyzero_trainer.config.model_defaults import TINY_NAME
from tinyzero_trainer.config.renamed_keys import with_new_names
from tinyzero_trainer.config.tasks import identity, read_task_specs, task_of, with_task_table

EVALUATION_KEYS = (
    "run.seed",
    "run.device",
    "tasks",
    "model.path",
    "data.prompt_template",
    "data.test_fraction",
    "data.max_prompt_tokens",
    "rollout.max_completion_tokens",
    "rollout.max_num_seqs",
    "reward.num_workers",
    "reward.timeout",
    "reward.memory_limit_gb",
    "eval.num_problems",
)
"""Keys that bear on `tinyzero eval`; any other is refused there."""


def evaluation_config(values: Mapping[str, Any]) -> TrainConfig:
    """A configuration to evaluate with.

    A model out of a run takes the task, its options and what is held out from that run, so that the figures can be
    compared and nothing it was trained on is asked.

    Raises:
        SettingsError: a key that has no effect, or whatever `make_config` refuses.
    """
    values = with_task_table(values)
    tasks = values.get("tasks", {})
    if isinstance(tasks, Mapping) and len(tasks) > 1:
        raise SettingsError("an evaluation is of one task; give --task TASK, and its options as task.KEY=…")
    for key, _ in flatten(values):
        if key not in EVALUATION_KEYS and not key.startswith(("task.", "tasks.")):
            raise SettingsError(f"{key} has no effect on an evaluation; leave it out (--help lists what has)")
    model = text(values, "model.path")
    if model and model != TINY_NAME and (run := _run_of(Path(model))):
        inherited = _inherited(run, tasks)
        if "tasks" in inherited:
            # What a run calls its task need not be the task's own name.
            typed = [{"options": get(entry, "options") or {}} for entry in tasks.values()]
            values = {**values, "tasks": dict(zip(inherited["tasks"], typed, strict=False))}
        checkpoint = _newest_checkpoint(run) if run == Path(model) else model
        values = merge(merge(inherited, values), {"model": {"path": str(checkpoint)}})
    return make_config(values)


def _run_of(model: Path) -> Path | None:
    """The run directory that `model` is, or is a checkpoint of."""
    candidates = (model, model.parent.parent)
    return next((run for run in candidates if (run / "config.toml").exists() and (run / "checkpoints").is_dir()), None)


def _newest_checkpoint(run: Path) -> Path:
    from tinyzero_trainer.checkpoint.store import latest

    found = latest(run / "checkpoints")
    if found is None:
        raise SettingsError(f"{run} has no checkpoint yet; wait for its first, or give another --model")
    return found.path


def _inherited(run: Path, tasks: Mapping[str, Any]) -> dict[str, Any]:
    """What an evaluation takes from the run's configuration; nothing of its task if `tasks` names another one."""
    saved = with_new_names(read_toml(run / "config.toml"))
    inherited: dict[str, Any] = {}
    for key, value in flatten(saved):
        if key.startswith(("data.", "rollout.max_completion_tokens", "eval.num_problems")):
            inherited = merge(inherited, unflatten({key: value}))
    specs = read_task_specs(saved.get("tasks", {}))
    requested = [task_of(name, entry) for name, entry in tasks.items()]
    if not requested and len(specs) > 1:
        names = ", ".join(spec.name for spec in specs)
        raise SettingsError(f"{run} was trained on several tasks; choose one of them with --task: {names}")
    for spec in specs:
        if requested in ([], [spec.name]) or identity(spec.task) == identity(requested[0]):
            return inherited | {"tasks": {spec.name: {"task": spec.task, "options": dict(spec.options)}}}
    return inherited
