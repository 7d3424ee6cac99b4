"""Groups of the configuration: the run, its model, memory and processes, scoring, evaluation and records."""

import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Literal

from annotated_types import Ge, Le

from tinyzero_trainer.config.settings import ON_RAY, RESUMABLE, NoneIs, Option, TradesMemory, UsedIf
from tinyzero_trainer.config.tasks import TaskSpec, complete_table, name_of, read_task_specs
from tinyzero_trainer.kinds import EXECUTOR_PACKAGE, ExecutorKind, find_executor, kind_names
from tinyzero_trainer.utils.bounds import Auto, Fraction, NonNegativeInt, PositiveFloat, PositiveInt

DEVICES = "auto, cpu, cuda or cuda:N"
"""Values of `run.device`."""


def is_device(name: str) -> bool:
    """Whether a device is one of `DEVICES`."""
    return re.fullmatch(r"auto|cpu|cuda(:\d{1,3})?", name, re.ASCII) is not None


if TYPE_CHECKING:
    Executor = str
else:
    Executor = Literal[kind_names(EXECUTOR_PACKAGE)]


@dataclass(frozen=True)
class AnyRunConfig:
    """What reinforcement learning and supervised fine-tuning both say of a run."""

    output: Annotated[str, RESUMABLE] = ""
    """Run directory; created if missing."""

    seed: int = 0
    """Seed of every random choice of the run."""

    steps: Annotated[PositiveInt | None, RESUMABLE] = None

    executor: Annotated[Executor, RESUMABLE] = "local"
    """Where policy and engines run: `local` = in this process, `ray` = in processes of Ray."""

    device: Annotated[str, RESUMABLE] = "auto"
    """`cpu`, `cuda`, `cuda:N` = one of several GPUs, or `auto` = a GPU where there is one."""

    def __post_init__(self) -> None:
        if not is_device(self.device):
            raise ValueError(f"run.device={self.device!r} is not a device; give {DEVICES}")
        # No shell expands ~ in a file or in KEY=VALUE.
        object.__setattr__(self, "output", os.path.expanduser(self.output))

    @property
    def kind(self) -> ExecutorKind:
        return find_executor(self.executor)


@dataclass(frozen=True)
class RunConfig(AnyRunConfig):
    """The run and its device."""

    steps: Annotated[PositiveInt, RESUMABLE] = 100
    """Training steps; each takes one batch of prompts."""

    recipe: str | None = None
    """Recipe whose settings yours override: a name (`tinyzero recipes` lists them), or a TOML file."""


COMPILED_FROM = 100_000_000
"""Parameters from which layers are compiled by default."""


def compiles(requested: bool | None, parameters: int, *, gpu: bool = True) -> bool:
    """Whether a network's layers are compiled; `requested` is `model.compile`."""
    return gpu and parameters >= COMPILED_FROM if requested is None else requested


_TEACHER = UsedIf(
    lambda c: c.algorithm.needs("teacher"),
    "algorithm.advantage_estimator={algorithm.advantage_estimator!r} has no teacher; take on_policy_distillation",
)
_WHOLE_HEADS = UsedIf(
    lambda c: c.parallel.sequence_parallel == 1,
    "parallel.sequence_parallel={parallel.sequence_parallel} exchanges heads within layers, so none is compiled",
)
_FLOAT8 = UsedIf("model.float8", "model.float8=none leaves all layers as they are")


@dataclass(frozen=True)
class ModelConfig:
    """The language model to train."""

    path: str | None = None
    """Directory or Hub name of a transformers causal LM; `tiny` = the tiny model that comes with the trainer. none =
    `tiny` on the CPU, and on a GPU a small model that `tinyzero train` makes for the task (default_model);
    `tinyzero sft` makes a new decoder (new_model)."""

    teacher: Annotated[str | None, _TEACHER] = None
    """Directory or Hub name of the model, with the same tokenizer, that `on_policy_distillation` learns from."""

    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Data type of the network's computation; `auto` = bfloat16 on a GPU that supports it, else float32. The
    optimizer's weights are always float32."""

    compile: Annotated[bool | None, RESUMABLE, _WHOLE_HEADS] = None
    """Compile the network's layers with torch.compile for the update; none = on a GPU, from about 0.1B parameters."""

    float8: Literal["rowwise"] | None = None
    """Large matrix products of the update in 8-bit floating point, on a GPU of Ada or Hopper at least. `rowwise` = each
    row has a scale, and gradients of weights are computed in model.dtype. None = all in model.dtype."""

    float8_modules: Annotated[tuple[str, ...] | None, _FLOAT8] = None
    """Linear layers that compute in float8, by the last part of their names, e.g. down_proj; none = those whose weights
    have 2^22 elements at least, as the MLPs and the head of a 0.5B model. All sizes must be multiples of 16."""


