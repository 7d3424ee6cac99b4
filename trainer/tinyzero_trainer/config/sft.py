"""Settings of a warm start: a small decoder from nothing, trained on a task's own demonstrations. No torch in here."""

from dataclasses import dataclass, field
from typing import Annotated, Any

from annotated_types import Gt

from tinyzero_trainer.config.tasks import TaskSpec, read_task_specs, whole_entries
from tinyzero_trainer.config.types import NonNegativeInt, PositiveFloat, PositiveInt, TestShare


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
    """Heads of keys and values, each for as many of the others; none = one for each. Fewer make long texts cheaper."""

    mlp_size: Annotated[int, Gt(0)] = 256
    """Width inside the gated MLP."""

    context: Annotated[int, Gt(0)] = 2048
    """Longest sequence, prompt and completion together."""

    def __post_init__(self) -> None:
        if self.hidden_size % self.head_size:
            raise ValueError(f"hidden_size={self.hidden_size} is not a multiple of head_size={self.head_size}")
        if self.kv_heads and self.heads % self.kv_heads:
            raise ValueError(f"kv_heads={self.kv_heads} does not divide the {self.heads} heads")

    @property
    def heads(self) -> int:
        """Heads of attention."""
        return self.hidden_size // self.head_size


@dataclass(frozen=True)
class SftRunConfig:
    """What is made, and where."""

    task: str = ""
    """Name of an installed task that has `demonstrate`, or the path of a task file; several stand in `tasks`."""

    output: str = ""
    """Directory for the model; must not exist yet."""

    seed: int = 0
    """Weights, problems and demonstrations derive from it."""

    device: str = "auto"
    """`cpu`, `cuda`, or `auto` = a GPU where there is one."""


@dataclass(frozen=True)
class SftTrainingConfig:
    """How it is trained."""

    steps: PositiveInt = 3000
    """Optimiser steps."""

    seconds: PositiveFloat | None = None
    """Train for so long, from the end of the first step on, instead of a number of steps; the learning rate follows the
    share of the time, so that no two such models are equal bit for bit."""

    batch_size: PositiveInt = 256
    """Demonstrations a step; every one is new."""

    learning_rate: PositiveFloat = 2e-3
    """Peak; reached after the warm-up, then a cosine down to a tenth."""

    warmup_steps: NonNegativeInt = 100
    """Steps of linear warm-up."""

    template: str = "compact"
    """Prompt template."""

    eval_size: PositiveInt = 1024
    """Held-out problems for the model card."""

    max_tokens: PositiveInt = 256
    """Longest completion in that evaluation; longer demonstrations are left out."""

    test_fraction: TestShare = 1 / 16
    """Share of problems held out, as in training with reinforcement learning."""

    workers: NonNegativeInt | None = None
    """Processes that make demonstrations, the same ones for any number; 0 = the one that trains. None = that one on the
    CPU, and on a GPU one for each other core, at most 12."""

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
    task: dict[str, Any] = field(default_factory=dict)
    """The task's own options, e.g. task.numbers=[3]."""

    tasks: dict[str, Any] = field(default_factory=dict)
    """Several tasks: tasks.NAME.weight=2, tasks.NAME.options.KEY=…, and tasks.NAME.task=… if not called NAME."""

    model: TinyShape = field(default_factory=TinyShape)
    training: SftTrainingConfig = field(default_factory=SftTrainingConfig)
    settings: dict[str, Any] = field(default_factory=dict)
    """Settings under which the model learns best, e.g. settings.optimizer.learning_rate=2e-4; stored with it."""

    def task_shares(self) -> tuple[TaskSpec, ...]:
        """The tasks, whichever way they are named."""
        return read_task_specs(self.run.task, self.task, self.tasks)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tasks", whole_entries(self.task_shares()))
