"""The configuration of a run: one typed tree, in the order in which help and `config.toml` show it.

Checks across groups are in `__post_init__`, so that an impossible configuration stops before anything is loaded;
settings without effect say so in their own fields, see unused.py.
"""

from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from tinyzero_trainer.algorithms.schedules import StepSettings, decayed
from tinyzero_trainer.config.algorithm import AlgorithmConfig, CriticConfig, LoraConfig, OptimizerConfig
from tinyzero_trainer.config.rollout import (
    CurriculumConfig,
    DataConfig,
    LengthControlConfig,
    RolloutConfig,
    RolloutCorrectionConfig,
    VllmConfig,
)
from tinyzero_trainer.config.run import (
    AuditConfig,
    CheckpointConfig,
    DefaultModelConfig,
    EvalConfig,
    LogConfig,
    MemoryConfig,
    ModelConfig,
    ParallelConfig,
    RayConfig,
    RewardConfig,
    RunConfig,
)
from tinyzero_trainer.config.settings import ON_RAY, ReadBy, UsedIf
from tinyzero_trainer.config.tasks import TaskSpec, complete_table, read_task_specs


def complete_and_check(config: Any) -> None:
    """Write out the tasks of any training, and raise a ValueError if what its groups ask does not go together."""
    object.__setattr__(config, "tasks", complete_table(read_task_specs(config.tasks)))
    for name in config.tasks.keys() & config.eval.tasks.keys():
        raise ValueError(
            f"eval.tasks.{name}: the run trains on it, and evaluates it anyway; leave it out, or give other options of "
            f"it another name: eval.tasks.OTHER.task={config.eval.tasks[name]['task']}"
        )
    sharded = config.parallel.sequence_parallel > 1
    if sharded and config.optimizer.packing == "padded":
        raise ValueError(
            f"parallel.sequence_parallel={config.parallel.sequence_parallel} divides packed rows; leave out "
            "optimizer.packing='padded'"
        )
    if config.model.float8:
        wrong = {"lora.rank": config.lora.rank, "parallel.sequence_parallel": sharded}
        wrong["model.dtype=float32"] = config.model.dtype == "float32"
        for other in filter(wrong.get, wrong):
            raise ValueError(f"model.float8=rowwise does not go with {other}; leave one of them out")