@dataclass(frozen=True)
class DecoderShape:
    """The shape of a small decoder."""

    hidden_size: PositiveInt = 128
    """Width of the residual stream; a multiple of head_size."""

    layers: PositiveInt = 3
    """Number of decoder layers."""

    head_size: PositiveInt = 32
    """Width of an attention head; vLLM has kernels for 32 and 64, among others."""

    kv_heads: PositiveInt | None = None
    """Heads of keys and values; none = as many as attention heads. Fewer make long completions cheaper."""

    mlp_size: PositiveInt = 256
    """Hidden width of the gated MLP."""

    def __post_init__(self) -> None:
        if self.hidden_size % self.head_size:
            raise ValueError(f"hidden_size={self.hidden_size} is not a multiple of head_size={self.head_size}")
        if self.kv_heads and self.hidden_size // self.head_size % self.kv_heads:
            raise ValueError(f"kv_heads={self.kv_heads} does not divide the {self.heads} heads; 1 always does")

    @property
    def heads(self) -> int:
        """Number of attention heads."""
        return self.hidden_size // self.head_size


@dataclass(frozen=True)
class NewModelConfig(DecoderShape):
    """A new decoder with random weights, if model.path names no model."""

    context: PositiveInt = 2048
    """Longest sequence, prompt and completion together."""


@dataclass(frozen=True)
class DefaultModelConfig(DecoderShape):
    """The small model made for the task on a GPU without --model.

    It learns the attempts that the task's hook `demonstrate` writes, so that reinforcement learning starts from a model
    that is sometimes right, and is kept for the next run. On the CPU, where the tiny model that comes with the trainer
    stands in for it, `tinyzero warmstart` makes one for a task of your own.
    """

    # The default shape has 9.9 million parameters.
    hidden_size: PositiveInt = 384
    layers: PositiveInt = 6
    head_size: PositiveInt = 64
    kv_heads: PositiveInt = 2
    mlp_size: PositiveInt = 1024

    steps: PositiveInt = 1_600
    """Steps of training on the task's demonstrations. Countdown's search is learnt all at once, between 500 and 900."""

    seconds: PositiveFloat | None = None
    """Train for so long instead of default_model.steps."""

    directory: str | None = None
    """Directory of these models; none = tinyzero/models in the user's cache."""


Offload = Literal["auto", "none", "idle", "always"]


@dataclass(frozen=True)
class MemoryConfig:
    """Speed traded for GPU memory; none of it changes the loss.

    `auto` = only where memory requires it.
    """

    activation_checkpointing: Annotated[
        bool | Auto,
        RESUMABLE,
        TradesMemory((Option(False), Option(True, "the update computes a third more", rank=8)), unresolved=False),
    ] = "auto"
    """Keep only each layer's input and recompute the rest in the backward pass: about a third more computation."""

    recompute_logits: Annotated[
        bool | Auto,
        RESUMABLE,
        TradesMemory((Option(False), Option(True, "the update computes logits twice", rank=3)), unresolved=True),
    ] = "auto"
    """Compute a micro-batch's logits again in the backward pass instead of keeping them (of 32,768 tokens 10 GB): 8%
    more computation at 0.5B, less for larger models. `auto` = false where that fits beside the rollout engine."""

    cpu_offload: Annotated[
        Offload,
        NoneIs("none"),
        RESUMABLE,
        UsedIf(
            lambda c: c.run.device != "cpu" or c.memory.offload is None,
            "run.device='cpu' has no GPU whose memory it would save",
        ),
        TradesMemory(
            (
                Option("none"),
                Option("idle", "seconds a step: idle weights and optimiser state wait in host memory", rank=7),
                Option(
                    "always", "a much slower update: weights travel in every pass, and the CPU updates them", rank=9
                ),
            ),
            unresolved="none",
        ),
    ] = "auto"
    """Keep weights and optimizer state in host memory: `idle` = while their model is not in use, `always` = throughout,
    copied to the GPU layer by layer and updated on the CPU; `none` = they stay on the GPU."""

    reshard_after_forward: Annotated[
        bool | Auto,
        RESUMABLE,
        ON_RAY,
        TradesMemory(
            (Option(False), Option(True, "weights are gathered, and gradients reduced, for each micro-batch", rank=4)),
            unresolved=True,
            chosen_by="ranks",
        ),
    ] = "auto"
    """Between several ranks, gather a layer's weights for each pass and reduce its gradients after each micro-batch.
    false = once a mini-batch, which takes the memory of all weights and gradients. `auto` = false where that fits."""

    @property
    def offload(self) -> Literal["idle", "always"] | None:
        """cpu_offload; None = nothing is offloaded."""
        return self.cpu_offload if self.cpu_offload in ("idle", "always") else None


