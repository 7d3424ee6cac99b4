"""Configuration of a warm start: supervised fine-tuning of a small new model on a task's worked examples."""

from dataclasses import dataclass, field
from typing import Annotated, Any

from annotated_types import Gt

from tinyzero_trainer.config.tasks import TaskSpec, complete_table, read_task_specs
from tinyzero_trainer.utils.bounds import NonNegativeInt, PositiveFloat, PositiveInt, TestFraction


@dataclass(frozen=True)
class TinyShape:
    """Size of the decoder."""

    hidden_size: Annotated[int, Gt(0)] = 128
    """Width of the residual stream; a multiple of head_size."""

    layers: Annotated[int, Gt(0)] = 3
    """Number of decoder layers."""

    head_size: Annotated[int, Gt(0)] = 32
    """Width of an attention head; vLLM has kernels for 32 and 64, among others."""

    kv_heads: Annotated[int, Gt(0)] | None = None
    """Heads of keys and values; none = as many as attention heads. Fewer make long completions cheaper."""

    mlp_size: Annotated[int, Gt(0)] = 256
    """Hidden width of the gated MLP."""

    context: Annotated[int, Gt(0)] = 2048
    """Longest sequence, prompt and completion together."""

    def __post_init__(self) -> None:
        _check_heads(self)

    @property
    def heads(self) -> int:
        """Number of attention heads."""
        return self.hidden_size // self.head_size


def _check_heads(shape: "TinyShape | DefaultModelConfig", group: str = "") -> None:
    if shape.hidden_size % shape.head_size:
        raise ValueError(
            f"{group}hidden_size={shape.hidden_size} is not a multiple of {group}head_size={shape.head_size}"
        )
    if shape.kv_heads and (heads := shape.hidden_size // shape.head_size) % shape.kv_heads:
        raise ValueError(f"{group}kv_heads={shape.kv_heads} does not divide the {heads} heads; 1 always does")


@dataclass(frozen=True)
class SftRunConfig:
    """Where and how the warm start runs."""

    output: str = ""
    """Directory for the model; must not exist yet."""

    seed: int = 0
    """Seed of weights, problems and demonstrations."""

    device: str = "auto"
    """`cpu`, `cuda`, or `auto` = a GPU where there is one."""


@dataclass(frozen=True)
class SftTrainingConfig:
    """How the model is trained."""

    steps: PositiveInt = 3000
    """Optimizer steps."""

    seconds: PositiveFloat | None = None
    """Train for this many seconds from the end of the first step, instead of steps. The learning rate follows the
    elapsed time, so no two such models are identical."""

    batch_size: PositiveInt = 256
    """Examples per step; no example is repeated."""

    learning_rate: PositiveFloat = 2e-3
    """Peak; reached after the warm-up, then a cosine down to a tenth."""

    warmup_steps: NonNegativeInt = 100
    """Steps of linear warm-up."""

    template: str = "compact"
    """Prompt template."""

    eval_size: PositiveInt = 1024
    """Held-out problems for the model card."""

    max_tokens: PositiveInt = 256
    """Longest completion in that evaluation; longer examples are skipped."""

    test_fraction: TestFraction = 1 / 16
    """Fraction of problems held out, as in reinforcement learning."""

    workers: NonNegativeInt | None = None
    """Processes that make examples, which do not depend on it; 0 = the training process. none = 0 on the CPU, and on a
    GPU one for each other core, at most 12."""

    compile: bool = False
    """Compile the layers with torch.compile, which takes a while before the first step."""

    def __post_init__(self) -> None:
        default = type(self).__dataclass_fields__["steps"].default
        if self.seconds is not None and self.steps != default:
            raise ValueError(f"steps={self.steps} has no effect with seconds={self.seconds:g}; leave one of them out")


@dataclass(frozen=True)
class SftConfig:
    """Everything a warm start depends on."""

    run: SftRunConfig = field(default_factory=SftRunConfig)
    tasks: dict[str, Any] = field(default_factory=dict)
    """The tasks, as --task names them, each with `demonstrate`: tasks.NAME.weight=2, tasks.NAME.options.KEY=…, and
    tasks.NAME.task=… if it is not called NAME. With one task, task.KEY=… sets its options."""

    model: TinyShape = field(default_factory=TinyShape)
    training: SftTrainingConfig = field(default_factory=SftTrainingConfig)
    settings: dict[str, Any] = field(default_factory=dict)
    """Settings recorded with the model as its defaults, e.g. settings.optimizer.learning_rate=2e-4."""

    @property
    def task_specs(self) -> tuple[TaskSpec, ...]:
        """The tasks to learn from."""
        return read_task_specs(self.tasks)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tasks", complete_table(self.task_specs))


@dataclass(frozen=True)
class DefaultModelConfig:
    """The model that `tinyzero train` warm-starts on a GPU where none is named; made once, then taken from a cache."""

    hidden_size: PositiveInt = 384
    """Width of the residual stream; a multiple of head_size. The default shape has 9.9 million parameters."""

    layers: PositiveInt = 6
    """Number of decoder layers."""

    head_size: PositiveInt = 64
    """Width of an attention head; vLLM has kernels for 32 and 64, among others."""

    kv_heads: PositiveInt = 2
    """Heads of keys and values; reading them dominates the cost of long completions."""

    mlp_size: PositiveInt = 1024
    """Hidden width of the gated MLP."""

    seconds: PositiveFloat = 90.0
    """Seconds of training on the task's demonstrations."""

    directory: str | None = None
    """Directory of these models; none = tinyzero/models in the user's cache."""

    def __post_init__(self) -> None:
        _check_heads(self, "default_model.")
