"""Configuration of supervised fine-tuning: examples of tasks or of a file, for a pretrained model or a new decoder.

Most groups are those of reinforcement learning; the workers take a `TrainConfig` made of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from tinyzero_sdk.errors import SettingsError
from tinyzero_sdk.settings import build, flatten, get, merge, read_toml, unflatten
from tinyzero_trainer.config.algorithm import AlgorithmConfig, Decay, LoraConfig, OptimizerConfig
from tinyzero_trainer.config.compose import check_models, text
from tinyzero_trainer.config.model_defaults import recorded_content, recorded_defaults
from tinyzero_trainer.config.rollout import DataConfig, Engine, RolloutConfig, VllmConfig
from tinyzero_trainer.config.run import (
    AnyRunConfig,
    CheckpointConfig,
    EvalConfig,
    LogConfig,
    MemoryConfig,
    ModelConfig,
    NewModelConfig,
    ParallelConfig,
    RayConfig,
    RewardConfig,
    RunConfig,
)
from tinyzero_trainer.config.settings import RESUMABLE, UsedIf, refuse_unused
from tinyzero_trainer.config.tasks import TaskSpec, read_task_specs, with_task_table
from tinyzero_trainer.config.train_config import TrainConfig, complete_and_check
from tinyzero_trainer.hardware import nvml
from tinyzero_trainer.utils.bounds import Auto, Fraction, NonNegativeInt, PositiveFloat, PositiveInt, TestFraction

DEFAULT_STEPS = 200
DEFAULT_EPOCHS = 3


@dataclass(frozen=True)
class SftRunConfig(AnyRunConfig):
    """The run, its length and its device."""

    steps: Annotated[PositiveInt | None, RESUMABLE] = None
    """Optimizer steps; none = run.epochs of a file, and 200 of the tasks' own examples, which have no end."""

    epochs: PositiveInt | None = None
    """Passes over data.path; none = 3, unless run.steps is given."""

    seconds: PositiveFloat | None = None
    """Seconds of training instead of steps; no two runs are then equal bit for bit."""

    def __post_init__(self) -> None:
        super().__post_init__()
        lengths = [f"run.{name}={value:g}" for name in ("steps", "epochs", "seconds") if (value := getattr(self, name))]
        if len(lengths) > 1:
            raise ValueError(f"{' and '.join(lengths)} both say how long to train; leave out all but one")


_OF_FILES = UsedIf("data.path", "data.path=none takes the examples that the tasks make")


@dataclass(frozen=True)
class SftDataConfig:
    """Where examples come from."""

    path: Annotated[str | None, RESUMABLE] = None
    """File of examples: scored completions (`tinyzero eval --split train --output FILE`), of which the right ones are
    learned; chat messages; or prompts and completions. JSON Lines, Parquet, or a data set of the Hub; or a run, for the
    completions it has kept. none = examples that the tasks make."""

    test_path: Annotated[str | None, RESUMABLE, _OF_FILES] = None
    """File of examples for the held-out loss; none = data.test_fraction of data.path."""

    columns: Annotated[dict[str, str], _OF_FILES] = field(default_factory=dict)
    """Where the files have what a row needs: data.columns.messages=conversation, data.columns.completion=output."""

    hook: Annotated[
        Literal["auto", "demonstrate", "solve"],
        UsedIf(lambda c: c.tasks or not c.data.path, "data.path={data.path!r} has the examples, and no task is given"),
    ] = "auto"
    """Hook by which a task makes examples; `auto` = demonstrate, or solve where the task has no other."""

    max_per_problem: Annotated[PositiveInt, _OF_FILES] = 4
    """Different right completions of a problem that are taken from a scored file (arXiv 2308.01825)."""

    prompt_template: str | None = None
    """Prompt template; none = `chat` if the model has a chat template, else `base`."""

    batch_size: PositiveInt = 64
    """Examples in a step."""

    max_length: Annotated[PositiveInt, RESUMABLE] = 2048
    """Examples with more tokens, prompt included, are left out."""

    test_fraction: TestFraction = 1 / 16
    """Fraction of the problems that is held out, as in reinforcement learning."""

    num_workers: Annotated[NonNegativeInt | None, RESUMABLE] = None
    """Processes that make examples; 0 = the training process. none = 0 on the CPU, and up to 4 on a GPU."""