@dataclass(frozen=True)
class ParallelConfig:
    """How the training processes divide the model and the batch."""

    world_size: Annotated[PositiveInt | None, RESUMABLE] = None
    """Processes that policy, reference and critic are sharded over, and among which a batch is divided by tokens. none
    = one for each GPU without a dedicated engine; 1 without GPUs."""

    dp_replicate: Annotated[
        PositiveInt,
        RESUMABLE,
        TradesMemory((Option(1, "weights are gathered, and gradients reduced, over all ranks", rank=6),)),
    ] = 1
    """Groups of ranks that each hold the whole model, sharded over the group's ranks: one for each node where the
    network between nodes is slow. Divides the number of ranks; 1 = the model is sharded over all of them."""

    sequence_parallel: Annotated[PositiveInt, RESUMABLE] = 1
    """Ranks that share each sequence, for completions too long for one. Divides the ranks of a replica and the model's
    attention heads; each of these ranks takes optimizer.micro_batch_tokens at a time."""


@dataclass(frozen=True)
class RayConfig:
    """Settings of run.executor=ray."""

    address: Annotated[str | None, RESUMABLE] = None
    """Address of a running Ray: `auto`, or HOST:PORT; none = one is started on this machine for the run."""

    gpus: Annotated[NonNegativeInt, RESUMABLE] = 0
    """GPUs of the run; 0 = everything is on the CPU."""

    max_restarts: Annotated[NonNegativeInt, RESUMABLE] = 2
    """Times that a dead rollout engine is restarted, and its batch repeated, before the run stops."""

    timeout: Annotated[PositiveFloat, RESUMABLE] = 600.0
    """Seconds without a sign of life, after which a process counts as hanging, and is killed."""


@dataclass(frozen=True)
class RewardConfig:
    """How completions are scored."""

    num_workers: Annotated[PositiveInt, RESUMABLE] = 1
    """Scoring processes."""

    timeout: Annotated[PositiveFloat, RESUMABLE] = 5.0
    """Seconds for one completion, after which its worker is killed and replaced, and the completion scores 0."""

    memory_limit_gb: Annotated[PositiveFloat, RESUMABLE] = 4.0
    """Address space of a worker, in GiB."""

    max_failure_rate: Fraction = 0.5
    """The run stops if the scorer fails or times out on more than this fraction of a batch."""

    wrappers: tuple[str, ...] = ()
    """Score wrappers around the task's reward in training, innermost first; one that needs a limit, such as `overlong`,
    takes rollout.max_completion_tokens by default. Evaluation reports the unshaped score."""

    allow_unsafe: bool = False
    """Run a scorer that its task declares unsafe for text of a model, in the worker processes."""


_AUDIT = UsedIf("audit.every", "audit.every=0 judges nothing")