@dataclass(frozen=True)
class TrainConfig:
    """Everything a run depends on."""

    run: RunConfig = field(default_factory=RunConfig)
    parallel: Annotated[ParallelConfig, ON_RAY] = field(default_factory=ParallelConfig)
    ray: Annotated[RayConfig, ON_RAY] = field(default_factory=RayConfig)
    tasks: dict[str, Any] = field(default_factory=dict)
    """The tasks, as --task names them: tasks.NAME.weight=2, tasks.NAME.options.KEY=… (`tinyzero tasks NAME` lists its
    options), and tasks.NAME.task=… if it is not called NAME. With one task, task.KEY=… sets its options."""

    model: ModelConfig = field(default_factory=ModelConfig)
    default_model: Annotated[
        DefaultModelConfig,
        UsedIf(lambda c: c.model.path is None, "model.path={model.path!r} names a model, so none is made"),
    ] = field(default_factory=DefaultModelConfig)
    memory: MemoryConfig = field(default_factory=MemoryConfig)
    lora: LoraConfig = field(default_factory=LoraConfig)
    data: DataConfig = field(default_factory=DataConfig)
    curriculum: CurriculumConfig = field(default_factory=CurriculumConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    vllm: Annotated[
        VllmConfig,
        ReadBy("rollout.kind", "rollout.engine={rollout.engine!r} has no such setting; give rollout.engine=vllm"),
    ] = field(default_factory=VllmConfig)
    rollout_correction: Annotated[
        RolloutCorrectionConfig,
        UsedIf(
            "rollout.return_logprobs",
            "rollout.return_logprobs={rollout.return_logprobs!r} leaves steps without the engine's to compare; set "
            "always",
            ("always",),
        ),
    ] = field(default_factory=RolloutCorrectionConfig)
    length_control: LengthControlConfig = field(default_factory=LengthControlConfig)
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    critic: Annotated[
        CriticConfig,
        UsedIf(
            lambda c: c.algorithm.needs("critic"),
            "algorithm.advantage_estimator={algorithm.advantage_estimator!r} has no critic; take gae, or your own "
            "that needs one",
        ),
    ] = field(default_factory=CriticConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    audit: AuditConfig = field(default_factory=AuditConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    log: LogConfig = field(default_factory=LogConfig)

    @property
    def task_specs(self) -> tuple[TaskSpec, ...]:
        """The tasks of the run."""
        return read_task_specs(self.tasks)

    @property
    def old_logprobs_source(self) -> Literal["engine", "policy", "update"]:
        """Source of the loss's old log-probabilities: the engine, a separate pass of the policy, or the update's own
        pass; see algorithms/rollout_correction.py."""
        if self.rollout.return_logprobs == "always" and not self.rollout_correction.corrects:
            return "engine"
        algorithm, corrects = self.algorithm, self.rollout_correction.corrects
        needed_before = algorithm.kl_in_reward or algorithm.needs("old_logprobs") or corrects
        return "update" if self.optimizer.single_update and not needed_before else "policy"

    def settings_at(self, step: int) -> StepSettings:
        """The scheduled settings of a step from 1 to `run.steps`."""
        rollout, algorithm, steps = self.rollout, self.algorithm, self.run.steps

        def interpolated(start: float, end: float | None) -> float:
            return start if end is None else decayed(start, end, step, steps, "linear")

        return StepSettings(
            learning_rate=self.optimizer.learning_rate_at(step, steps),
            temperature=interpolated(rollout.temperature, rollout.temperature_end),
            kl_coefficient=interpolated(algorithm.kl_coefficient, algorithm.kl_coefficient_end),
        )

    @property
    def models_to_resume(self) -> tuple[str, ...]:
        """The models that a resumed run loads beside its checkpoint: an adapter's, a KL's, an engine's, the teacher."""
        is_needed = self.lora.rank or self.algorithm.kl_coefficient or self.rollout.num_engines or self.model.teacher
        return tuple(filter(None, (self.model.path if is_needed else None, self.model.teacher)))

    def wrappers_with_limit(self) -> tuple[str, ...]:
        """`reward.wrappers` as `load_task` takes them: one that needs a limit gets the longest completion."""
        from tinyzero_sdk.rewards.wrappers import with_limit

        control = self.length_control
        limit = control.max_tokens if control.mode == "fixed" else self.rollout.max_completion_tokens
        return with_limit(self.reward.wrappers, limit)

    def __post_init__(self) -> None:
        complete_and_check(self)
        run, rollout, algorithm = self.run, self.rollout, self.algorithm
        estimator = f"algorithm.advantage_estimator={algorithm.advantage_estimator!r}"
        if rollout.max_async_level and (problem := self._problem_with_async()):
            raise ValueError(f"rollout.max_async_level={rollout.max_async_level} {problem}")
        if self.model.dtype == "float32" and rollout.quantization:
            raise ValueError("rollout.quantization=fp8 does not go with model.dtype=float32; leave one of them out")
        if self.critic.warmup_steps >= run.steps:
            raise ValueError(
                f"critic.warmup_steps={self.critic.warmup_steps} leaves none of run.steps={run.steps} to the policy; "
                "lower it or raise run.steps"
            )
        if algorithm.needs("teacher") and self.model.teacher is None:
            raise ValueError(f"{estimator} learns from a teacher; give model.teacher=DIR, or a name on the Hub")
        if rollout.top_k == 1:
            raise ValueError("rollout.top_k=1 samples the same completion each time; set 0 or at least 2")
        if rollout.group_size == 1 and algorithm.estimator.compares_samples:
            raise ValueError(f"rollout.group_size=1 leaves {estimator} nothing to compare; set at least 2")

    def _problem_with_async(self) -> str:
        """Why completions cannot go on while the weights change: the engine cannot, or the loss would be wrong."""
        kind, algorithm = self.rollout.kind, self.algorithm
        engine = f"rollout.engine={kind.name!r}"
        if kind.max_async_level is not None and self.rollout.max_async_level > kind.max_async_level:
            return (
                f"is more than {engine} can sample ahead of the update, whole batches; set "
                f"rollout.max_async_level={kind.max_async_level}, or take rollout.engine=torch"
            )
        local = not self.run.kind.own_processes
        if kind.async_needs_own_gpus and (local or not self.rollout.num_engines):
            return (
                f"generates during the update, and {engine} needs GPUs of its own for that; set "
                f"{'run.executor=ray and ' * local}rollout.num_engines=1 (or more), or take rollout.engine=torch"
            )
        weighs = "set rollout.return_logprobs=always and rollout_correction.is_level=token"
        if self.rollout_correction.is_level is not None:
            return ""
        if self.old_logprobs_source != "engine":
            return f"trains on samples of older weights, which nothing here weighs; {weighs}"
        if fault := algorithm.loss.staleness_objection:
            loss = f"algorithm.policy_loss={algorithm.policy_loss!r}"
            return f"trains on samples of older weights, which {loss} does not weigh: it {fault}; {weighs}"
        return ""
