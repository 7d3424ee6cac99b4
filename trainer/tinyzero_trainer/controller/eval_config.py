"""What `tinyzero eval` evaluates on this machine: the keys that affect it, and what it takes from the model's run.

The command, its output file and the scoring belong to the SDK. No torch before a model is opened.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinyzero_sdk import Task
from tinyzero_sdk.errors import SettingsError
from tinyzero_sdk.evaluation.protocol import EvaluationPlan, EvaluationRequest, Sampler
from tinyzero_sdk.settings import describe, flatten, get, merge, read_toml, unflatten
from tinyzero_sdk.tasks.splits import DEFAULT_TEST_FRACTION
from tinyzero_sdk.tasks.trust import require_trust
from tinyzero_trainer.checkpoint.run_directory import newest_model
from tinyzero_trainer.config import TrainConfig
from tinyzero_trainer.config.compose import gather, make_config, text
from tinyzero_trainer.config.help import key_help
from tinyzero_trainer.config.model_defaults import TINY_MODEL, TINY_NAME, directory_of
from tinyzero_trainer.config.resume import is_sft
from tinyzero_trainer.config.settings import drop_unused
from tinyzero_trainer.config.tasks import identity, load_tasks, read_task_specs, refuse_unused, task_of, with_task_table
from tinyzero_trainer.models.files import start_loading
from tinyzero_trainer.models.hub import refuse_unreachable
from tinyzero_trainer.monitoring.progress import Progress
from tinyzero_trainer.utils.signals import left_at_once
from tinyzero_trainer.utils.startup import import_errors_in_one_line, set_torch_environment, without_collector

if TYPE_CHECKING:
    from rich.console import RenderableType

EVALUATION_KEYS = (
    *("run.seed", "run.device", "tasks", "model.path", "eval.num_problems"),
    *("data.path", "data.test_path", "data.prompt_template", "data.test_fraction", "data.max_prompt_tokens"),
    *("rollout.max_completion_tokens", "rollout.max_num_seqs"),
    *("reward.num_workers", "reward.timeout", "reward.memory_limit_gb"),
)
"""Keys that affect `tinyzero eval`, with the tables of tasks and of columns; any other is refused there."""


class LocalModels:
    """Models on this machine, for `tinyzero eval`: see `tinyzero_sdk.evaluation.protocol.LocalModels`."""

    def plan(self, request: EvaluationRequest) -> EvaluationPlan:
        """How to evaluate a transformers model, or the tiny one that comes with the trainer."""
        flags = {
            "run.task": request.task,
            "run.seed": request.seed,
            "model.path": request.model,
            "data.prompt_template": request.template,
            "data.test_fraction": request.test_fraction,
            "eval.num_problems": request.size,
            "rollout.max_completion_tokens": request.max_tokens,
        }
        typed = gather(TrainConfig, flags, request.overrides)
        config = evaluation_config(typed)
        allow_unsafe = request.allow_unsafe_scorers
        (task,) = load_tasks(config.task_specs, config.data, allow_unsafe_scorers=allow_unsafe).values()
        refuse_unused({task.name: task}, typed)
        is_divided = task.has_own_splits and get(typed, "data.test_fraction") is None
        set_torch_environment()
        return EvaluationPlan(
            task=task,
            model=str(directory_of(config.model.path) or TINY_MODEL),
            opener=lambda: _open(config, task, request),
            size=config.eval.num_problems,
            test_fraction=DEFAULT_TEST_FRACTION if is_divided else config.data.test_fraction,
            split=request.split,
            samples=request.samples,
            temperature=request.temperature,
            top_p=request.top_p,
            max_tokens=config.rollout.max_completion_tokens,
            seed=config.run.seed,
            workers=config.reward.num_workers,
            timeout=config.reward.timeout,
            memory_limit_gb=config.reward.memory_limit_gb,
        )

    def key_help(self) -> "Iterable[RenderableType]":
        """The keys of the configuration that affect an evaluation."""
        return key_help(TrainConfig, only=EVALUATION_KEYS)


@contextmanager
def _open(config: TrainConfig, task: Task, request: EvaluationRequest) -> Iterator[Sampler]:
    refuse_unreachable(config.model.path)
    with Progress() as progress, left_at_once("while the model was being loaded"):
        progress.phase("loading PyTorch")
        with without_collector(), import_errors_in_one_line():
            from tinyzero_trainer.controller.local_sampler import LocalSampler

        start_loading(config.model.path, progress)
        sampler = LocalSampler(config, task, request, progress.log)
    yield sampler


def evaluation_config(values: Mapping[str, Any]) -> TrainConfig:
    """A configuration to evaluate with; keys without an effect are refused.

    A run's model takes its task and the held-out problems from the run: accuracies can be compared, and no problem was
    trained on.
    """
    values = with_task_table(values)
    tasks = values.get("tasks", {})
    if isinstance(tasks, Mapping) and len(tasks) > 1:
        raise SettingsError("an evaluation is of one task; give --task TASK, and its options as task.KEY=…")
    for key, _ in flatten(values):
        if key not in EVALUATION_KEYS and not key.startswith(("task.", "tasks.", "data.columns.")):
            raise SettingsError(f"{key} has no effect on an evaluation; leave it out (--help lists what has)")
    model = text(values, "model.path")
    # The run directory that it is, or is a checkpoint of.
    places = (Path(model), Path(model).parent.parent) if model and model != TINY_NAME else ()
    run = next((path for path in places if (path / "config.toml").exists() and (path / "checkpoints").is_dir()), None)
    if model and run is not None:
        inherited = _inherited(run, tasks)
        if "tasks" in inherited:
            # The run's name for the task need not be the task's own.
            typed = [{"options": get(entry, "options") or {}} for entry in tasks.values()]
            values = {**values, "tasks": dict(zip(inherited["tasks"], typed, strict=False))}
        values = merge(
            drop_unused(merge(inherited, values), values, TrainConfig), {"model": {"path": newest_model(model)}}
        )
    return make_config(values)


def _inherited(run: Path, tasks: Mapping[str, Any]) -> dict[str, Any]:
    """What an evaluation takes from the run's configuration; nothing of its task if `tasks` names another one."""
    saved = read_toml(run / "config.toml")
    require_trust(run / "config.toml", saved)
    prefixes = ("data.", "rollout.max_completion_tokens", "eval.num_problems")
    known = {field.key for field in describe(TrainConfig)}
    if is_sft(saved):  # its files are of examples
        known -= {"data.path", "data.test_path", "data.columns"}
    kept = {key: value for key, value in flatten(saved) if key.startswith(prefixes)}
    inherited = unflatten({key: kept[key] for key in kept if not known.isdisjoint((key, key.rpartition(".")[0]))})
    specs = read_task_specs(saved.get("tasks", {}))
    requested = [task_of(name, entry) for name, entry in tasks.items()]
    if not requested and len(specs) > 1:
        names = ", ".join(spec.name for spec in specs)
        raise SettingsError(f"{run} was trained on several tasks; choose one of them with --task: {names}")
    for spec in specs:
        if requested in ([], [spec.name]) or identity(spec.task) == identity(requested[0]):
            return inherited | {"tasks": {spec.name: {"task": spec.task, "options": dict(spec.options)}}}
    own = ("path", "test_path", "columns")  # the files have problems of the run's task
    return inherited | {"data": {key: value for key, value in inherited.get("data", {}).items() if key not in own}}