@dataclass(frozen=True)
class AuditConfig:
    """A sample of the completions is judged by the task's oracle, beside training.

    Of a task without an oracle, statistical signs are shown.
    """

    every: Annotated[NonNegativeInt, RESUMABLE] = 1
    """Steps between samples; 0 = no audit."""

    completions: Annotated[int, Ge(2), RESUMABLE, _AUDIT] = 128
    """Completions judged in such a step, of each task: half of them from those that were rewarded."""

    window: Annotated[PositiveInt, RESUMABLE, _AUDIT] = 16
    """Samples that the rates and the alarm look back on."""

    max_false_positive_rate: Annotated[Fraction, RESUMABLE, _AUDIT] = 0.01
    """Largest fraction of the rewarded completions that may be wrong; above it the alarm is raised."""

    action: Annotated[Literal["warn", "stop"], RESUMABLE, _AUDIT] = "warn"
    """At an alarm: warn, or save a checkpoint and stop."""

    timeout: Annotated[PositiveFloat, RESUMABLE, _AUDIT] = 2.0
    """Seconds of the oracle for one completion, after which it counts as not judged."""


_DURING = UsedIf("eval.every", "eval.every=0 evaluates before and after training only")


@dataclass(frozen=True)
class EvalConfig:
    """Evaluation on held-out problems, before, during and after training."""

    num_problems: PositiveInt = 1024
    """Held-out problems before and after training."""

    num_problems_during: Annotated[PositiveInt, RESUMABLE, _DURING] = 256
    """Held-out problems during training: the first of the same ones, at most eval.num_problems."""

    every: Annotated[NonNegativeInt, RESUMABLE] = 25
    """Steps between evaluations during training; 0 = none."""

    temperature: PositiveFloat = 1.0
    """Temperature of the sampled evaluation."""

    greedy: bool = True
    """Also evaluate with greedy decoding, before and after training."""

    pass_at: Annotated[tuple[Annotated[int, Ge(1), Le(1024)], ...], RESUMABLE] = ()
    """Values of k for pass@k. Of each held-out problem as many completions are sampled as the largest; [] = one."""

    tasks: dict[str, Any] | tuple[str, ...] = field(default_factory=dict)
    """Other tasks to evaluate on, which are not trained on: [multiply, gsm8k], or a table with their options, as in
    eval.tasks.NAME.options.KEY=… and eval.tasks.NAME.task=…."""

    @property
    def samples(self) -> int:
        """Completions sampled of each held-out problem."""
        return max(self.pass_at, default=1)

    @property
    def task_specs(self) -> tuple[TaskSpec, ...]:
        """The other tasks."""
        assert isinstance(self.tasks, dict)
        return read_task_specs(self.tasks, "eval.tasks")

    def __post_init__(self) -> None:
        table = self.tasks if isinstance(self.tasks, dict) else {name_of(task): {"task": task} for task in self.tasks}
        if len(set(self.pass_at)) < len(self.pass_at):
            raise ValueError(f"eval.pass_at: got {list(self.pass_at)}, expected each k once, such as [1, 8]")
        specs = read_task_specs(table, "eval.tasks")
        object.__setattr__(self, "tasks", complete_table(specs, ("task", "options")))


@dataclass(frozen=True)
class CheckpointConfig:
    """What a run resumes from."""

    every: Annotated[NonNegativeInt, RESUMABLE] = 25
    """Steps between checkpoints; 0 = only at the end and when interrupted."""

    keep: Annotated[int, Ge(2), RESUMABLE] = 2
    """Checkpoints kept; at least 2, so that one is complete while another is written."""


_SAMPLES = UsedIf("log.rollouts_every", "log.rollouts_every=0 writes none")
_PROJECTS = UsedIf(
    lambda c: {"wandb", "trackio"} & {*c.log.trackers},
    "only the trackers wandb and trackio, neither of which is in log.trackers, have projects",
)


@dataclass(frozen=True)
class LogConfig:
    """What is recorded, and where."""

    trackers: Annotated[tuple[Literal["wandb", "trackio", "tensorboard"], ...], RESUMABLE] = ()
    """Trackers in addition to `metrics.jsonl`; none of them can stop a run."""

    project: Annotated[str, RESUMABLE, _PROJECTS] = "tinyzero"
    """Project name for W&B and trackio."""

    rollouts_every: Annotated[NonNegativeInt, RESUMABLE] = 1
    """Steps between samples of rollouts kept in `completions/`; 0 = none."""

    rollouts_count: Annotated[PositiveInt, RESUMABLE, _SAMPLES] = 32
    """Completions in such a sample: all those of some problems, of one of each task at least."""

    held_out_count: Annotated[NonNegativeInt, RESUMABLE] = 1024
    """Completions kept of each evaluation."""