@dataclass(frozen=True)
class SftOptimizerConfig(OptimizerConfig):
    """How the model is updated."""

    learning_rate: PositiveFloat = 2e-5
    """Peak learning rate of AdamW; an adapter needs about ten times as much."""

    warmup_steps: NonNegativeInt = 10
    """Steps of linear warm-up; with run.seconds at most a tenth of all steps."""

    lr_schedule: Decay = "cosine"
    min_lr_ratio: Fraction = 0.1
    num_mini_batches: Literal[1] = 1
    update_epochs: Literal[1] = 1


@dataclass(frozen=True)
class SftRolloutConfig:
    """How completions are generated to measure accuracy."""

    engine: Annotated[Engine, RESUMABLE] = "torch"
    """Rollout engine of the evaluation, as in `tinyzero train`."""

    max_completion_tokens: Annotated[PositiveInt, RESUMABLE] = 256
    """Longest completion, in tokens."""

    max_num_seqs: Annotated[PositiveInt | Auto, RESUMABLE] = "auto"
    """Sequences generated at a time; `auto` = as many as fit on a GPU, and 512 on the CPU."""


@dataclass(frozen=True)
class SftConfig:
    """Everything that supervised fine-tuning depends on."""

    run: SftRunConfig = field(default_factory=SftRunConfig)
    parallel: ParallelConfig = field(default_factory=ParallelConfig)
    ray: RayConfig = field(default_factory=RayConfig)
    tasks: dict[str, Any] = field(default_factory=dict)
    """The tasks, as --task names them: tasks.NAME.weight=2, tasks.NAME.options.KEY=…, and tasks.NAME.task=… if it is
    not called NAME. With one task, task.KEY=… sets its options."""

    model: ModelConfig = field(default_factory=ModelConfig)
    new_model: Annotated[
        NewModelConfig, UsedIf(lambda c: c.model.path is None, "model.path={model.path!r} names a model")
    ] = field(default_factory=NewModelConfig)
    memory: MemoryConfig = field(default_factory=MemoryConfig)
    lora: LoraConfig = field(default_factory=LoraConfig)
    data: SftDataConfig = field(default_factory=SftDataConfig)
    optimizer: SftOptimizerConfig = field(default_factory=SftOptimizerConfig)
    rollout: SftRolloutConfig = field(default_factory=SftRolloutConfig)
    vllm: VllmConfig = field(default_factory=VllmConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    log: LogConfig = field(default_factory=LogConfig)
    settings: dict[str, Any] = field(default_factory=dict)
    """Settings recorded with the model as its defaults, e.g. settings.optimizer.learning_rate=2e-4."""

    @property
    def task_specs(self) -> tuple[TaskSpec, ...]:
        """The tasks to learn from, or to measure."""
        return read_task_specs(self.tasks)

    def __post_init__(self) -> None:
        complete_and_check(self)
        if self.run.epochs and self.data.path is None:
            raise ValueError("run.epochs counts passes over data.path, and none is given; give run.steps")

    def recorded(self) -> dict[str, Any]:
        """What is saved with the model: its tasks with their options, and defaults for training it further."""
        data, tokens, count = self.data, self.rollout.max_completion_tokens, self.eval.num_problems
        template = {} if data.prompt_template is None else {"prompt_template": data.prompt_template}
        defaults = {
            "data": {**template, "test_fraction": data.test_fraction},
            "rollout": {"max_completion_tokens": tokens},
            "eval": {"num_problems": count, "num_problems_during": min(count, self.eval.num_problems_during)},
        }
        return recorded_content({spec.task: spec.options for spec in self.task_specs}, merge(defaults, self.settings))

    @property
    def new_model_directory(self) -> Path:
        """Where the random weights of a new decoder are kept, which is the starting model if none is named."""
        return Path(self.run.output).expanduser() / "new_model"

    @cached_property
    def workers_config(self) -> TrainConfig:
        """The configuration of the workers that fine-tune: a policy trained on completions whose advantage is 1."""
        run, data, rollout = self.run, self.data, self.rollout
        return TrainConfig(
            run=RunConfig(run.output, run.seed, run.steps or DEFAULT_STEPS, run.executor, run.device),
            data=DataConfig(
                prompt_template=data.prompt_template,
                prompts_per_step=data.batch_size,
                test_fraction=data.test_fraction,
                max_prompt_tokens=data.max_length,
            ),
            rollout=RolloutConfig(
                engine=rollout.engine,
                group_size=1,
                max_completion_tokens=rollout.max_completion_tokens,
                max_num_seqs=rollout.max_num_seqs,
            ),
            algorithm=AlgorithmConfig(advantage_estimator="reinforce_pp", policy_loss="reinforce"),
            **{name: getattr(self, name) for name in SHARED_GROUPS if name != "model"},
            model=self.model if self.model.path else replace(self.model, path=str(self.new_model_directory)),
        )

    def with_resolved(self, config: TrainConfig) -> "SftConfig":
        """With the values that a run's configuration has where this one's are `auto`."""
        groups = {name: getattr(config, name) for name in ("memory", "optimizer", "vllm")}
        rollout = replace(self.rollout, engine=config.rollout.engine, max_num_seqs=config.rollout.max_num_seqs)
        return replace(self, rollout=rollout, **groups)


SHARED_GROUPS = (
    *("parallel", "ray", "tasks", "model", "memory", "lora"),
    *("optimizer", "vllm", "reward", "eval", "checkpoint", "log"),
)
"""Groups that are the same as in reinforcement learning."""


def compose_sft(overrides: Mapping[str, Any], *, needs_examples: bool = True) -> SftConfig:
    """The configuration of a new run of supervised fine-tuning.

    Args:
        needs_examples: reject overrides that name neither a task nor a file.

    Raises:
        SettingsError: what `build` raises, a setting without effect, or neither a task nor a file of examples.
    """
    config = build(SftConfig, merge(model_defaults(overrides), overrides))
    check_models(overrides)
    if needs_examples and not config.task_specs and config.data.path is None:
        raise SettingsError("there is nothing to learn from; give --task, or a file of examples with --data")
    refuse_unused(config, dict(flatten(overrides)))
    file = config.data.path
    if file is not None and any(spec.weight != 1 for spec in config.task_specs):
        raise SettingsError(f"weights of tasks have no effect: data.path={file!r} has the examples; leave them out")
    return config


def model_defaults(overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Settings recorded with the model that say how problems are asked and answered, unless they are requested."""
    requested = with_task_table(overrides)
    path, tasks, typed = get(requested, "model.path"), requested.get("tasks"), dict(flatten(requested))
    if not isinstance(path, str) or not tasks:
        return {}
    kept = ("data.prompt_template", "data.test_fraction", "rollout.max_completion_tokens", "tasks.")
    recorded = flatten(recorded_defaults(path, tasks))
    return unflatten({key: value for key, value in recorded if key.startswith(kept) and key not in typed})


WARM_START = read_toml(Path(__file__).with_name("warm_start.toml"))


def warm_start(overrides: Mapping[str, Any]) -> SftConfig:
    """The configuration of a warm start; errors as of `compose_sft`."""
    # On the CPU time is proportional to the examples, and a small model learns by steps.
    steps, batch_size = (3000, 256) if nvml.sees_gpu(text(overrides, "run.device") or "auto") else (1000, 32)
    requested = get(overrides, "run.steps")
    by_device = {
        "run": {} if get(overrides, "run.seconds") or get(overrides, "run.epochs") else {"steps": steps},
        "data": {"batch_size": batch_size},
        "optimizer": {"warmup_steps": min(100, (requested if isinstance(requested, int) else steps) // 10)},
    }
    return compose_sft(merge(merge(WARM_START, by_device), overrides))
